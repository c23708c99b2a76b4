"""``brokerless bench``: the benchmark of the source checkout, in a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import typer

from brokerless.cli.app import examples, help_of


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command(
        help=help_of(bench),
        epilog=examples(
            "brokerless bench --help",
            "brokerless bench --autocommit-duration-ms 100 --seconds-to-stream 60",
            "brokerless bench --peers brokerless,kafka --rates 10000,70000 --hops 2 --repeat 3",
        ),
        # The benchmark has a parser of its own; all options, --help included, are for that one.
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    )(bench)


def bench(ctx: typer.Context) -> None:
    """Measure latency, loss, duplicates, order and cost, beside Kafka, delta-spark and delta-rs.

    Its options are those of 'python -m benchmarks', which '--help' lists. It comes with a checkout of the project, not
    with its wheel, and needs the extra 'bench'.
    """
    from brokerless.errors import ConfigError

    if importlib.util.find_spec("benchmarks") is None:
        raise ConfigError(
            "The benchmark comes with a checkout of the project, not with its wheel. Run it there: make bench"
        )
    if missing := [name for name in ("numpy", "psutil", "pyspark") if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"The benchmark needs {', '.join(missing)}; install its extra: pip install -e '.[bench]'")
    raise typer.Exit(subprocess.run([sys.executable, "-m", "benchmarks", *ctx.args], check=False).returncode)
