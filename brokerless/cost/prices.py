"""Prices of units: the dated list in ``prices.json``, each row with its source, or a file that replaces it.

A price that is missing, misspelt or negative would make a bill wrong without a sign, so a list is checked as a whole
before anything is computed, and each row that cannot be used is named.

Standard library only. The file is read as a resource of the package, which also works from within a zip, as on Glue.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from brokerless.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_PARTS: Final = {"as_of", "region", "prices", "claims", "others"}
_ROW: Final = {"usd", "per", "unit", "source", "as_of"}
_CLAIM: Final = {"name", "messages_per_s", "usd_per_month", "said", "source", "as_of"}
_WHEN: Final = re.compile(r"\d{4}(-\d\d(-\d\d)?)?")
AS_PUBLISHED: Final = "as published"


@dataclass(frozen=True, slots=True)
class Price:
    """One row of the list.

    Attributes:
        tiers: pairs of (up to so many units a month, USD for ``per`` units between there and the pair before); the
            last one is without an end.
        per: how many units the price is for.
        unit: what is paid for, in the singular.
        source: who says so.
        as_of: when: a day, a month or a year.
    """

    name: str
    tiers: tuple[tuple[float, float], ...]
    per: float
    unit: str
    source: str
    as_of: str

    @property
    def usd(self) -> float:
        """The price of ``per`` units of the first tier."""
        return self.tiers[0][1]

    def usd_text(self) -> str:
        """The price as text; with tiers, each one with the number of units at which it ends."""
        texts = [f"{usd:.10f}".rstrip("0").rstrip(".") for _, usd in self.tiers]
        ends = [f" up to {end:,.0f}" for end, _ in self.tiers[:-1]]
        return "; ".join(text + end for text, end in zip(texts, [*ends, " beyond" if ends else ""], strict=True))

    def for_text(self) -> str:
        """Return the unit as text: ``1,000 x GET``."""
        return self.unit if self.per == 1 else f"{self.per:,.0f} x {self.unit}"

    def of(self, units: float) -> float:
        """Return the price of units in one month, in USD."""
        return tiered(units, self.tiers) / self.per


@dataclass(frozen=True, slots=True)
class Claim:
    """A published claim about a cost for one workload. It is quoted, and never used in a computation.

    Attributes:
        said: the claim in words.
        as_of: when it was made.
    """

    name: str
    messages_per_s: float
    usd_per_month: float
    said: str
    source: str
    as_of: str


@dataclass(frozen=True, slots=True)
class Prices:
    """A list of prices.

    Attributes:
        as_of: when the list was put together; each row has the date of its own source.
        region: of AWS.
        rows: by name.
        claims: what others published.
    """

    as_of: date
    region: str
    rows: Mapping[str, Price]
    claims: tuple[Claim, ...] = ()

    def __getitem__(self, name: str) -> Price:
        """Return a row.

        Raises:
            ConfigError: there is none of this name.
        """
        try:
            return self.rows[name]
        except KeyError:
            raise ConfigError(f"There is no price {name!r}{_meant(name, self.rows)}.") from None

    def usd(self, name: str) -> float:
        """Return the price of a row's units in the first tier."""
        return self[name].usd

    def to_dict(self) -> dict[str, Any]:
        """Return the prices in the form of a price file."""
        return {
            "as_of": self.as_of.isoformat(),
            "region": self.region,
            "prices": {name: _to_row(price) for name, price in self.rows.items()},
            "claims": [{key: getattr(claim, key) for key in sorted(_CLAIM)} for claim in self.claims],
        }


def tiered(units: float, tiers: Sequence[tuple[float, float]]) -> float:
    """Return the cost of units, each at the price of its tier; ``tiers`` as in ``Price``."""
    usd = below = 0.0
    for up_to, each in tiers:
        usd += max(0.0, min(units, up_to) - below) * each
        below = up_to
    return usd


@cache
def published() -> Prices:
    """Return the list in the package."""
    text = resources.files("brokerless.cost").joinpath("prices.json").read_text(encoding="utf-8")
    return parse(text, "prices.json")


def load(path: Path) -> Prices:
    """Return the list in a file, which must have exactly the rows of the published one.

    With ``"others": "as published"`` beside its ``prices`` the file may leave rows out.

    Raises:
        ConfigError: the file cannot be read, or one of its rows cannot be used; every such row is named.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The price file {path} cannot be read: {error}.") from None
    return parse(text, str(path), published())


def parse(text: str, where: str, complete: Prices | None = None) -> Prices:
    """Return the list in a text.

    Args:
        text: JSON like ``prices.json``.
        where: what to call it in errors.
        complete: the list whose rows it must have, and from which ``"others": "as published"`` takes them.

    Raises:
        ConfigError: the text is no such list; everything that is wrong with its rows is named at once.
    """
    try:
        data = json.loads(text, object_pairs_hook=_without_repeats)
    except ValueError as error:
        raise ConfigError(
            f"{where} is not a price file: {error}. 'brokerless cost --show-prices --json' prints one to start from."
        ) from None
    wrong: list[str] = []
    if not isinstance(data, dict) or not isinstance(data.get("prices"), dict):
        raise ConfigError(
            f"{where} is not a price file: it needs 'prices', an object of rows by name. See 'brokerless cost --help'."
        )
    wrong += [f"{part!r} is not a part of a price file{_meant(part, _PARTS)}" for part in sorted(set(data) - _PARTS)]
    rows = {name: row for name, value in data["prices"].items() if (row := _row(name, value, wrong))}
    if complete is not None:
        wrong += [
            f"row {name!r} is unknown{_meant(name, complete.rows)}"
            for name in data["prices"]
            if name not in complete.rows
        ]
        missing = [name for name in complete.rows if name not in data["prices"]]
        if data.get("others") == AS_PUBLISHED:
            rows = {**complete.rows, **rows}
        elif missing:
            wrong.append(
                f'it has no row {", ".join(map(repr, missing))}: add it, or "others": "{AS_PUBLISHED}" to take what is '
                f"missing from the list of {complete.region}, {complete.as_of}"
            )
    as_of, region = _head(data, wrong)
    claims = tuple(claim for value in _list(data, wrong) if (claim := _claim(value, wrong)))
    if wrong:
        raise ConfigError(f"{where} cannot be used: {'; '.join(wrong)}.")
    return Prices(as_of, region, rows, claims)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object without repeated names; JSON's reader would silently use the last value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def _head(data: dict[str, Any], wrong: list[str]) -> tuple[date, str]:
    try:
        as_of = date.fromisoformat(data["as_of"])
    except (KeyError, TypeError, ValueError):
        wrong.append(f"'as_of' is {data.get('as_of')!r}, not the day of the prices as YYYY-MM-DD")
        as_of = date.min
    region = data.get("region")
    if not isinstance(region, str) or not region:
        wrong.append(f"'region' is {region!r}, not the name of an AWS region")
    return as_of, str(region)


def _list(data: dict[str, Any], wrong: list[str]) -> list[Any]:
    claims = data.get("claims", [])
    if isinstance(claims, list):
        return claims
    wrong.append("'claims' is not a list")
    return []


def _row(name: str, value: Any, wrong: list[str]) -> Price | None:
    faults: list[str] = []
    if not isinstance(value, dict):
        wrong.append(f"row {name!r} is {value!r}, not an object with 'usd', 'unit', 'source' and 'as_of'")
        return None
    faults += [f"has the unknown part {part!r}{_meant(part, _ROW)}" for part in sorted(set(value) - _ROW)]
    faults += [f"has no {part!r}" for part in ("usd", "unit", "source", "as_of") if part not in value]
    tiers = _tiers(value.get("usd", 0), faults)
    per = value.get("per", 1)
    if not _is_number(per) or per <= 0:
        faults.append(f"is for {per!r} units, which must be a number above 0")
    if not _WHEN.fullmatch(str(value.get("as_of", "2000"))):
        faults.append(f"is as of {value['as_of']!r}, which must be YYYY, YYYY-MM or YYYY-MM-DD")
    for part in ("unit", "source"):
        if part in value and not (isinstance(value[part], str) and value[part]):
            faults.append(f"has the {part} {value[part]!r}, which must be text")
    wrong += [f"row {name!r} {fault}" for fault in faults]
    if faults:
        return None
    return Price(name, tiers, float(per), value["unit"], value["source"], value["as_of"])


def _tiers(usd: Any, faults: list[str]) -> tuple[tuple[float, float], ...]:
    given = usd if isinstance(usd, list) else [[None, usd]]
    if not given or not all(isinstance(tier, list) and len(tier) == 2 for tier in given):
        faults.append(f"has the price {usd!r}, which must be a number or a list of [up to, usd]")
        return ()
    for _, price in given:
        if not _is_number(price) or price < 0:
            faults.append(f"has the price {price!r}, which must be a number of USD, not below 0")
    ends = [end for end, _ in given]
    rising = all(_is_number(end) for end in ends[:-1]) and ends[:-1] == sorted(set(ends[:-1]))
    if ends[-1] is not None or not rising:
        faults.append(f"has tiers up to {ends}, which must rise and end with null")
    return () if faults else tuple((math.inf if end is None else float(end), float(price)) for end, price in given)


def _claim(value: Any, wrong: list[str]) -> Claim | None:
    if isinstance(value, dict) and set(value) == _CLAIM:
        numbers = value["messages_per_s"], value["usd_per_month"]
        if all(_is_number(number) and number > 0 for number in numbers):
            return Claim(**value)
    wrong.append(f"the claim {value!r} must have {', '.join(sorted(_CLAIM))}, numbers above 0")
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _meant(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _to_row(price: Price) -> dict[str, Any]:
    ends = [[None if math.isinf(end) else end, usd] for end, usd in price.tiers]
    row: dict[str, Any] = {"usd": price.usd if len(ends) == 1 else ends}
    if price.per != 1:
        row["per"] = price.per
    return {**row, "unit": price.unit, "source": price.source, "as_of": price.as_of}
