"""Filesystem outbox on four file systems, and objects written by producers.

Files of `file-bytes` hold the payload; the log has a pointer to each. A file system charges for
stored bytes and provisioned throughput, so cost follows stored volume and not transferred bytes.
Throughput is for writes and reads together at the peak.

Intelligent-Tiering moves data by the time since its last read: after 30 days, and after 90. In a
steady state the share of data older than d days is (retention - d) / retention.

Source: the filesystem outbox article; AWS's API reference for the bounds of FSx for OpenZFS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock.planner.cost.inputs import OWN, CostInputs
from penstock.planner.cost.lines import Line, OptionCost, Prices, priced, size
from penstock.planner.cost.managed import provisioned_lines
from penstock.planner.cost.own import own_log
from penstock.planner.cost.workload import (
    MB,
    SECONDS,
    Workload,
    files_per_second,
    pointers_of,
    workload_of,
)
from penstock.planner.quantities import significant
from penstock.planner.results import Figure

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
    """Return shares of stored data in Frequent, Infrequent, and Archive Instant Access."""
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
    """Return the provisioned MB/s: as given, else writes and all reads at the peak."""
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
    room = f" / {1 - free:g} filled" if free else ""
    return priced(
        "storage", "storage", "storage", load.stored_gb / (1 - free), prices[key],
        f"{significant(load.gb_day)} GB a day × {load.retention_days:g} d{room}", ARTICLE,
    )  # fmt: skip


def _elastic(load: Workload, prices: Prices) -> list[Line]:
    return [
        _stored(load, prices, "efs.gb-month"),
        priced(
            "written", "written", "throughput", load.gb_month, prices["efs.elastic-written-gb"],
            f"{significant(load.gb_day)} GB a day × 30 d", ARTICLE,
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
    how = "by age" if by_age else "with the shares given"
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
            f" {inputs.tiering_requests_per_file:g} × {SECONDS:,} s; reads come from the SSD cache",
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
            f"{significant(load.gb_month)} GB × (1 + {load.groups} groups) × {share:.3g} of clients"
            " outside the primary's zone", ARTICLE,
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
            f"as many × {load.groups} groups", ARTICLE,
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
    return (f"{what} gives {most:,.0f} MB/s at most; this needs {found:,.0f}",)
