"""``brokerless new pipeline``: a file to begin with, and its test."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from brokerless.cli.app import JsonOption, ProfileOption, RootOption, common, examples, help_of
from brokerless.cli.output import print_json, say
from brokerless.errors import ConfigError

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:[_-][a-z0-9]+)*", re.IGNORECASE)

_TAKEN: Final = frozenset({"brokerless", "pyspark", "pytest", "conftest"})

_PIPELINE: Final = '''\
"""The pipeline {name}: the topic clicks into the topic {module}.

    brokerless topics create clicks --schema "user string, page string"
    echo '{{"user": "ada", "page": "/docs/api"}}' | brokerless produce clicks
    brokerless run {module}.py --once
    brokerless tail {module} --from beginning --once

Its test: pytest test_{module}.py
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from brokerless import Pipeline
from brokerless.spark import dead_letter


def transform(rows: DataFrame) -> DataFrame:
    """Return the columns of the output: the user and the section of the site."""
    # Rows with a reason go to the topic {module}.dead_letters instead.
    reason = F.when(F.col("page").isNull(), "page is null")
    section = F.split_part("page", F.lit("/"), F.lit(2)).alias("section")
    # _produced_at is carried on: latency is measured from the producer's call.
    return rows.select("user", section, "_produced_at", dead_letter(reason, rows))


pipeline = Pipeline("{name}", inputs=["clicks"], output="{module}", transform=transform)

# This is for spark-submit, Glue and EMR; brokerless run needs only the line above.
if __name__ == "__main__":
    pipeline.main()
'''

_TEST: Final = '''\
"""The transform of {module}.py, on rows that come from no topic."""

from collections.abc import Iterator

import pytest
from pyspark.sql import Row, SparkSession
from {module} import transform

from brokerless import Settings
from brokerless.spark import spark_session, static_messages


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    session = spark_session(Settings("embedded", f"file://{{folder}}/topics", state_dir=folder), cores=1)
    yield session
    session.stop()


def result(spark: SparkSession, *clicks: tuple[str | None, str | None]) -> list[Row]:
    return transform(static_messages(spark, "user string, page string", clicks)).collect()


def test_a_click_has_a_section(spark: SparkSession) -> None:
    [row] = result(spark, ("ada", "/docs/api"))
    assert (row["user"], row["section"], row["_dead_letter"]) == ("ada", "docs", None)


def test_a_click_without_a_page_is_a_dead_letter(spark: SparkSession) -> None:
    [row] = result(spark, ("bob", None))
    assert (row["_dead_letter"]["_reason"], row["_dead_letter"]["user"]) == ("page is null", "bob")
'''

new = typer.Typer(no_args_is_help=True, help="Write files to begin with.", rich_markup_mode="rich")


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command."""
    new.command(
        name="pipeline", help=help_of(pipeline), epilog=examples("brokerless new pipeline by-section")
    )(pipeline)  # fmt: skip
    app.add_typer(new, name="new")


def pipeline(
    ctx: typer.Context,
    *,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Letters, digits, '_' and '-', such as by-section", show_default=False),
    ],
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a pipeline that runs as it is, and its test.

    NAME.py and test_NAME.py go to the working directory, with '_' for '-' in their names; no file is replaced. What
    the pipeline does with the topic clicks is an example: put your topics and your columns in its place.
    """
    options = common(ctx, profile, root, as_json)
    module = _module_of(name)
    files = {Path(f"{module}.py"): _PIPELINE, Path(f"test_{module}.py"): _TEST}
    if there := [str(path) for path in files if path.exists()]:
        raise ConfigError(f"Already in {Path.cwd()}: {', '.join(there)}. Choose another name, or remove what is there.")
    for path, text in files.items():
        with path.open("x", encoding="utf-8") as file:
            file.write(text.format(name=name, module=module))
    if options.as_json:
        print_json({"files": [str(path) for path in files]})
    else:
        say(f"Wrote {' and '.join(map(str, files))}. The first lines of {module}.py say how to run it.")


def _module_of(name: str) -> str:
    """Return the name of the module for a pipeline.

    Raises:
        ConfigError: the name cannot be one, or would hide a module that the pipeline needs.
    """
    module = name.replace("-", "_")
    if len(name) > 100 or not _NAME.fullmatch(name) or keyword.iskeyword(module):
        raise ConfigError(
            f"The name of a pipeline must be letters, digits, '_' and '-', beginning with a letter, got {name[:80]!r}."
        )
    if module in sys.stdlib_module_names or module in _TAKEN:
        raise ConfigError(f"A file {module}.py would hide Python's module {module!r}. Choose another name.")
    return module
