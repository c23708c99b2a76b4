"""Rows through the example pipeline: dates and texts that it cannot use become dead letters, one for one.

One attack is many rows in a few commits, between valid ones, through one run of the pipeline. Each row must come out
once: in the output if its date is one, else in the dead letters, with its reason and its columns as they were.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from brokerless.bucket import create_bucket
from brokerless.local.server import start_embedded
from brokerless.producer.producer import Producer
from brokerless.settings import Settings
from tests.malformed import nasty
from tests.malformed.kinds import Kind, World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

ROWS: Final = 250
VALID: Final = "2024-08-23 04:52:13.066217 -0400"
VALID_MS: Final = 1724403133066.217
_FORMAT: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))? ([+-])(\d\d)(\d\d)", re.ASCII)
_DATES: Final = (
    "2024-02-30 00:00:00 +0000",
    "2023-02-29 00:00:00 +0000",
    "2024-13-01 00:00:00 +0000",
    "2024-00-01 00:00:00 +0000",
    "2024-01-00 00:00:00 +0000",
    "2024-01-01 24:00:00 +0000",
    "2024-01-01 23:60:00 +0000",
    "2024-01-01 23:59:60 +0000",
    "2024-01-01 00:00:00.1234567 +0000",
    "2024-01-01 00:00:00. +0000",
    "2024-01-01T00:00:00 +0000",
    "2024-01-01 00:00:00+0000",
    "2024-01-01 00:00:00 Z",
    "2024-01-01 00:00:00 +00:00",
    "2024-01-01 00:00:00 +9999",
    "2024-01-01 00:00:00 +1801",
    "2024-01-01 00:00:00 +1800",
    "2024-01-01 00:00:00 0000",
    "2024-01-01 00:00:00 -0000",
    "2024-01-01 00:00:00",
    "2024-01-01",
    "1704067200000",
    "0000-01-01 00:00:00 +0000",
    "0001-01-01 00:00:00 +1800",
    "9999-12-31 23:59:59.999999 -1800",
    "10000-01-01 00:00:00 +0000",
    "+10000-01-01 00:00:00 +0000",
    "-2024-01-01 00:00:00 +0000",
    "24-01-01 00:00:00 +0000",
    "2024-1-1 0:0:0 +0000",
    " 2024-01-01 00:00:00 +0000",
    "2024-01-01 00:00:00 +0000 ",
    "2024-01-01  00:00:00 +0000",
    "2024-01-01 00:00:00 +0000\n",
    "2024-01-01 00:00:00 +0000".translate({48 + digit: 0x660 + digit for digit in range(10)}),
    "2024\u201001\u201001 00:00:00 +0000",
    "1582-10-10 00:00:00 +0000",
    "x" * 100_000,
    "'" * 61,
)


def generate(rng: Random) -> list[str | None]:
    """The dates of rows."""
    return [_date(rng) for _ in range(ROWS)]


def _date(rng: Random) -> str | None:
    draw = rng.random()
    if draw < 0.05:
        return None
    if draw < 0.35:
        return rng.choice(_DATES)
    if draw < 0.6:
        return rng.choice(nasty.TEXTS).encode("utf-8", "replace").decode()
    return nasty.damaged(rng, VALID.encode()).decode("utf-8", "replace")


def instant_ms(date: str | None) -> float | None:
    """What a valid date means, by other means than the pipeline's; None if it is none."""
    match = _FORMAT.fullmatch(date or "")
    if match is None:
        return None
    year, *fields, fraction, sign, hours, minutes = match.groups()
    try:
        offset = timedelta(hours=int(hours), minutes=int(minutes)) * (1 if sign == "+" else -1)
        if int(minutes) > 59 or abs(offset) > timedelta(hours=18):
            return None
        # Python has no year 0, but the calendar is the same every 400 years.
        moved = datetime(int(year) or 400, *map(int, fields), int((fraction or "0").ljust(6, "0")), tzinfo=UTC)  # type: ignore[misc, arg-type]
    except ValueError:
        return None
    since = moved - datetime(1970, 1, 1, tzinfo=UTC) - offset - timedelta(days=0 if int(year) else 146_097)
    return since // timedelta(microseconds=1) / 1000


@contextlib.contextmanager
def place() -> Iterator[tuple[Any, Settings, Iterator[int]]]:
    """One Spark session and one server."""
    from brokerless.spark import spark_session

    with tempfile.TemporaryDirectory() as folder, start_embedded(Path(folder) / "s3") as server:
        settings = Settings(
            "embedded",
            "s3://malformed",
            endpoint=server.endpoint,
            access_key=server.access_key,
            secret_key=server.secret_key,
            state_dir=Path(folder) / "state",
        )
        create_bucket(settings)
        spark = spark_session(settings, name="malformed", cores=2)
        try:
            yield spark, settings, count()
        finally:
            spark.stop()


def attack(bad: list[str | None], world: World) -> str | None:
    from tests.support.pipelines import OUTPUT, create, rows_of, run_once

    spark, base, numbers = world.place
    settings = replace(base, root=f"s3://malformed/{next(numbers)}")
    create(settings)
    dates: dict[str, str | None] = {}
    with Producer("timezone1", settings=settings) as producer:
        for begin in range(0, len(bad), 50):
            rows = {f"good {begin}": VALID}
            rows |= {f"{begin + n} {_message(begin + n)}": date for n, date in enumerate(bad[begin : begin + 50])}
            producer.send({"date": list(rows.values()), "message": list(rows)})
            dates |= rows
    run_once(spark, settings)
    output, letters = rows_of(settings, OUTPUT), rows_of(settings, f"{OUTPUT}.dead_letters")
    world.outcomes["dead letter"] += len(letters)
    world.outcomes["valid after all"] += len(bad) - len(letters)
    found = Counter(row["message"] for row in [*output, *letters])
    if found != Counter(list(dates)):
        wrong = {message: number for message, number in found.items() if number != 1}
        return f"rows that are there not once: {ascii(wrong or sorted(set(dates) - set(found)))[:300]}"
    for row in output:
        wanted = instant_ms(dates[row["message"]])
        if wanted is None or wanted != row["timestamp"]:
            return f"{ascii(dates[row['message']])[:100]} became {row['timestamp']}, not {wanted}"
    for row in letters:
        date = dates[row["message"]]
        if row["date"] != date or not row["_reason"]:
            return f"the dead letter of {ascii(date)[:100]} has the date {ascii(row['date'])[:100]}"
        if instant_ms(date) is not None:
            return f"the valid {date!a} became a dead letter: {row['_reason']}"
    return None


def _message(number: int) -> str:
    """Texts that the pipeline carries through as they are."""
    return nasty.TEXTS[number % len(nasty.TEXTS)].encode("utf-8", "replace").decode()


KIND: Final = Kind(generate, attack, place, inputs=ROWS, limit_s=120.0, memory=None)
