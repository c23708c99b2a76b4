"""``python -m tests.mutants.inside REQUEST``: plays seeds of the simulation without a safeguard, in this process only.

The request is JSON: ``{"mutant": {...}, "seeds": [0, 1], "core": 0}``; without a mutant nothing is taken away. The
module with the safeguard is compiled from a text without it when it is imported; no file is written. Prints what failed
as JSON, an empty text if nothing did.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from typing import TYPE_CHECKING, Any

from tests.mutants.mutant import Mutant

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from pathlib import Path


class Absent(MetaPathFinder):
    """Finds the module of a mutant, and loads its text without the safeguard."""

    def __init__(self, mutant: Mutant) -> None:
        self._path = mutant.path()
        self._text = mutant.applied_to(self._path.read_text()).encode()

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """As importlib asks for it."""
        if name.rpartition(".")[2] != self._path.stem or not name.startswith("brokerless."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin == str(self._path):
            spec.loader = _Loader(name, self._path, self._text)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: Path, text: bytes) -> None:
        super().__init__(name, str(path))
        self._text = text

    def path_stats(self, path: str) -> dict[str, Any]:
        raise OSError(f"The byte code of {path} has the safeguard.")

    def get_data(self, path: str) -> bytes:
        return self._text


def first_failure(seeds: Sequence[int]) -> str:
    """The first seed that fails, and how; empty if none does."""
    from tests.sim.machine import simulated
    from tests.sim.run import run_seed

    with simulated() as host:
        for seed in seeds:
            if failures := run_seed(host, seed).failures:
                return f"seed {seed}: {failures[0].splitlines()[0][:200]}"
    return ""


def main() -> None:
    """Answers the request.

    Raises:
        RuntimeError: the module of the mutant was not loaded without its safeguard.
    """
    request = json.loads(sys.argv[1])
    if hasattr(os, "sched_setaffinity"):
        # A simulation hands its baton from thread to thread: two must not share a core.
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[request["core"] % len(cores)]})
    if request["mutant"]:
        sys.meta_path.insert(0, Absent(Mutant(**request["mutant"])))
    found = first_failure(request["seeds"])
    loaders = [getattr(module, "__loader__", None) for module in [*sys.modules.values()]]
    if request["mutant"] and not any(isinstance(loader, _Loader) for loader in loaders):
        raise RuntimeError("The module without the safeguard was never imported.")
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
