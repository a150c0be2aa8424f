"""One line of a bill: a quantity times a price, with the words that say how the quantity came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from penstock.planner.cost.prices import Price
from penstock.planner.quantities import significant
from penstock.planner.results import Figure

Kind = Literal[
    "compute", "storage", "requests", "cross-zone", "throughput", "shards", "ingest", "retrieval",
    "database", "cache", "operations",
]  # fmt: skip
MODEL: Final = "Penstock: the model of this plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line. `name` is unique within an option; `price_key` empty for a share of others."""

    name: str
    label: str
    kind: Kind
    usd: float
    formula: str
    source: str
    price_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionCost:
    """What one way costs in a month. `unfit` says why it cannot carry the workload at all.

    `latency_p99_ms` is that of producing, where a source says it; `batched` means that consumers
    get files and not records.
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
        """The sum of the lines of some kinds."""
        return sum([line.usd for line in self.lines if line.kind in kinds])

    def line(self, name: str) -> Line:
        """The line of this name; raises KeyError."""
        for line in self.lines:
            if line.name == name:
                return line
        raise KeyError(name)

    def size(self, name: str) -> float:
        """The value of a size, by its name without the option's; raises KeyError."""
        for figure in self.sizes:
            if figure.name == f"{identifier(self.key)}_{name}":
                return float(figure.value or 0)
        raise KeyError(name)


def priced(
    name: str, label: str, kind: Kind, quantity: float, price: Price, how: str, source: str = MODEL
) -> Line:
    """A line; `how` says how its quantity came about, `source` by whose rule."""
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
    """What running it oneself takes, as a share of the whole."""
    others = sum([line.usd for line in lines])
    return Line(
        name="operations",
        label="operations and control plane",
        kind="operations",
        usd=others * share / (1 - share),
        formula=f"${others:,.0f} × {share:g} / (1 - {share:g}): {share:.0%} of the whole",
        source="log and queue article, section 12c: 5 % in either split",
    )


def size(option: str, name: str, label: str, value: float, unit: str, formula: str,
         source: str = MODEL) -> Figure:  # fmt: skip
    """A physical quantity of an option, as a figure."""
    return Figure(
        name=f"{identifier(option)}_{name}",
        label=label,
        value=value,
        unit=unit,
        formula=formula,
        source=source,
    )


def identifier(key: str) -> str:
    """An option's or line's key as part of a figure's name."""
    return key.replace("-", "_")
