"""``Pipeline``: the one object that names a pipeline's topics and its transform, and runs it.

A file that defines one runs with ``brokerless run FILE``, under ``spark-submit``, on Glue and on EMR Serverless; in a
notebook, ``run`` does the same. Importing this module loads neither pyspark nor a store.
"""

from __future__ import annotations

import sys
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Final, Literal, NoReturn

from brokerless.errors import ConfigError
from brokerless.offsets import Offset, parse_start
from brokerless.schema import DEAD_LETTER_COLUMNS, PRODUCED_AT, check_name

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from brokerless.settings import Settings
    from brokerless.spark.conf import Engine
    from brokerless.spark.runner import PipelineResult

MAX_NAME: Final = 100


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The messages of some topics, transformed into one output topic, exactly once.

    It is a value: nothing is read or started before ``run`` or ``main``.

    Attributes:
        name: 1 to 100 characters without ``:`` and ``/``. The output's log keeps the progress under it, so a pipeline
            with a new name begins anew.
        inputs: topics; all their partitions are read.
        output: a topic with one partition. Dead letters go to ``<output>.dead_letters``, which is created.
        transform: takes a DataFrame with the columns of all inputs (null where a topic lacks one), ``_produced_at``,
            ``_topic``, ``_partition``, ``_version`` and ``_index``. Returns the columns of the output, optionally
            ``_produced_at`` (carry it on, and latencies are measured from the producer's call), and optionally the
            column of ``dead_letter``.
        start: where to begin without recorded progress: ``beginning``, ``latest`` or a time with a zone.

    Raises:
        ConfigError: a value that cannot be.
    """

    name: str
    _: KW_ONLY
    inputs: Sequence[str]
    output: str
    transform: Callable[[DataFrame], DataFrame]
    start: str = "beginning"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 1 <= len(self.name) <= MAX_NAME or set(self.name) & set(":/"):
            raise ConfigError(
                f"The name of a pipeline must have 1 to {MAX_NAME} characters, without ':' and '/', got {self.name!r}."
            )
        where = f"Pipeline {self.name!r}"
        if isinstance(self.inputs, str) or not self.inputs:
            raise ConfigError(f"{where}: inputs must be a list of at least one topic, got {self.inputs!r}.")
        object.__setattr__(self, "inputs", tuple(self.inputs))
        for topic in (*self.inputs, self.output):
            if not isinstance(topic, str):
                raise ConfigError(f"{where}: a topic's name must be a string, got {topic!r}.")
            check_name(topic)
        if len(set(self.inputs)) < len(self.inputs):
            raise ConfigError(f"{where}: inputs must name each topic once, got {', '.join(self.inputs)}.")
        if self.output in self.inputs:
            raise ConfigError(f"{where} reads its own output {self.output!r}, which would never end.")
        if not callable(self.transform):
            raise ConfigError(f"{where}: transform must be a function of a DataFrame, got {self.transform!r}.")
        if isinstance(parse_start(self.start), Offset):
            raise ConfigError(f"{where}: start must be beginning, latest or a time with a zone, got {self.start!r}.")

    def run(
        self,
        settings: Settings | None = None,
        *,
        once: bool = False,
        until: str | None = None,
        engine: Engine = "auto",
        commit_interval: str | float | None = None,
        create_output: bool = False,
        accept_new_input: bool = False,
        accept_rewrites: bool = False,
        skip: Sequence[str] = (),
        executor_rows: int | None = None,
        spark: SparkSession | None = None,
        progress: Literal["text", "json"] | None = None,
        stop: threading.Event | None = None,
    ) -> PipelineResult:
        """Run in this process until it is stopped, or with ``once`` until nothing is left; return what it did.

        SIGINT (Ctrl-C, the notebook's stop button) and SIGTERM end it after the running commit, if this is called in
        the main thread; ``stop`` does so from any thread. The next run goes on exactly where this one stopped.

        Args:
            settings: where topics are; read from the environment by default.
            once: process what is there, then return.
            until: process what was committed before ``now``, a past time, or an offset such as ``12:0`` (for one input
                with one partition), then return.
            engine: how it runs.
            commit_interval: the least time between two commits, as ``20ms``, ``1s`` or a number of seconds; 100 ms in
                real-time mode, and as fast as they can for batches.
            create_output: create the output with the transform's columns if it is missing.
            accept_new_input: begin anew with an input that was removed and made again by hand.
            accept_rewrites: where another engine has deleted or updated rows, deliver those that it left again.
            skip: objects to go on without if they cannot be read, each as ``table@version:index``: their messages are
                lost to this pipeline.
            executor_rows: in micro-batches, batches with more rows are written by Spark's executors.
            spark: a session to run in; by default one is made, or the one of this process taken. While the pipeline
                runs, the session has the settings ``STREAM_CONF``. It must have been started with the credentials of
                ``settings`` in its environment, and runs in micro-batches unless it has the jar of this package.
            progress: print a line each second: ``text`` on standard error, or ``json`` on standard output.
            stop: an event that ends the run when it is set; the run sets it at its own end.

        Raises:
            TopicNotFound: an input is missing, or the output is and ``create_output`` is not given.
            SchemaError, ConfigError: the pipeline does not fit its topics, or no usable Java or pyspark was found.
            PipelineFenced: another run of this name has taken over.
            BrokerlessError: what else stopped it.
        """
        from brokerless.settings import Settings
        from brokerless.spark.runner import RunOptions, interval_s, run_pipeline

        if isinstance(skip, str):
            raise ConfigError(f"skip must be a list of objects as table@version:index, got {skip!r}.")
        options = RunOptions(
            once=once,
            until=until,
            engine=engine,
            commit_interval_s=None if commit_interval is None else interval_s(commit_interval),
            create_output=create_output,
            accept_new_input=accept_new_input,
            accept_rewrites=accept_rewrites,
            skip=tuple(skip),
            executor_rows=executor_rows,
        )
        return run_pipeline(self, settings or Settings.load(), options, spark=spark, progress=progress, stop=stop)

    def main(self, argv: Sequence[str] | None = None) -> NoReturn:
        """Run as a job: read the command line, run, and end this process.

        ``--help`` lists the options; those that it does not know are ignored, because Glue adds its own.

        Args:
            argv: the arguments; those of this process by default.

        Raises:
            SystemExit: always. The exit code is 0, 1 after an error, or 2 if a mistake prevented the start.
                Errors are printed on standard error by name.
        """
        from brokerless.spark.job import run_arguments

        sys.exit(run_arguments(self, argv))


def dead_letter(reason: Column, rows: DataFrame) -> Column:
    """Return the column ``_dead_letter``, which a transform selects to send rows to ``<output>.dead_letters``.

    It is null where ``reason`` is null; other rows go there with their own columns, the reason and their offset.

    Args:
        reason: why the row cannot be processed, as text; null for good rows.
        rows: the DataFrame that the transform was given.
    """
    from pyspark.sql import functions as F

    from brokerless.spark.messages import DEAD_LETTER, METADATA

    own = {column.name for column in METADATA} | {PRODUCED_AT}
    original = [F.col(name) for name in rows.columns if name not in own]
    # concat, not concat_ws: Arrow refuses a null struct whose fields claim never to be null, as concat_ws's does.
    offset = F.concat(F.col("_version").cast("string"), F.lit(":"), F.col("_index").cast("string"))
    values = (reason, F.col("_topic"), F.col("_partition"), offset)
    added = [value.alias(column.name) for column, value in zip(DEAD_LETTER_COLUMNS, values, strict=True)]
    return F.when(
        reason.isNotNull(),
        F.struct(*original, *added),
    ).alias(DEAD_LETTER)
