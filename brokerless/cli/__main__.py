"""Entry point of ``python -m brokerless.cli``, for environments whose scripts are not on ``PATH``."""

from brokerless.cli import main

if __name__ == "__main__":
    main()
