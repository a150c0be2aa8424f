"""Options of a cost plan, the points where the cheapest changes, and sensitivity to inputs.

**Outbox** on one of four file systems, or objects written by producers. Files of `file-bytes` hold
the payload, and a log has one pointer per file. A file system charges for stored bytes and for
provisioned throughput, so the cost depends on the stored volume more than on transferred bytes. The
provisioned throughput covers writes and reads together at the peak.

Intelligent-Tiering moves data to a cheaper tier 30 days after its last read, and again after 90
days. In a steady state, the share of data older than d days is (retention - d) / retention.

Source: the filesystem outbox article; AWS's API reference for the bounds of FSx for OpenZFS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Final

from penstock.base.settings import SettingInfo, describe
from penstock.planner.cost.inputs import (
    MB,
    OWN,
    SECONDS,
    CostInputs,
    Line,
    OptionCost,
    Prices,
    Workload,
    files_per_second,
    kept,
    pointers_of,
    priced,
    produced_bytes_s,
    scaled,
    size,
    workload_of,
)
from penstock.planner.cost.logs import (
    diskless,
    kinesis_on_demand,
    kinesis_provisioned,
    local,
    msk_express,
    msk_provisioned,
    msk_serverless,
    own_log,
    provisioned_lines,
    tiered,
)
from penstock.planner.quantities import ImpossiblePlan, significant
from penstock.planner.results import Chart, Curve, Figure, curves

ARTICLE: Final = "filesystem outbox article"
INFREQUENT_DAYS: Final = 30
ARCHIVE_DAYS: Final = 90
FSX_SSD_MBPS_MAX: Final = 10_240
FSX_TIERING_MBPS_MAX: Final = 20_000
FSX_MBPS_MIN: Final = 160
OBJECT_P99_MS: Final = 300.0


def outbox_options(inputs: CostInputs, prices: Prices) -> tuple[OptionCost, ...]:
    load = workload_of(inputs)
    return (
        _option(
            "outbox-efs-elastic", "outbox, EFS Elastic", _elastic(load, prices), inputs, prices
        ),
        _option(
            "outbox-efs-provisioned", "outbox, EFS Provisioned",
            _provisioned(load, inputs, prices), inputs, prices,
        ),
        _option(
            "outbox-fsx-ssd", "outbox, FSx SSD", _ssd(load, inputs, prices), inputs, prices,
            unfit=_beyond(load, inputs.fsx_throughput, FSX_SSD_MBPS_MAX, "FSx for OpenZFS on SSD"),
        ),
        _option(
            "outbox-fsx-tiering", "outbox, FSx Intelligent-Tiering",
            _tiering(load, inputs, prices), inputs, prices,
            unfit=_beyond(
                load, inputs.fsx_tiering_throughput, FSX_TIERING_MBPS_MAX, "Intelligent-Tiering"
            ),
        ),
        _option(
            "s3-direct", "S3, written by producers", _direct(load, inputs, prices), inputs, prices,
            latency_p99_ms=OBJECT_P99_MS,
        ),
    )  # fmt: skip


def shares(inputs: CostInputs) -> tuple[float, float, float]:
    """Return the shares of stored data in Frequent, Infrequent and Archive Instant Access."""
    archive = inputs.archive_share
    if archive == OWN:
        archive = max(0.0, inputs.retention - ARCHIVE_DAYS) / inputs.retention
        archive = min(archive, 1 - max(0.0, inputs.infrequent_share))
    infrequent = inputs.infrequent_share
    if infrequent == OWN:
        older = max(0.0, inputs.retention - INFREQUENT_DAYS) / inputs.retention
        infrequent = max(0.0, older - archive)
    return 1 - infrequent - archive, infrequent, archive


def throughput_mbps(load: Workload, given: float, least: float = 0.0) -> float:
    """Return the throughput in MB/s to provision on a file system, at least `least`.

    It is `given` if that is not 0, else writes and the reads of all groups at the peak.
    """
    return max(least, (given or load.peak_bytes_s * (1 + load.groups)) / MB)


def _throughput(load: Workload, given: float, prices: Prices, key: str, least: float = 0) -> Line:
    how = (
        "given"
        if given
        else f"peak {significant(load.peak_bytes_s / MB)} MB/s × (1 + {load.groups} groups)"
    )
    floor = f"; at least {least:g} MB/s" if least else ""
    return priced(
        "throughput", "provisioned throughput", "throughput",
        throughput_mbps(load, given, least), prices[key], how + floor, ARTICLE,
    )  # fmt: skip


def _stored(load: Workload, prices: Prices, key: str, free: float = 0.0) -> Line:
    room = f" / {1 - free:g} used" if free else ""
    return priced(
        "storage", "storage", "storage", load.stored_gb / (1 - free), prices[key],
        f"{significant(load.gb_day)} GB per day × {load.retention_days:g} d{room}", ARTICLE,
    )  # fmt: skip


def _elastic(load: Workload, prices: Prices) -> list[Line]:
    return [
        _stored(load, prices, "efs.gb-month"),
        priced(
            "written", "written", "throughput", load.gb_month, prices["efs.elastic-written-gb"],
            f"{significant(load.gb_day)} GB per day × 30 d", ARTICLE,
        ),
        priced(
            "read", "read", "throughput", load.read_gb_month, prices["efs.elastic-read-gb"],
            f"{significant(load.gb_month)} GB × {load.groups} groups", ARTICLE,
        ),
    ]  # fmt: skip


def _provisioned(load: Workload, inputs: CostInputs, prices: Prices) -> list[Line]:
    return [
        _stored(load, prices, "efs.gb-month"),
        _throughput(load, inputs.efs_throughput, prices, "efs.provisioned-mbps-month"),
    ]


def _ssd(load: Workload, inputs: CostInputs, prices: Prices) -> list[Line]:
    return [
        _stored(load, prices, "fsx.ssd-gb-month", inputs.disk_free),
        _throughput(load, inputs.fsx_throughput, prices, "fsx.mbps-month", FSX_MBPS_MIN),
        *_crossing(load, inputs, prices),
    ]


def _tiering(load: Workload, inputs: CostInputs, prices: Prices) -> list[Line]:
    tiers = zip(("frequent", "infrequent", "archive"), shares(inputs), strict=True)
    by_age = inputs.infrequent_share == OWN == inputs.archive_share
    how = "by age" if by_age else "as given"
    return [
        *[
            priced(
                tier, f"storage, {tier} access", "storage", load.stored_gb * share,
                prices[f"fsx.{tier}-gb-month"],
                f"{significant(load.stored_gb)} GB × {share:.3g} {how}", ARTICLE,
            )
            for tier, share in tiers
        ],
        _throughput(load, inputs.fsx_tiering_throughput, prices, "fsx.mbps-month", FSX_MBPS_MIN),
        priced(
            "requests", "requests", "requests",
            files_per_second(inputs) * inputs.tiering_requests_per_file * SECONDS / 1000,
            prices["fsx.tiering-thousand"],
            f"{significant(files_per_second(inputs))} files/s ×"
            f" {inputs.tiering_requests_per_file:g} requests × {SECONDS:,} s; reads are"
            " served by the SSD cache",
        ),
        *_crossing(load, inputs, prices),
    ]  # fmt: skip


def _crossing(load: Workload, inputs: CostInputs, prices: Prices) -> list[Line]:
    if inputs.outbox_same_zone or load.zones == 1:
        return []
    share = (load.zones - 1) / load.zones
    return [
        priced(
            "clients", "cross-zone: clients", "cross-zone",
            (load.gb_month + load.read_gb_month) * share, prices["zone.gb"],
            f"{significant(load.gb_month)} GB × (1 + {load.groups} groups) × {share:.3g}, the"
            " share of clients outside the primary's zone", ARTICLE,
        )
    ]  # fmt: skip


def _direct(load: Workload, inputs: CostInputs, prices: Prices) -> list[Line]:
    objects = files_per_second(inputs) * SECONDS / 1000
    return [
        _stored(load, prices, "object.gb-month"),
        priced(
            "puts", "PUTs", "requests", objects, prices["object.put-thousand"],
            f"{significant(load.gb_month)} GB / {inputs.file_bytes} bytes", ARTICLE,
        ),
        priced(
            "gets", "GETs", "requests", objects * load.groups, prices["object.get-thousand"],
            f"PUTs × {load.groups} groups", ARTICLE,
        ),
    ]  # fmt: skip


def _option(
    key: str,
    label: str,
    lines: Sequence[Line],
    inputs: CostInputs,
    prices: Prices,
    *,
    unfit: tuple[str, ...] = (),
    latency_p99_ms: float | None = None,
) -> OptionCost:
    return OptionCost(
        key=key,
        label=label,
        lines=(*lines, *_pointers(inputs, prices)),
        sizes=_sizes(key, inputs),
        unfit=unfit,
        latency_p99_ms=latency_p99_ms,
        batched=True,
    )


def _pointers(inputs: CostInputs, prices: Prices) -> list[Line]:
    if inputs.pointer_carrier == "existing":
        return []
    load = pointers_of(inputs)
    if inputs.pointer_carrier == "penstock":
        lines = own_log(load, inputs, prices, inputs.pointer_broker_vcpus)
    else:
        lines = provisioned_lines(
            load, inputs, prices, given=inputs.pointer_shards, record_bytes=inputs.pointer_bytes
        )
    return [
        replace(line, name=f"pointer_{line.name}", label=f"pointers: {line.label}")
        for line in lines
    ]


def _sizes(key: str, inputs: CostInputs) -> tuple[Figure, ...]:
    files, pointers = files_per_second(inputs), pointers_of(inputs)
    return (
        size(
            key, "files_per_second", "files", files, "files/s",
            f"{significant(workload_of(inputs).bytes_s / MB)} MB/s / {inputs.file_bytes} bytes",
        ),
        size(
            key, "pointer_bytes_per_second", "pointers", pointers.bytes_s, "bytes/s",
            f"{significant(files)} files/s × {inputs.pointer_bytes} bytes", ARTICLE,
        ),
    )  # fmt: skip


def _beyond(load: Workload, given: float, most: float, what: str) -> tuple[str, ...]:
    found = throughput_mbps(load, given)
    if found <= most:
        return ()
    return (f"{what} allows at most {most:,.0f} MB/s, but {found:,.0f} MB/s are needed",)


VOLUME_MIN: Final = 1e8
VOLUME_MAX: Final = 1e18
"""Bounds of the search for a volume with another cheapest option, in bytes per day."""
RETENTION_MIN_DAYS: Final = 1 / 24
RETENTION_MAX_DAYS: Final = 3650.0
_STEP: Final = 10 ** (1 / 6)
_STEPS_MAX: Final = 80
_HALVINGS: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Volume or retention beyond which another option is the cheapest.

    `at` is in bytes per day or in days. `unfit` means that the previous cheapest option does not
    fit there.
    """

    at: float
    option: OptionCost
    unfit: bool = False


def all_options(inputs: CostInputs, prices: Prices) -> tuple[OptionCost, ...]:
    return (
        local(inputs, prices),
        tiered(inputs, prices),
        diskless(inputs, prices),
        *outbox_options(inputs, prices),
        kinesis_provisioned(inputs, prices),
        kinesis_on_demand(inputs, prices),
        msk_provisioned(inputs, prices),
        msk_express(inputs, prices),
        msk_serverless(inputs, prices),
    )


def reasons_against(option: OptionCost, inputs: CostInputs) -> tuple[str, ...]:
    found = list(option.unfit)
    slow = option.latency_p99_ms
    if inputs.latency_p99 and slow is not None and slow > inputs.latency_p99:
        found.append(
            f"its produce latency is up to {slow:g} ms at p99, but latency-p99 is"
            f" {inputs.latency_p99:g} ms"
        )
    if inputs.per_record and option.batched:
        found.append("it delivers files instead of records, but per-record is true")
    return tuple(found)


def fitting(options: Sequence[OptionCost], inputs: CostInputs) -> list[OptionCost]:
    found = [option for option in options if not reasons_against(option, inputs)]
    return sorted(found, key=lambda option: option.total_usd)


def volume_turn(inputs: CostInputs, prices: Prices, *, up: bool) -> Turn | None:
    """Return the nearest volume in bytes per day, larger or smaller, with another cheapest
    option.
    """
    now = produced_bytes_s(inputs) * 86_400
    end = VOLUME_MAX if up else VOLUME_MIN
    return _turn(lambda at: scaled(inputs, at / now), prices, now, end)


def retention_turn(inputs: CostInputs, prices: Prices, *, up: bool) -> Turn | None:
    """Return the nearest longer or shorter retention, in days, with another cheapest option."""
    end = RETENTION_MAX_DAYS if up else RETENTION_MIN_DAYS
    return _turn(lambda at: kept(inputs, at), prices, inputs.retention, end)


def _turn(
    vary: Callable[[float], CostInputs], prices: Prices, start: float, end: float
) -> Turn | None:
    """Return the nearest point from `start` towards `end` at which another option is the cheapest.

    Steps grow until the cheapest option changes; then the last step is halved repeatedly. `vary`
    returns the inputs at a point.
    """

    def ranked(at: float) -> list[OptionCost]:
        varied = vary(at)
        return fitting(all_options(varied, prices), varied)

    def cheapest(at: float) -> OptionCost | None:
        return next(iter(ranked(at)), None)

    best = cheapest(start)
    same, step = start, _STEP if end > start else 1 / _STEP
    for _ in range(_STEPS_MAX):
        other = same * step
        if (other > end) if step > 1 else (other < end):
            return None
        found = cheapest(other)
        if best is None or found is None:
            return None
        if found.key != best.key:
            turn = _halved(cheapest, best.key, same, other, found)
            fits = best.key in [option.key for option in ranked(turn.at)]
            return replace(turn, unfit=not fits)
        same = other
    return None


def _halved(
    cheapest: Callable[[float], OptionCost | None],
    key: str,
    same: float,
    other: float,
    found: OptionCost,
) -> Turn:
    for _ in range(_HALVINGS):
        middle = sqrt(same * other)
        one = cheapest(middle)
        if one is None or one.key == key:
            same = middle
        else:
            other, found = middle, one
    return Turn(at=other, option=found)


SWING: Final = 0.5
"""Share by which each input is lowered and raised."""
BARS_MAX: Final = 10
SHOWN_SHARE: Final = 0.001
"""Share of the total below which the effect of an input is not shown."""
_POINTS_EACH_WAY: Final = 10
_VOLUME_STEP: Final = 10 ** (3 / _POINTS_EACH_WAY)
_RETENTION_DAYS: Final = (
    1 / 24, 1 / 8, 1 / 4, 1 / 2, 1, 2, 3, 5, 7, 10, 14, 21, 30, 45, 60, 90, 120, 180, 270, 365,
)  # fmt: skip
_SKIPPED: Final = frozenset({"rate", "latency-p99"})


def volume_chart(inputs: CostInputs, prices: Prices) -> Chart:
    now = produced_bytes_s(inputs) * 86_400
    steps = range(-_POINTS_EACH_WAY, _POINTS_EACH_WAY + 1)
    volumes = [now * _VOLUME_STEP**step for step in steps]
    return Chart(
        title="cost by volume; given capacities change in proportion", x_label="bytes a day",
        y_label="USD a month", x_log=True, y_log=True, marks={"this workload": now},
        curves=_curves(volumes, lambda at: scaled(inputs, at / now), prices),
    )  # fmt: skip


def retention_chart(inputs: CostInputs, prices: Prices) -> Chart:
    days = sorted({*_RETENTION_DAYS, inputs.retention})
    return Chart(
        title="cost by retention", x_label="days kept", y_label="USD a month", x_log=True,
        y_log=True, marks={"this workload": inputs.retention},
        curves=_curves(days, lambda at: kept(inputs, at), prices),
    )  # fmt: skip


def _curves(
    values: Sequence[float], vary: Callable[[float], CostInputs], prices: Prices
) -> tuple[Curve, ...]:
    rows = zip(*[all_options(vary(at), prices) for at in values], strict=True)
    return curves(values, {row[0].label: [option.total_usd for option in row] for row in rows})


def input_chart(inputs: CostInputs, prices: Prices, key: str) -> Chart | None:
    """Return a chart of how one option's total changes by ±50 % of each input, largest first.

    Returns None if no change reaches `SHOWN_SHARE` of the total.
    """
    before = _total(inputs, prices, key)
    found: list[tuple[str, float, float]] = []
    for info in describe(CostInputs):
        if info.name in _SKIPPED or info.type_name not in ("int", "float"):
            continue
        down, up = (
            _moved(inputs, prices, key, info, factor) - before for factor in (1 - SWING, 1 + SWING)
        )
        if max(abs(down), abs(up)) > SHOWN_SHARE * before:
            found.append((info.name, down, up))
    if not found:
        return None
    found.sort(key=lambda row: -max(abs(row[1]), abs(row[2])))
    del found[BARS_MAX:]
    names, downs, ups = zip(*found, strict=True)
    return Chart(
        title=f"{key}: change of the total by ±50 % of an input", x_label="", y_label="USD a month",
        kind="bar", curves=curves(names, {"-50 %": downs, "+50 %": ups}),
    )  # fmt: skip


def _total(inputs: CostInputs, prices: Prices, key: str) -> float:
    return {option.key: option.total_usd for option in all_options(inputs, prices)}[key]


def _moved(inputs: CostInputs, prices: Prices, key: str, info: SettingInfo, factor: float) -> float:
    """Return the total with one input multiplied by `factor`, within its bounds; integers are
    rounded.
    """
    value = getattr(inputs, info.attribute)
    if value <= 0:
        return _total(inputs, prices, key)
    if info.name == "bytes-per-day" and inputs.rate:
        changed: dict[str, Any] = {"bytes_per_day": inputs.rate * 86_400 * factor, "rate": 0.0}
    else:
        moved = value * factor
        if info.minimum is not None:
            moved = max(moved, info.minimum)
        if info.maximum is not None:
            moved = min(moved, info.maximum)
        changed = {info.attribute: round(moved) if info.type_name == "int" else moved}
    try:
        return _total(replace(inputs, **changed), prices, key)
    except ImpossiblePlan:
        return _total(inputs, prices, key)
