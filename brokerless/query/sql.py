"""SQL over topics by name, with DataFusion, which comes with delta-rs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from arro3.core import Table

from brokerless.clock import SYSTEM, Clock
from brokerless.columns.frames import optional
from brokerless.errors import ConfigError
from brokerless.maintenance.maintainer import storage_options
from brokerless.schema import is_table, split_table
from brokerless.store import open_store
from brokerless.topics import describe_topic

if TYPE_CHECKING:
    from brokerless.settings import Settings

_READS: Final = re.compile(r"\s*(select|with|values|explain|describe)\b", re.IGNORECASE)
_UNKNOWN: Final = re.compile(r"table '(?:datafusion\.public\.)?([^']+)' not found")


def run_sql(query: str, *, settings: Settings, clock: Clock = SYSTEM) -> Table:
    """Run a query over topics, all partitions of each as one table with the topic's name.

    Only the topics that the query names are opened. A name with a capital letter, a dot or a dash needs double quotes.

    Args:
        query: one statement that reads, in the SQL of DataFusion.
        settings: where the topics are.
        clock: time.

    Returns:
        An arro3 table.

    Raises:
        ConfigError: the query cannot be run; the text says why, and names the topics if one is unknown.
        StoreError: the store failed.
    """
    if not _READS.match(query):
        raise ConfigError("Only queries can be run, which begin with select, with, values, describe or explain.")
    deltalake = optional("deltalake", "sql")
    store = open_store(settings)
    names = sorted({split_table(folder)[0] for folder in store.folders() if is_table(folder)})
    builder = deltalake.QueryBuilder()
    try:
        for name in names:
            if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", query, re.IGNORECASE) is None:
                continue
            tables = []
            for number, log in enumerate(describe_topic(store, name, clock=clock).logs):
                table = deltalake.DeltaTable(log.uri, storage_options=storage_options(settings))
                part = f"partition_{names.index(name)}_{number}"
                builder.register(part, table)
                tables.append(" ".join(("select *", "from", part)))
            builder.execute(f'create view "{name}" as {" union all ".join(tables)}')
        return Table.from_arrow(builder.execute(query))
    except deltalake.exceptions.DeltaError as error:
        text = str(error).splitlines()[0][:500]
        if (unknown := _UNKNOWN.search(text)) is not None:
            there = ", ".join(names) or "none"
            raise ConfigError(f"There is no topic {unknown[1]!r} in {settings.root}. There are: {there}.") from None
        raise ConfigError(f"The query cannot be run: {text}.") from None
