"""Write the generated documents: ``python -m tools.pages``; with ``--check``, name those that are out of date."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import Final

PAGES: Final = ("cli", "api", "metrics", "cost", "benchmark")


def main() -> int:
    """Write or check the pages, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.pages", description="Write the generated documents.")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"only these, of: {', '.join(PAGES)}")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something is not up to date")
    args = parser.parse_args()
    if unknown := set(args.pages) - set(PAGES):
        parser.error(f"There is no page {', '.join(sorted(unknown))}; there are {', '.join(PAGES)}.")
    options = ["--check"] if args.check else []
    codes: list[int] = [import_module(f"tools.pages.{page}").main(options) for page in args.pages or PAGES]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
