"""Runs in a copy of the checkout and says whether anything there notices what is missing.

Reads requests, a line of JSON each: ``["sim", FIRST, SEEDS]``, ``["seeds", 7, 38, 104]`` or ``["tests", ID...]``. Each
gets a process of its own, forked when other people's packages are loaded, which takes longer than most attacks, and
before anything of ours is. The answer is a line of JSON, too: the code, what failed, and the end of the output. The
code is 0 if nothing failed, 1 if something did, and 3 if the question was not answered: the copy is not what was
imported, or the tests could not even be collected.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("brokerless", "lambdas", "glue_jobs", "tests")

HEAVY = (
    "arro3.io",
    "deltalake",
    "obstore.store",
    "pyarrow.parquet",
    "pyspark.sql.datasource",
    "pyspark.sql.types",
    "pytest_timeout",
)

NOTHING, FOUND, UNANSWERED = 0, 1, 3

LONGEST_S = 300
"""Simulations that take longer are killed; tests have timeouts of their own."""


class Failures:
    """A plugin of pytest that remembers what failed, and what could not be collected."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.uncollected: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of each phase of each test."""
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Of each file."""
        if report.failed:
            self.uncollected.append(report.nodeid)


def strangers() -> list[str]:
    """Modules of ours that were imported from elsewhere, such as the editable install."""
    found = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    ours = {name: file for name, file in found.items() if file and name.partition(".")[0] in OURS}
    return [f"{name} from {file}" for name, file in ours.items() if not Path(file).resolve().is_relative_to(ROOT)]


def run_seeds(seeds: list[int]) -> tuple[int, str]:
    """The first seed that fails, and how."""
    from tests.sim.machine import simulated
    from tests.sim.run import run_seed

    with simulated() as host:
        for seed in seeds:
            if failures := run_seed(host, seed).failures:
                return FOUND, f"seed {seed}: {failures[0].splitlines()[0][:200]}"
    return NOTHING, ""


def run_tests(ids: list[str]) -> tuple[int, str]:
    """The first test that fails."""
    found = Failures()
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # to load those that are installed takes longer than a test
    options = ["-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
    options += ["-k", "not minio", "--timeout", "30"]
    code = pytest.main([*options, *ids], plugins=[found])
    if found.failed:
        return FOUND, found.failed[0]
    if code != 0:
        return UNANSWERED, f"pytest ended with {int(code)}: {', '.join(found.uncollected) or 'see above'}"
    return NOTHING, ""


def on_core(number: int) -> None:
    """Keeps this process on one core: a simulation hands its baton from thread to thread, and two must not share."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})


def answer(kind: str, *rest: str) -> tuple[int, str]:
    """The code, and what failed."""
    if kind == "tests":
        code, what = run_tests(list(rest))
    else:
        on_core(int(os.environ["MUTANTS_CORE"]))
        numbers = [int(one) for one in rest]
        code, what = run_seeds(numbers if kind == "seeds" else list(range(numbers[0], numbers[0] + numbers[1])))
    if elsewhere := strangers():
        return UNANSWERED, f"not imported from {ROOT}: {', '.join(elsewhere[:3])}"
    return code, what


def in_a_process(request: list[str], output: Path) -> tuple[int, str, str]:
    """The answer of a process that is forked for it; what it printed goes to a file."""
    pid = os.fork()
    if pid == 0:
        code, what = UNANSWERED, ""
        try:
            with output.open("wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            signal.alarm(LONGEST_S)
            code, what = answer(*request)
        except BaseException as error:  # whatever it was: it must not go on as a second server
            what = f"{type(error).__name__}: {error}"
        finally:
            output.with_suffix(".what").write_text(what)
            sys.stdout.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    found = output.with_suffix(".what")
    what = found.read_text() if found.exists() else "it was killed"
    found.unlink(missing_ok=True)
    code = os.waitstatus_to_exitcode(status)
    return code, what, output.read_text(errors="replace")[-1500:]


def serve() -> None:
    """Answers requests until there are no more."""
    for name in HEAVY:
        importlib.import_module(name)
    if early := {"brokerless", "lambdas", "glue_jobs"} & sys.modules.keys():
        raise ImportError(early)  # a process that is forked later would not see the mutant
    for line in sys.stdin:
        said = in_a_process(json.loads(line), ROOT / "output.txt")
        sys.stdout.write(f"{json.dumps(said)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
