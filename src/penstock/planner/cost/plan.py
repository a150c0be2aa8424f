"""Cost plan: bills of all options, the cheapest, traffic between zones, and three charts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from penstock.planner.cost.findings import Turns, findings_of
from penstock.planner.cost.inputs import CostInputs
from penstock.planner.cost.lines import MODEL, OptionCost, Prices, identifier
from penstock.planner.cost.options import (
    all_options,
    fitting,
    input_chart,
    retention_chart,
    retention_turn,
    volume_chart,
    volume_turn,
)
from penstock.planner.cost.workload import GB, SECONDS, produced_bytes_s, workload_of
from penstock.planner.quantities import significant
from penstock.planner.results import Chart, Figure, Number, Plan

_TOTALS = "total a month"
_PER_GB = "per GB produced"
_ZONES = "traffic between zones, local cluster"
_TURNS = "where the cheapest changes"


def cost_plan(
    inputs: CostInputs, prices: Prices, today: date, *, preset: str | None = None
) -> Plan:
    """Return the monthly costs of every option; `today` determines the age of prices.

    Raises:
        ImpossiblePlan: inputs that contradict each other; their class checks that.
    """
    options = all_options(inputs, prices)
    turns = Turns(
        less=volume_turn(inputs, prices, up=False),
        more=volume_turn(inputs, prices, up=True),
        shorter=retention_turn(inputs, prices, up=False),
        longer=retention_turn(inputs, prices, up=True),
    )
    return Plan(
        title="cost" if preset is None else f"cost: {preset}",
        inputs=inputs,
        figures=(
            *_totals(inputs, options),
            *_turns(inputs, options, turns),
            *_zones(inputs, prices),
            *[figure for option in options for figure in _bill(option)],
        ),
        findings=findings_of(inputs, prices, options, turns, today, preset),
        charts=_charts(inputs, prices, options),
        answers=(
            "cheapest_option",
            *[
                _total_name(option)
                for option in sorted(options, key=lambda option: option.total_usd)
            ],
        ),
    )


def _total_name(option: OptionCost) -> str:
    return f"{identifier(option.key)}_total_usd_per_month"


def _totals(inputs: CostInputs, options: Sequence[OptionCost]) -> list[Figure]:
    gb_month = produced_bytes_s(inputs) * SECONDS / GB
    totals = [
        Figure(
            name=_total_name(option),
            label=option.label,
            value=option.total_usd,
            unit="USD/month",
            formula="the sum of its lines below",
            source=MODEL,
            group=_TOTALS,
        )
        for option in options
    ]
    each = [
        Figure(
            name=f"{identifier(option.key)}_usd_per_gb",
            label=option.label,
            value=option.total_usd / gb_month,
            unit="USD/GB",
            formula=f"total / {significant(gb_month)} GB a month before compression",
            source=MODEL,
            group=_PER_GB,
        )
        for option in options
    ]
    return totals + each


def _turns(inputs: CostInputs, options: Sequence[OptionCost], turns: Turns) -> list[Figure]:
    ranked = fitting(options, inputs)
    rows = [
        Figure(
            name="cheapest_option",
            label="cheapest that fits",
            value=ranked[0].key if ranked else None,
            formula="smallest total of those that can carry the workload",
            source=MODEL,
            group=_TURNS,
        )
    ]
    for name, label, turn, unit in (
        ("cheapest_from_bytes_per_day", "at less a day", turns.less, "bytes/day"),
        ("cheapest_to_bytes_per_day", "at more a day", turns.more, "bytes/day"),
        ("cheapest_from_retention_d", "if kept shorter", turns.shorter, "d"),
        ("cheapest_to_retention_d", "if kept longer", turns.longer, "d"),
    ):
        then = "" if turn is None else f": {turn.option.label}"
        rows.append(
            Figure(
                name=name,
                label=f"{label}{then}",
                value=None if turn is None else turn.at,
                unit=unit,
                formula="nearest place where another total is smaller, by halving; - is nowhere",
                source=MODEL,
                group=_TURNS,
            )
        )
    return rows


def _zones(inputs: CostInputs, prices: Prices) -> list[Figure]:
    load = workload_of(inputs)
    usd = prices["zone.gb"]
    source = "log and queue article, section 12b"

    def row(name: str, label: str, value: Number, unit: str, formula: str) -> Figure:
        return Figure(
            name=f"cross_zone_{name}", label=label, value=value, unit=unit, formula=formula,
            source=source, group=_ZONES,
        )  # fmt: skip

    gb_month, copies = significant(load.gb_month), significant(load.copies_across_zones)
    crossing = load.replicated_gb_month + load.fetched_gb_month + load.sent_gb_month
    return [
        row("replication_bytes_per_month", "replication", load.replicated_gb_month * GB,
            "bytes/month", f"{gb_month} GB × {copies} followers in other zones"),
        row("consumer_bytes_per_month", "consumers", load.fetched_gb_month * GB, "bytes/month",
            f"{gb_month} GB × {load.groups} groups × {load.reads_cross_zone:.3g}"),
        row("producer_bytes_per_month", "producers", load.sent_gb_month * GB, "bytes/month",
            f"{gb_month} GB × {load.writes_cross_zone:.3g}"),
        row("replication_usd_per_month", "cost of replication",
            load.replicated_gb_month * usd.usd, "USD/month", f"replication × ${usd.usd:g} a GB"),
        row("total_usd_per_month", "cost of all", crossing * usd.usd, "USD/month",
            f"{significant(crossing)} GB × ${usd.usd:g} a GB"),
    ]  # fmt: skip


def _bill(option: OptionCost) -> list[Figure]:
    sizes = [
        Figure(
            name=figure.name, label=figure.label, value=figure.value, unit=figure.unit,
            formula=figure.formula, source=figure.source, group=option.label,
        )
        for figure in option.sizes
    ]  # fmt: skip
    return sizes + [
        Figure(
            name=f"{identifier(option.key)}_{line.name}_usd_per_month",
            label=line.label,
            value=line.usd,
            unit="USD/month",
            formula=line.formula,
            source=line.source,
            group=option.label,
        )
        for line in option.lines
    ]


def _charts(inputs: CostInputs, prices: Prices, options: Sequence[OptionCost]) -> tuple[Chart, ...]:
    ranked = fitting(options, inputs) or list(options)
    chosen = ranked[0].key if inputs.option == "cheapest" else inputs.option
    moved = input_chart(inputs, prices, chosen)
    return (
        volume_chart(inputs, prices),
        retention_chart(inputs, prices),
        *([] if moved is None else [moved]),
    )
