"""Copies of the checkout: where safeguards are taken away, so that the working tree never is without one."""

from __future__ import annotations

import compileall
import json
import os
import py_compile
import shutil
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tests.mutants.inside import FOUND, NOTHING
from tests.mutants.mutant import ROOT, Sim

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.mutants.mutant import Mutant, Named

COPIED: Final = ("brokerless", "lambdas", "glue_jobs", "tests")
FILES: Final = ("pyproject.toml",)


class NoAnswerError(Exception):
    """An attack did not run, so nobody knows whether it would have noticed."""


class Copy:
    """One copy, and the process that runs attacks in it.

    Args:
        folder: of it.
        number: which core its simulations run on.
    """

    def __init__(self, folder: Path, number: int = 0) -> None:
        self.folder = folder
        self._number = number
        self._server: subprocess.Popen[str] | None = None

    @classmethod
    def of_checkout(cls, folder: Path) -> Copy:
        """A copy of the working tree as it is now.

        Its byte code is checked by the hash of its source: a mutant may be as long and as old as what it replaces.
        """
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "snapshots"))
        for name in FILES:
            shutil.copy2(ROOT / name, folder / name)
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        for name in COPIED[:-1]:
            compileall.compile_dir(folder / name, quiet=2, invalidation_mode=mode)
        return cls(folder)

    def again(self, folder: Path, number: int) -> Copy:
        """Another one, with what pytest has compiled by now."""
        shutil.copytree(self.folder, folder)
        return Copy(folder, number)

    @contextmanager
    def without(self, mutant: Mutant) -> Iterator[None]:
        """Within it, the safeguard is gone.

        Raises:
            MovedError: its text is not there exactly once.
        """
        path = self.folder / mutant.file
        text = path.read_text()
        path.write_text(mutant.applied_to(text))
        try:
            yield
        finally:
            path.write_text(text)

    def attack(self, catcher: Sim | Named) -> str:
        """What noticed: a seed or a test; empty if nothing did.

        Raises:
            NoAnswerError: it could not be run.
        """
        if isinstance(catcher, Sim):
            return self._run(["sim", str(catcher.first), str(catcher.seeds)])
        return self._run(["tests", *catcher.ids])

    def seeds(self, seeds: Sequence[int]) -> str:
        """The first of these seeds that fails; empty if none does.

        Raises:
            NoAnswerError: they could not be run.
        """
        return self._run(["seeds", *map(str, seeds)]) if seeds else ""

    def close(self) -> None:
        """Ends the process."""
        if self._server is not None:
            self._server.communicate()
            self._server = None

    def _run(self, request: list[str]) -> str:
        server = self._server = self._server or self._start()
        if server.stdin is None or server.stdout is None:
            raise NoAnswerError(request)
        try:
            server.stdin.write(f"{json.dumps(request)}\n")
            server.stdin.flush()
            code, what, output = json.loads(server.stdout.readline())
        except (OSError, ValueError) as error:
            raise NoAnswerError(f"{request} was not answered: {error!r}") from error
        if code not in {NOTHING, FOUND}:
            raise NoAnswerError(f"{request} ended with {code}: {what}\n{output}")
        return str(what)

    def _start(self) -> subprocess.Popen[str]:
        # Not what a run of the tests that started us has set: coverage, and servers and roots of somebody's own.
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("COV", "BROKERLESS_", "AWS_", "PYTEST_"))}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.inside"],
            cwd=self.folder,
            env={**kept, "PYTHONPATH": str(self.folder), "MUTANTS_CORE": str(self._number)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
