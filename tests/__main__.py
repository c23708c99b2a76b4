"""``python -m tests``: all tests, in two processes beside each other, with one report of coverage.

Arguments are pytest's. Where they name files or folders, one process runs these. Spark, servers and attacks wait more
than they compute, so both halves together take little longer than the longer one. They share nothing but the machine:
every server has a free port and every test its own root and folder.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

TESTS: Final = Path(__file__).parent
FIRST: Final = ("faults", "spark")
"""The folders of one process, in which Spark runs; the other one has all the rest, and takes about as long."""

_NOTHING_COLLECTED: Final = 5


def halves(args: Sequence[str]) -> list[list[str]]:
    """The arguments of each process."""
    if any(Path(arg.partition("::")[0]).exists() for arg in args):
        return [list(args)]
    rest = [path for path in sorted(TESTS.iterdir()) if path.name not in FIRST and is_tested(path)]
    return [[*args, *map(str, folders)] for folders in ([TESTS / name for name in FIRST], rest)]


def is_tested(path: Path) -> bool:
    """Whether pytest finds tests there."""
    return path.match("test_*.py") or any(path.rglob("test_*.py"))


def main() -> int:
    """Runs the tests; 1 if one fails, or coverage is too low for what was run."""
    runs = halves(sys.argv[1:])
    coverage = [sys.executable, "-m", "coverage"]
    subprocess.run([*coverage, "erase"], check=True)
    with tempfile.TemporaryFile("w+") as second:
        processes = [
            subprocess.Popen([*coverage, "run", "-m", "pytest", *args], stdout=output, stderr=subprocess.STDOUT)
            for args, output in zip(runs, (None, second), strict=False)
        ]
        codes = {process.wait() for process in processes}
        second.seek(0)
        sys.stdout.write(second.read())
        sys.stdout.flush()
    subprocess.run([*coverage, "combine", "--quiet"], check=False)
    whole = len(runs) > 1 and not any(arg.startswith("-k") for arg in sys.argv[1:])
    report = subprocess.run([*coverage, "report", *([] if whole else ["--fail-under=0"])], check=False)
    if codes <= {0, _NOTHING_COLLECTED} and 0 in codes:
        return report.returncode
    return 1


if __name__ == "__main__":
    sys.exit(main())
