"""Cost plan: bills of all options, findings on the cheapest, traffic between zones, and charts.

The limits in words are those of the sources: a diskless produce takes 200 to 500 ms at p99 where
local disks take 5 to 15; the outbox needs volume, one region and clients that mount a file system;
a managed service still needs operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Final, NamedTuple, get_args

from penstock.planner.cost.inputs import (
    GB,
    PRESETS,
    SECONDS,
    CostInputs,
    produced_bytes_s,
    workload_of,
)
from penstock.planner.cost.lines import MODEL, OLD_DAYS, Kind, OptionCost, Prices, identifier
from penstock.planner.cost.options import (
    INFREQUENT_DAYS,
    Turn,
    all_options,
    fitting,
    input_chart,
    reasons_against,
    retention_chart,
    retention_turn,
    volume_chart,
    volume_turn,
)
from penstock.planner.quantities import format_quantity, significant
from penstock.planner.results import Chart, Figure, Finding, Plan, fail, note, ok, warn

SMALL_BYTES_PER_DAY: Final = 1e12
"""Volume below which a file system is not worth its operation."""
MANAGED_RECORDS_S: Final = 100_000
PREFIX_PUTS_S: Final = 3500
_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_NAMED_MAX: Final = 3


class Turning(NamedTuple):
    """Nearest change of the cheapest option in one direction, if there is one within the bounds."""

    name: str
    label: str
    word: str
    unit: str
    turn: Turn | None


def turnings(inputs: CostInputs, prices: Prices) -> tuple[Turning, ...]:
    day, days = "bytes/day", "d"
    less, more = [volume_turn(inputs, prices, up=up) for up in (False, True)]
    shorter, longer = [retention_turn(inputs, prices, up=up) for up in (False, True)]
    return (
        Turning("cheapest_from_bytes_per_day", "at less a day", "below", day, less),
        Turning("cheapest_to_bytes_per_day", "at more a day", "above", day, more),
        Turning("cheapest_from_retention_d", "if kept shorter", "kept under", days, shorter),
        Turning("cheapest_to_retention_d", "if kept longer", "kept over", days, longer),
    )


def findings_of(
    inputs: CostInputs,
    prices: Prices,
    options: Sequence[OptionCost],
    turns: Sequence[Turning],
    today: date,
    preset: str | None,
) -> tuple[Finding, ...]:
    """Return all findings, the answer first."""
    ranked = fitting(options, inputs)
    return (
        *_cheapest(ranked, turns),
        *_cheapest_log(ranked),
        *_unfit(inputs, options),
        _network(inputs, options),
        *_small(inputs),
        _latency(),
        *_outbox(inputs, ranked),
        *_requests(options),
        _burden(),
        *_old(prices, today),
        *_assumed(preset),
    )


def _cheapest(ranked: Sequence[OptionCost], turns: Sequence[Turning]) -> list[Finding]:
    if not ranked:
        return [
            fail(
                "no way fits",
                "every option has a reason against it, see below",
                "raise latency-p99, set per-record to false, or split the workload",
            )
        ]
    best, rest = ranked[0], ranked[1:]
    cause = f"{best.label}: {_usd(best.total_usd)} a month"
    if rest:
        second = rest[0]
        cause += f"; {_by(best, second)}"
    return [ok("cheapest", cause, _until(turns))]


def _by(best: OptionCost, second: OptionCost) -> str:
    saved = second.total_usd - best.total_usd
    share = saved / second.total_usd if second.total_usd else 0.0
    kinds = sorted(
        [(second.kind_usd(kind) - best.kind_usd(kind), kind) for kind in _KINDS], reverse=True
    )
    by = [f"{kind} {_usd(one)}" for one, kind in kinds[:2] if one > 0]
    won = f" by {' and '.join(by)}" if by else ""
    return f"{_usd(saved)} ({share:.0%}) below {second.label}, which loses{won}"


def _until(turns: Sequence[Turning]) -> str:
    limits = [
        f"{word} {format_quantity(turn.at, unit)}: {turn.option.label}"
        + (", as this one does not fit there" if turn.unfit else "")
        for _, _, word, unit, turn in turns
        if turn is not None
    ]
    return "; ".join(limits) or "at no other volume or retention is another cheaper"


def _cheapest_log(ranked: Sequence[OptionCost]) -> list[Finding]:
    logs = [option for option in ranked if not option.batched]
    if not logs or logs[0] is ranked[0]:
        return []
    cause = f"{logs[0].label}: {_usd(logs[0].total_usd)} a month"
    if len(logs) > 1:
        cause += f"; {_by(logs[0], logs[1])}"
    fix = "--per-record true leaves out those that deliver files"
    return [ok("cheapest that delivers records", cause, fix)]


def _unfit(inputs: CostInputs, options: Sequence[OptionCost]) -> list[Finding]:
    fix = "its cost is shown, but it is not among the cheapest"
    against = [(option, reasons_against(option, inputs)) for option in options]
    return [
        warn(f"{option.label} does not fit", "; ".join(reasons), fix)
        for option, reasons in against
        if reasons
    ]


def _network(inputs: CostInputs, options: Sequence[OptionCost]) -> Finding:
    own = options[0]
    share = own.kind_usd("cross-zone") / own.total_usd if own.total_usd else 0.0
    load = workload_of(inputs)
    if inputs.rack_aware or not load.fetched_gb_month:
        fix = "consumers cross no zone more than they must"
    else:
        saved = load.fetched_gb_month / (load.fetched_gb_month + load.replicated_gb_month or 1)
        fix = f"racks (client.rack) take away up to {saved:.0%} of it"
    free = "is counted as free" if inputs.managed_replication_free else "is charged"
    return note(
        "traffic between zones",
        f"{_usd(own.kind_usd('cross-zone'))} a month, {share:.0%} of the local cluster:"
        f" replication {significant(load.replicated_gb_month)} GB, consumers"
        f" {significant(load.fetched_gb_month)} GB; a managed service's own replication {free}",
        fix,
    )


def _small(inputs: CostInputs) -> list[Finding]:
    found = []
    per_day = produced_bytes_s(inputs) * 86_400
    if per_day < SMALL_BYTES_PER_DAY:
        found.append(
            note(
                "little traffic",
                f"{format_quantity(per_day, 'bytes/day')} are gigabytes a day, not terabytes:"
                " what running a shared file system takes outweighs what it saves",
                "carry the payload on a log",
            )
        )
    records = workload_of(inputs).records_s
    if records < MANAGED_RECORDS_S:
        found.append(
            note(
                "few records",
                f"{significant(records)} records/s: below {MANAGED_RECORDS_S:,} an own cluster"
                " takes as much work as one for ten times that",
                "look at one broker, or a managed service",
            )
        )
    return found


def _latency() -> Finding:
    return note(
        "latency",
        "a diskless produce takes 200 to 500 ms at p99, local disks 5 to 15 ms; files come in"
        " batches",
        "--latency-p99 and --per-record leave out what is too slow",
    )


def _outbox(inputs: CostInputs, ranked: Sequence[OptionCost]) -> list[Finding]:
    found: list[Finding] = [
        note(
            "filesystem outbox",
            "needs a file system that producers and consumers all mount: not functions, not"
            " several regions; it has no order and no replay of its own beyond the pointers'",
            "without one, a log",
        )
    ]
    tiering = any([option.key == "outbox-fsx-tiering" for option in ranked[:_NAMED_MAX]])
    if tiering and inputs.retention <= INFREQUENT_DAYS:
        given = max(inputs.infrequent_share, inputs.archive_share) > 0
        cause = (
            f"data kept {inputs.retention:g} d never reaches the cheaper tiers, which begin"
            f" {INFREQUENT_DAYS} d after the last read"
        )
        found.append(
            warn(
                "Intelligent-Tiering",
                f"{cause}; the given shares differ",
                "leave infrequent-share and archive-share at -1",
            )
            if given
            else note("Intelligent-Tiering", cause)
        )
    return found


def _requests(options: Sequence[OptionCost]) -> list[Finding]:
    diskless = next(option for option in options if option.key == "diskless")
    found = []
    puts = diskless.size("puts_per_second")
    if puts > PREFIX_PUTS_S:
        found.append(
            warn(
                "PUTs of diskless brokers",
                f"{significant(puts)}/s; S3 takes {PREFIX_PUTS_S:,}/s below one prefix",
                "raise commit-interval, or take fewer and larger brokers",
            )
        )
    reading = diskless.line("consolidation_gets").usd
    if reading > diskless.kind_usd("requests") / 2 and reading > diskless.total_usd / 10:
        found.append(
            note(
                "consolidation",
                f"reads every extent by itself: {_usd(reading)} a month,"
                f" {reading / diskless.total_usd:.0%} of diskless",
                "fewer partitions, a longer commit-interval, or --consolidation false",
            )
        )
    return found


def _burden() -> Finding:
    return note(
        "work that is not billed",
        "rebalancing, sizes, upgrades, access and lag stay with you on MSK as well; a file"
        " system adds stale handles, mounts and capacity",
        "count it: operations-share is for own clusters alone",
    )


def _old(prices: Prices, today: date) -> list[Finding]:
    old = prices.older_than_a_year(today)
    if not old:
        return []
    names = ", ".join([price.key for price in old[:_NAMED_MAX]])
    more = f" and {len(old) - _NAMED_MAX} more" if len(old) > _NAMED_MAX else ""
    return [
        note(
            "old prices",
            f"{len(old)} are older than {OLD_DAYS} days: {names}{more}",
            "--write-prices FILE, correct them, --prices FILE",
        )
    ]


def _assumed(preset: str | None) -> list[Finding]:
    if preset is None:
        return []
    return [note(f"assumed: {name}", why) for name, why in PRESETS[preset].assumed.items()]


def _usd(value: float) -> str:
    return f"${value:,.0f}" if abs(value) >= 1 or not value else f"${value:.2g}"


def cost_plan(
    inputs: CostInputs, prices: Prices, today: date, *, preset: str | None = None
) -> Plan:
    """Return the monthly costs of every option; `today` determines the age of prices.

    Raises:
        ImpossiblePlan: inputs that contradict each other; their class checks that.
    """
    options = all_options(inputs, prices)
    turns = turnings(inputs, prices)
    return Plan(
        title="cost" if preset is None else f"cost: {preset}",
        inputs=inputs,
        figures=(
            *_totals(inputs, options),
            *_turns(fitting(options, inputs), turns),
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
    formula = f"total / {significant(gb_month)} GB a month before compression"
    return [
        *[
            Figure(_total_name(option), option.label, option.total_usd, "USD/month",
                   "the sum of its lines below", MODEL, group="total a month")
            for option in options
        ],
        *[
            Figure(f"{identifier(option.key)}_usd_per_gb", option.label,
                   option.total_usd / gb_month, "USD/GB", formula, MODEL, group="per GB produced")
            for option in options
        ],
    ]  # fmt: skip


def _turns(ranked: Sequence[OptionCost], turns: Sequence[Turning]) -> list[Figure]:
    group = "where the cheapest changes"
    return [
        Figure("cheapest_option", "cheapest that fits", ranked[0].key if ranked else None, "",
               "smallest total of those that can carry the workload", MODEL, group=group),
        *[
            Figure(name, label if turn is None else f"{label}: {turn.option.label}",
                   None if turn is None else turn.at, unit,
                   "nearest place where another total is smaller, by halving; - is nowhere", MODEL,
                   group=group)
            for name, label, _, unit, turn in turns
        ],
    ]  # fmt: skip


def _zones(inputs: CostInputs, prices: Prices) -> list[Figure]:
    load = workload_of(inputs)
    usd = prices["zone.gb"].usd
    gb_month, copies = significant(load.gb_month), significant(load.copies_across_zones)
    crossing = load.replicated_gb_month + load.fetched_gb_month + load.sent_gb_month
    rows: tuple[tuple[str, str, float, str, str], ...] = (
        ("replication_bytes_per_month", "replication", load.replicated_gb_month * GB,
         "bytes/month", f"{gb_month} GB × {copies} followers in other zones"),
        ("consumer_bytes_per_month", "consumers", load.fetched_gb_month * GB, "bytes/month",
         f"{gb_month} GB × {load.groups} groups × {load.reads_cross_zone:.3g}"),
        ("producer_bytes_per_month", "producers", load.sent_gb_month * GB, "bytes/month",
         f"{gb_month} GB × {load.writes_cross_zone:.3g}"),
        ("replication_usd_per_month", "cost of replication", load.replicated_gb_month * usd,
         "USD/month", f"replication × ${usd:g} a GB"),
        ("total_usd_per_month", "cost of all", crossing * usd, "USD/month",
         f"{significant(crossing)} GB × ${usd:g} a GB"),
    )  # fmt: skip
    return [
        Figure(f"cross_zone_{name}", label, value, unit, formula,
               "log and queue article, section 12b", group="traffic between zones, local cluster")
        for name, label, value, unit, formula in rows
    ]  # fmt: skip


def _bill(option: OptionCost) -> list[Figure]:
    return [
        *[replace(figure, group=option.label) for figure in option.sizes],
        *[
            Figure(f"{identifier(option.key)}_{line.name}_usd_per_month", line.label, line.usd,
                   "USD/month", line.formula, line.source, group=option.label)
            for line in option.lines
        ],
    ]  # fmt: skip


def _charts(inputs: CostInputs, prices: Prices, options: Sequence[OptionCost]) -> tuple[Chart, ...]:
    ranked = fitting(options, inputs) or list(options)
    chosen = ranked[0].key if inputs.option == "cheapest" else inputs.option
    moved = input_chart(inputs, prices, chosen)
    return (
        volume_chart(inputs, prices),
        retention_chart(inputs, prices),
        *([] if moved is None else [moved]),
    )
