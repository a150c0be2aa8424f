"""Cost plan: bills of all options, findings, traffic between zones, and charts.

Findings state the limits that the sources give. A diskless produce takes 200 to 500 ms at p99, one
to local disks 5 to 15 ms. The outbox needs a large volume, one region, and clients that mount a
file system. A managed service still needs operators.

Source: the filesystem outbox article; the log and queue article.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Final, NamedTuple, get_args

from penstock.planner.cost.inputs import (
    GB,
    MODEL,
    OLD_DAYS,
    PRESETS,
    SECONDS,
    CostInputs,
    Kind,
    OptionCost,
    Prices,
    identifier,
    produced_bytes_s,
    workload_of,
)
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
"""Volume in bytes per day below which a file system costs more work than it saves."""
MANAGED_RECORDS_S: Final = 100_000
PREFIX_PUTS_S: Final = 3500
_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_NAMED_MAX: Final = 3


class Turning(NamedTuple):
    """Nearest point in one direction at which another option becomes the cheapest.

    `turn` is None if there is no such point within the bounds of the search.
    """

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
        Turning("cheapest_from_bytes_per_day", "with less volume", "volume below", day, less),
        Turning("cheapest_to_bytes_per_day", "with more volume", "volume above", day, more),
        Turning("cheapest_from_retention_d", "kept shorter", "retention below", days, shorter),
        Turning("cheapest_to_retention_d", "kept longer", "retention above", days, longer),
    )


def findings_of(
    inputs: CostInputs,
    prices: Prices,
    options: Sequence[OptionCost],
    turns: Sequence[Turning],
    today: date,
    preset: str | None,
) -> tuple[Finding, ...]:
    """Return all findings; the cheapest option is the first."""
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
                "no option fits",
                "each option has a reason against it; see the findings below",
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
    won = f" for {' and '.join(by)}" if by else ""
    return f"{_usd(saved)} ({share:.0%}) less than {second.label}, which costs more{won}"


def _until(turns: Sequence[Turning]) -> str:
    limits = [
        f"{word} {format_quantity(turn.at, unit)}: {turn.option.label}"
        + (", because the currently cheapest does not fit there" if turn.unfit else "")
        for _, _, word, unit, turn in turns
        if turn is not None
    ]
    return "; ".join(limits) or "no other volume or retention has another cheapest option"


def _cheapest_log(ranked: Sequence[OptionCost]) -> list[Finding]:
    logs = [option for option in ranked if not option.batched]
    if not logs or logs[0] is ranked[0]:
        return []
    cause = f"{logs[0].label}: {_usd(logs[0].total_usd)} a month"
    if len(logs) > 1:
        cause += f"; {_by(logs[0], logs[1])}"
    fix = "--per-record true excludes options that deliver files"
    return [ok("cheapest option that delivers records", cause, fix)]


def _unfit(inputs: CostInputs, options: Sequence[OptionCost]) -> list[Finding]:
    fix = "its cost is shown, but it cannot be the cheapest"
    against = [(option, reasons_against(option, inputs)) for option in options]
    return [
        warn(f"{option.label} does not meet the requirements", "; ".join(reasons), fix)
        for option, reasons in against
        if reasons
    ]


def _network(inputs: CostInputs, options: Sequence[OptionCost]) -> Finding:
    own = options[0]
    share = own.kind_usd("cross-zone") / own.total_usd if own.total_usd else 0.0
    load = workload_of(inputs)
    if inputs.rack_aware or not load.fetched_gb_month:
        fix = "consumers cross zones only if their zone has no replica"
    else:
        saved = load.fetched_gb_month / (load.fetched_gb_month + load.replicated_gb_month or 1)
        fix = f"client.rack on consumers avoids up to {saved:.0%} of this traffic"
    free = "is free" if inputs.managed_replication_free else "is charged"
    return note(
        "traffic between zones",
        f"{_usd(own.kind_usd('cross-zone'))} a month, {share:.0%} of the local cluster's"
        f" cost: replication {significant(load.replicated_gb_month)} GB, consumers"
        f" {significant(load.fetched_gb_month)} GB. Replication within a managed service"
        f" {free}",
        fix,
    )


def _small(inputs: CostInputs) -> list[Finding]:
    found = []
    per_day = produced_bytes_s(inputs) * 86_400
    if per_day < SMALL_BYTES_PER_DAY:
        found.append(
            note(
                "little traffic",
                f"{format_quantity(per_day, 'bytes/day')} is less than"
                f" {format_quantity(SMALL_BYTES_PER_DAY, 'bytes/day')}: a shared file system"
                " would cost more work than it saves",
                "write the payload to a log",
            )
        )
    records = workload_of(inputs).records_s
    if records < MANAGED_RECORDS_S:
        found.append(
            note(
                "few records",
                f"{significant(records)} records/s: below {MANAGED_RECORDS_S:,}, a"
                " self-managed cluster needs as much work as one for ten times the load",
                "consider one broker, or a managed service",
            )
        )
    return found


def _latency() -> Finding:
    return note(
        "latency",
        "a diskless produce takes 200 to 500 ms at p99, one to local disks 5 to 15 ms; an"
        " outbox delivers files in batches",
        "set --latency-p99 or --per-record to exclude slow options",
    )


def _outbox(inputs: CostInputs, ranked: Sequence[OptionCost]) -> list[Finding]:
    found: list[Finding] = [
        note(
            "filesystem outbox",
            "all producers and consumers must mount one file system, so functions and"
            " several regions are excluded; order and replay are only those of the pointers",
            "without such a file system, use a log",
        )
    ]
    tiering = any([option.key == "outbox-fsx-tiering" for option in ranked[:_NAMED_MAX]])
    if tiering and inputs.retention <= INFREQUENT_DAYS:
        given = max(inputs.infrequent_share, inputs.archive_share) > 0
        cause = (
            f"data with a retention of {inputs.retention:g} d never reaches the cheaper"
            f" tiers, which begin {INFREQUENT_DAYS} d after the last read"
        )
        found.append(
            warn(
                "Intelligent-Tiering",
                f"{cause}; but infrequent-share or archive-share is above 0",
                "set infrequent-share and archive-share to -1",
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
                f"{significant(puts)} PUTs/s; S3 allows {PREFIX_PUTS_S:,}/s for one prefix",
                "raise commit-interval, or use fewer and larger brokers",
            )
        )
    reading = diskless.line("consolidation_gets").usd
    if reading > diskless.kind_usd("requests") / 2 and reading > diskless.total_usd / 10:
        found.append(
            note(
                "consolidation",
                f"each extent is read by its own request: {_usd(reading)} a month,"
                f" {reading / diskless.total_usd:.0%} of the cost of diskless",
                "use fewer partitions, a longer commit-interval, or --consolidation false",
            )
        )
    return found


def _burden() -> Finding:
    return note(
        "work that no bill shows",
        "rebalancing, sizing, upgrades, access control and lag remain your work, also on"
        " MSK; a file system adds stale handles, mounts and capacity",
        "add it yourself: operations-share applies only to self-managed clusters",
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
            f"{len(old)} prices are older than {OLD_DAYS} days: {names}{more}",
            "write them to a file with --write-prices FILE, correct it, and pass --prices FILE",
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
    """Return the plan with the monthly cost of every option.

    `today` determines the age of prices. `preset` is the name of the scenario that the inputs came
    from.

    Raises:
        ImpossiblePlan: the inputs contradict each other; raised by their class.
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
    formula = f"total / {significant(gb_month)} GB per month before compression"
    return [
        *[
            Figure(_total_name(option), option.label, option.total_usd, "USD/month",
                   "the sum of its lines below", MODEL, group="total per month")
            for option in options
        ],
        *[
            Figure(f"{identifier(option.key)}_usd_per_gb", option.label,
                   option.total_usd / gb_month, "USD/GB", formula, MODEL, group="per GB produced")
            for option in options
        ],
    ]  # fmt: skip


def _turns(ranked: Sequence[OptionCost], turns: Sequence[Turning]) -> list[Figure]:
    group = "where the cheapest option changes"
    return [
        Figure("cheapest_option", "cheapest fitting option", ranked[0].key if ranked else None, "",
               "smallest total of the options that can carry the workload", MODEL, group=group),
        *[
            Figure(name, label if turn is None else f"{label}: {turn.option.label}",
                   None if turn is None else turn.at, unit,
                   "nearest point where another option has a smaller total, found by halving; -"
                   " means none", MODEL,
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
         f"{gb_month} GB × {load.groups} groups × {load.reads_cross_zone:.3g} of reads"),
        ("producer_bytes_per_month", "producers", load.sent_gb_month * GB, "bytes/month",
         f"{gb_month} GB × {load.writes_cross_zone:.3g} of writes"),
        ("replication_usd_per_month", "cost of replication", load.replicated_gb_month * usd,
         "USD/month", f"replication × ${usd:g} per GB"),
        ("total_usd_per_month", "cost of all", crossing * usd, "USD/month",
         f"{significant(crossing)} GB × ${usd:g} per GB"),
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
