"""``brokerless topics create|list|describe|delete``: manage topics."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003  # typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer

from brokerless.cli import alter
from brokerless.cli.alter import CompactByOption, RetentionBytesOption, RetentionOption, retention_of, size_of
from brokerless.cli.app import JsonOption, ProfileOption, RootOption, common, connect, examples, help_of
from brokerless.cli.output import print_json, print_table, printable, say
from brokerless.errors import ConfigError
from brokerless.schema import Schema

if TYPE_CHECKING:
    from brokerless.cli.app import Common
    from brokerless.topics import BrokenTopic, Remains, Topic

Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic's name.", show_default=False)]

topics = typer.Typer(no_args_is_help=True, help="Create, list, describe and delete topics.", rich_markup_mode="rich")


def register(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    topics.command(
        name="create",
        help=help_of(create),
        epilog=examples(
            'brokerless topics create timezone1 --schema "date string, message string"',
            'brokerless topics create clicks --schema "user string, at timestamp, price decimal(10,2)" --partitions 4',
            "brokerless topics create clicks --like clicks.jsonl",
        ),
    )(create)
    topics.command(
        name="list", help=help_of(list_), epilog=examples("brokerless topics list", "brokerless topics list --json")
    )(list_)
    topics.command(name="describe", help=help_of(describe), epilog=examples("brokerless topics describe timezone1"))(
        describe
    )
    topics.command(name="delete", help=help_of(delete), epilog=examples("brokerless topics delete timezone1 --yes"))(
        delete
    )
    alter.register(topics)
    app.add_typer(topics, name="topics")


def create(
    ctx: typer.Context,
    *,
    name: Name,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="TEXT",
            help="Columns as NAME TYPE, NAME TYPE, ... Types: string, long, integer, short, byte, float, double, "
            "boolean, binary, date, timestamp, decimal(p,s).",
            show_default=False,
        ),
    ] = None,
    schema_file: Annotated[
        Path | None,
        typer.Option(
            "--schema-file", metavar="FILE", help="Or the columns of a JSON Schema, or of an Avro record (.avsc)."
        ),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option("--like", metavar="FILE", help="Or the columns of messages in a .parquet, .jsonl or .csv file."),
    ] = None,
    partitions: Annotated[
        int, typer.Option("--partitions", metavar="N", help="Number of partitions; each is a separate ordered log.")
    ] = 1,
    if_not_exists: Annotated[
        bool,
        typer.Option("--if-not-exists", help="Succeed if the topic exists with this schema and number of partitions."),
    ] = False,
    retention: RetentionOption = None,
    retention_bytes: RetentionBytesOption = None,
    compact_by: CompactByOption = None,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a topic.

    With the profiles embedded and minio, a missing bucket is created, too.
    """
    options = common(ctx, profile, root, as_json)
    columns = _columns(schema, schema_file, like)  # before the first request to the store
    settings = options.settings()
    from brokerless.alter import limits_of
    from brokerless.topics import create_topic

    limits = limits_of(
        columns,
        **retention_of(retention),
        retention_bytes=None if retention_bytes is None else size_of(retention_bytes),
        compact_by=compact_by,
    )
    store = connect(settings, create=True)
    topic = create_topic(store, name, columns, partitions=partitions, exist_ok=if_not_exists, limits=limits)
    if options.as_json:
        print_json(_summary(topic))
    else:
        many = "partition" if partitions == 1 else "partitions"
        say(f"Topic {name} at {topic.uri}: {topic.schema} ({partitions} {many}).")


def _columns(schema: str | None, schema_file: Path | None, like: Path | None) -> Schema:
    from brokerless.columns.infer import schema_like, schema_of_file

    if (schema is None) + (schema_file is None) + (like is None) != 2:
        raise ConfigError('Give the columns once: --schema "user string", --schema-file FILE or --like FILE.')
    if schema_file is not None:
        return schema_of_file(schema_file)
    return Schema.parse(schema or "") if like is None else schema_like(like)


def list_(
    ctx: typer.Context, *, profile: ProfileOption = None, root: RootOption = None, as_json: JsonOption = False
) -> None:
    """List the topics.

    A topic that cannot be described (damaged, not completely created, another tool's table) is listed with its problem.
    """
    options = common(ctx, profile, root, as_json)
    settings = options.settings()
    from brokerless.topics import Topic, survey_topics

    found = survey_topics(connect(settings))
    good = [topic for topic in found if isinstance(topic, Topic)]
    if options.as_json:
        print_json([_listed(topic) for topic in found])
        return
    if good:
        print_table(("topic", "partitions", "schema"), [(t.name, t.partitions, t.schema) for t in good])
    for broken in found:
        if not isinstance(broken, Topic):
            say(printable(f"{broken.name}: {broken.problem}"))
    if not found:
        say(f"There are no topics in {settings.root}. Create one with 'brokerless topics create'.")


def describe(
    ctx: typer.Context,
    *,
    name: Name,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a topic: its columns, and the tables and offsets of its partitions."""
    options = common(ctx, profile, root, as_json)
    settings = options.settings()
    from brokerless.alter import describe_limits
    from brokerless.offsets import Offset
    from brokerless.topics import TopicIncomplete, describe_topic

    store = connect(settings)
    try:
        topic = describe_topic(store, name)
    except TopicIncomplete as error:
        if error.left is None:
            raise
        _describe_remains(error.left, options)
        return
    parts: list[dict[str, Any]] = []
    for number, log in enumerate(topic.logs):
        earliest, head = log.earliest(), log.state.version
        parts.append(
            {
                "partition": number,
                "table": log.uri,
                "earliest": str(Offset(earliest)),
                "next": str(Offset(head + 1)),
                "commits": head + 1 - earliest,
            }
        )
    if options.as_json:
        print_json({**_summary(topic), "tables": parts})
        return
    print_table(("column", "type"), [(c.name, c.type) for c in topic.schema.columns], title=f"{name} at {topic.uri}")
    if topic.limits:
        say(f"{describe_limits(topic.limits).capitalize()}.")
    print_table(
        ("partition", "table", "earliest offset", "next offset", "commits"), [tuple(part.values()) for part in parts]
    )


def delete(
    ctx: typer.Context,
    *,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a topic and its messages.

    Its running producers, pipelines and readers stop with an error. Maintenance removes its objects later.
    """
    options = common(ctx, profile, root, as_json)
    settings = options.settings()
    from brokerless.topics import delete_topic, live_logs

    store = connect(settings)
    live_logs(
        store, name
    )  # not describe_topic: a topic after an interrupted call cannot be described, and must be deleted here
    uri = f"{store.uri}/{name}"
    if not yes:
        if options.as_json or not sys.stdin.isatty():
            raise ConfigError(f"Deleting topic {name!r} needs confirmation, and there is no terminal; give --yes.")
        typer.confirm(f"Delete {uri} and all its messages?", abort=True, err=True)
    delete_topic(store, name)
    if options.as_json:
        print_json({"deleted": name, "uri": uri})
    else:
        say(f"Deleted {uri}.")


def _describe_remains(left: Remains, options: Common) -> None:
    if options.as_json:
        columns = [{"name": column.name, "type": column.type} for column in left.schema.columns]
        about = {"topic": left.name, "uri": left.uri, "partitions": left.partitions, "schema": str(left.schema)}
        there = [{"partition": number, "table": f"{left.uri}.{number}"} for number in left.tables]
        print_json({**about, "columns": columns, "tables": there, "problem": left.problem})
        return
    title = f"{left.name} at {left.uri}"
    print_table(("column", "type"), [(c.name, c.type) for c in left.schema.columns], title=title)
    print_table(("partition", "table"), [(number, f"{left.uri}.{number}") for number in left.tables])
    say(left.problem)


def _listed(topic: Topic | BrokenTopic) -> dict[str, Any]:
    """Return the topic for JSON; broken topics have the same keys, so that scripts can treat all alike."""
    from brokerless.topics import Topic

    if isinstance(topic, Topic):
        return {**_summary(topic), "problem": None}
    nothing: dict[str, Any] = {"partitions": None, "schema": None, "columns": [], "heads": [], "limits": {}}
    return {"topic": topic.name, "uri": topic.uri, **nothing, "problem": printable(topic.problem)}


def _summary(topic: Topic) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "uri": topic.uri,
        "partitions": topic.partitions,
        "schema": str(topic.schema),
        "columns": [{"name": column.name, "type": column.type} for column in topic.schema.columns],
        "heads": list(topic.heads),
        "limits": topic.limits,
    }
