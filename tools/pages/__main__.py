"""Write the generated documents: ``python -m tools.pages``; with ``--check``, name those that are out of date.

Each page is a module with ``generate``, which returns the content of its files. The same input gives the same bytes.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brokerless.errors import BrokerlessError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PAGES: Final = ("cli", "api", "metrics", "cost", "benchmark")
REPOSITORY: Final = Path(__file__).resolve().parents[2]


def main(argv: Sequence[str] | None = None, repository: Path = REPOSITORY) -> int:
    """Write or check the pages, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.pages", description="Write the generated documents.")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"only these, of: {', '.join(PAGES)}")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something is not up to date")
    args = parser.parse_args(argv)
    if unknown := set(args.pages) - set(PAGES):
        parser.error(f"There is no page {', '.join(sorted(unknown))}; there are {', '.join(PAGES)}.")
    code = 0
    for page in args.pages or PAGES:
        try:
            files: Mapping[str, bytes | None] = import_module(f"tools.pages.{page}").generate(repository)
        except BrokerlessError as error:
            print(error, file=sys.stderr)
            code = 1
            continue
        for name, content in sorted(files.items()):
            path = repository / name
            if content == (path.read_bytes() if path.exists() else None):
                continue
            if args.check:
                print(f"{name} is not up to date: run 'python -m tools.pages {page}'.", file=sys.stderr)
                code = 1
            else:
                _write(path, content)
                print(f"{name}: {'removed' if content is None else 'written'}")
    return code


def _write(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    sys.exit(main())
