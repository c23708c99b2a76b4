"""``python -m brokerless.spark FILE [OPTIONS]`` runs the pipeline of a file, as ``brokerless run`` does."""

from __future__ import annotations

import sys
from pathlib import Path

from brokerless.errors import BrokerlessError
from brokerless.spark.files import load_pipeline
from brokerless.spark.job import report_error, run_arguments


def main(argv: list[str]) -> int:
    """Run the pipeline of the file ``argv[0]`` with the other arguments; return the exit code of the job."""
    if not argv:
        print("Usage: python -m brokerless.spark FILE [OPTIONS]", file=sys.stderr)
        return 2
    # As Python itself does for a script: what lies beside it can be imported, and it sees its own arguments.
    sys.path.insert(0, str(Path(argv[0]).resolve().parent))
    sys.argv = argv
    try:
        pipeline = load_pipeline(Path(argv[0]))
    except BrokerlessError as error:
        return report_error(error)
    return run_arguments(pipeline, argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
