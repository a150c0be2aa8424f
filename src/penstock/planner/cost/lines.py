"""Prices, and the lines of a bill: a quantity times a price, with the origin of the quantity.

Each price has a unit, a date and a source. `prices.toml` beside this module has the default prices,
and declares which prices exist. A user's file may hold only some prices, and only the fields to
change. Its names and units must match the declared ones. A new price without a date gets today's
date and the file as its source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from difflib import get_close_matches
from math import isfinite
from typing import Final, Literal

from penstock.planner.inputs import InvalidPlanFile
from penstock.planner.quantities import significant
from penstock.planner.results import Figure

OLD_DAYS: Final = 365
"""Age of a price in days above which a finding asks for a check."""
_FIELDS: Final = frozenset({"usd", "unit", "date", "source"})
_TEXT_CHARS_MAX: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price of one unit in USD; `key` names its table in the file."""

    key: str
    usd: float
    unit: str
    date: date
    source: str


class Prices(dict[str, Price]):
    """Prices by key."""

    def scaled(self, key: str, factor: float) -> Prices:
        return Prices({**self, key: replace(self[key], usd=self[key].usd * factor)})

    def older_than_a_year(self, today: date) -> list[Price]:
        return [price for price in self.values() if (today - price.date).days > OLD_DAYS]


def read_prices(
    document: object, where: str, known: Prices | None = None, today: date | None = None
) -> Prices:
    """Decode a price file; missing prices are those of `known`.

    Without `known`, the file declares all prices, as the default file does. With `today`, a new
    price needs no date. `where` names the file in messages.

    Raises:
        InvalidPlanFile: a table or key is unknown, or a price is missing, negative or no number.
    """
    rows = dict(_rows(document, where))
    if known is None:
        return Prices({key: _price(key, row, f"{where}: {key}") for key, row in rows.items()})
    found = Prices(known)
    for key, row in rows.items():
        if key not in known:
            raise InvalidPlanFile(f"{where}: {key}: unknown price{_near(key, known)}")
        place = f"{where}: {key}"
        found[key] = _price(key, _merged(row, known[key], where, today), place, known[key].unit)
    return found


def _merged(row: object, known: Price, where: str, today: date | None) -> object:
    """Merge a user's table over the default price; a new price gets its own date and source."""
    if not isinstance(row, dict):
        return row
    if "usd" in row:
        ours: dict[str, object] = {"source": where} | ({} if today is None else {"date": today})
    else:
        ours = {"usd": known.usd, "date": known.date, "source": known.source}
    return ours | row


def _near(key: str, known: Prices) -> str:
    close = get_close_matches(key, list(known), n=1)
    if close:
        return f"; did you mean {close[0]}?"
    group = key.partition(".")[0]
    near = [name for name in known if name.partition(".")[0] == group] or list(known)
    return f"; known prices are {', '.join(near)}"


def _rows(document: object, where: str) -> Iterator[tuple[str, object]]:
    if not isinstance(document, dict):
        raise InvalidPlanFile(f"{where} must hold tables")
    for group, rows in document.items():
        if not isinstance(rows, dict):
            raise InvalidPlanFile(f"{where}: {group} must be a table of prices")
        for name, row in rows.items():
            yield f"{group}.{name}", row


def _price(key: str, row: object, where: str, unit: str | None = None) -> Price:
    if not isinstance(row, dict):
        raise InvalidPlanFile(f"{where} must be a table with usd, unit, date and source")
    unknown = sorted(row.keys() - _FIELDS)
    if unknown:
        near = get_close_matches(unknown[0], sorted(_FIELDS), n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise InvalidPlanFile(
            f"{where}.{unknown[0]} is unknown; a price has usd, unit, date and source{meant}"
        )
    dated = row.get("date")
    if type(dated) is not date:
        raise InvalidPlanFile(f"{where}.date = {dated!r}: must be a date such as 2026-05-01")
    given = _text(row.get("unit", unit), f"{where}.unit")
    if unit is not None and given != unit:
        raise InvalidPlanFile(
            f"{where}.unit = {given!r}: must be {unit!r}. Convert the price to this unit"
        )
    return Price(
        key=key,
        usd=_usd(row.get("usd"), f"{where}.usd"),
        unit=given,
        date=dated,
        source=_text(row.get("source"), f"{where}.source"),
    )


def _usd(value: object, where: str) -> float:
    if value is None:
        raise InvalidPlanFile(f"{where} is missing")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise InvalidPlanFile(f"{where} = {value!r}: must be a number")
    if value < 0:
        raise InvalidPlanFile(f"{where} = {value!r}: must not be negative")
    return float(value)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidPlanFile(f"{where} is missing, must be a text")
    if len(value) > _TEXT_CHARS_MAX:
        raise InvalidPlanFile(
            f"{where} has {len(value)} characters; at most {_TEXT_CHARS_MAX} are allowed"
        )
    return value.strip()


Kind = Literal[
    "compute", "storage", "requests", "cross-zone", "throughput", "shards", "ingest", "retrieval",
    "database", "cache", "operations",
]  # fmt: skip
MODEL: Final = "Penstock: the model of this plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Line of a bill.

    `name` is unique within an option. `price_key` is empty for a line without a price of its own.
    """

    name: str
    label: str
    kind: Kind
    usd: float
    formula: str
    source: str
    price_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionCost:
    """Monthly cost of one option.

    `unfit` holds the reasons why the option cannot carry the workload. `latency_p99_ms` is its
    produce latency, None if no source states it. `batched` is whether consumers get files instead
    of records.
    """

    key: str
    label: str
    lines: tuple[Line, ...]
    sizes: tuple[Figure, ...] = ()
    unfit: tuple[str, ...] = ()
    latency_p99_ms: float | None = None
    batched: bool = False

    @property
    def total_usd(self) -> float:
        return sum([line.usd for line in self.lines])

    def kind_usd(self, *kinds: Kind) -> float:
        return sum([line.usd for line in self.lines if line.kind in kinds])

    def line(self, name: str) -> Line:
        for line in self.lines:
            if line.name == name:
                return line
        raise KeyError(name)

    def size(self, name: str) -> float:
        """Return the value of a size by its name, without the option's prefix; raises KeyError."""
        for figure in self.sizes:
            if figure.name == f"{identifier(self.key)}_{name}":
                return float(figure.value or 0)
        raise KeyError(name)


def priced(
    name: str, label: str, kind: Kind, quantity: float, price: Price, how: str, source: str = MODEL
) -> Line:
    """Return a line of `quantity` units at a price.

    `how` explains the quantity, `source` names the rule that computes it.
    """
    unit = price.unit.removeprefix("USD per ")
    return Line(
        name=name,
        label=label,
        kind=kind,
        usd=quantity * price.usd,
        formula=f"{significant(quantity)} × ${price.usd:g} per {unit}; {how}",
        source=f"{price.source} ({price.date}); {source}",
        price_key=price.key,
    )


def operations(lines: Sequence[Line], share: float) -> Line:
    others = sum([line.usd for line in lines])
    return Line(
        name="operations",
        label="operations and control plane",
        kind="operations",
        usd=others * share / (1 - share),
        formula=f"${others:,.0f} × {share:g} / (1 - {share:g}), which is {share:.0%} of the total",
        source="log and queue article, section 12c: 5 % in either split",
    )


def size(option: str, name: str, label: str, value: float, unit: str, formula: str,
         source: str = MODEL) -> Figure:  # fmt: skip
    return Figure(f"{identifier(option)}_{name}", label, value, unit, formula, source)


def identifier(key: str) -> str:
    return key.replace("-", "_")
