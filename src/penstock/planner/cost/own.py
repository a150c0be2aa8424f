"""Clusters of one's own: replicated local disks, local disks with tiers, and diskless brokers.

**Replicated.** Retention dominates and replication multiplies: bytes a day × days × RF. Every
follower in another zone takes every byte across; so do consumers whose leader is elsewhere.

**Tiered** (KIP-405). Local disks hold `local-retention`; the rest lies in an object store once.

**Diskless.** Brokers of a zone gather `commit-interval` or `object-bytes`, whichever comes first,
so there are as many PUTs as brokers × intervals until objects fill up. Clients stay in their zone,
and nothing is replicated between zones: every partition has a broker in each. So an object holds
extents of partitions × zones / brokers, and the brokers of the same partitions in each other zone
(chosen independently, by rendezvous hashing) read it once each, whatever the number of groups.
Consolidation reads every extent by a range of its own, and makes a segment of `sealed-bytes`, or of
`diskless.consolidation.min.extents` where extents are small.

Source: the log and queue article, sections 4g, 12a to 12c; KIP-405; Penstock's
`broker/diskless.py` and `diskless/consolidation`.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from penstock.planner.cost.inputs import SEGMENT_BYTES, CostInputs
from penstock.planner.cost.lines import Line, OptionCost, operations, priced, size
from penstock.planner.cost.prices import Price, Prices
from penstock.planner.cost.workload import GB, HOURS, SECONDS, Workload, workload_of
from penstock.planner.quantities import significant
from penstock.planner.results import Figure

LOCAL_P99_MS: Final = 15.0
DISKLESS_P99_MS: Final = 500.0
_STORAGE: Final = "log and queue article, section 12a"
_ZONES: Final = "log and queue article, section 12b"


def broker_count(load: Workload, broker_rate: float, *, copies: int) -> int:
    """Brokers for the peak: as many in each zone, and at least one for each copy."""
    wanted = max(copies, ceil(load.peak_bytes_s / broker_rate))
    return ceil(wanted / load.zones) * load.zones


def brokers_figure(option: str, count: int, load: Workload, broker_rate: float) -> Figure:
    """The number of brokers, explained."""
    return size(
        option, "brokers", "brokers", count, "",
        f"peak {significant(load.peak_bytes_s / 1e6)} MB/s / {significant(broker_rate / 1e6)} MB/s"
        f" each; at least one a copy; as many in each of {load.zones} zones",
    )  # fmt: skip


def compute(count: int, vcpus: int, prices: Prices, key: str = "compute.vcpu-hour") -> Line:
    """Brokers' hours."""
    return priced(
        "compute", "brokers", "compute", count * vcpus * HOURS, prices[key],
        f"{count} brokers × {vcpus} vCPU × {HOURS} h",
    )  # fmt: skip


def cross_zone(load: Workload, prices: Prices, *, replication_free: bool = False) -> list[Line]:
    """What replication, consumers and producers take across zones."""
    price = prices["zone.gb"]
    copies = 0.0 if replication_free else load.copies_across_zones
    free = "free within the managed service" if replication_free else "followers in other zones"
    lines = [
        priced(
            "replication", "cross-zone: replication", "cross-zone", load.gb_month * copies, price,
            f"{significant(load.gb_month)} GB × {significant(copies)} {free}", _ZONES,
        ),
        priced(
            "fetch", "cross-zone: consumers", "cross-zone", load.fetched_gb_month, price,
            f"{significant(load.gb_month)} GB × {load.groups} groups × {load.reads_cross_zone:.3g}"
            " of reads", _ZONES,
        ),
    ]  # fmt: skip
    if load.sent_gb_month:
        lines.append(
            priced(
                "produce", "cross-zone: producers", "cross-zone", load.sent_gb_month, price,
                f"{significant(load.gb_month)} GB × {load.writes_cross_zone:.3g} of writes",
            )
        )  # fmt: skip
    return lines


def disk(
    load: Workload, days: float, disk_free: float, price: Price, label: str = "local disks"
) -> Line:
    """Replicated disks that hold `days`."""
    factor = load.replication_factor
    return priced(
        "disk", label, "storage", load.gb_day * days * factor / (1 - disk_free), price,
        f"{significant(load.gb_day)} GB a day × {days:g} d × RF {factor}"
        f" / {1 - disk_free:g} filled", _STORAGE,
    )  # fmt: skip


def own_log(load: Workload, inputs: CostInputs, prices: Prices, vcpus: int) -> list[Line]:
    """Brokers, disks and cross-zone traffic of a replicated log."""
    count = broker_count(load, inputs.broker_rate, copies=load.replication_factor)
    return [
        compute(count, vcpus, prices),
        disk(load, load.retention_days, inputs.disk_free, prices["disk.gb-month"]),
        *cross_zone(load, prices),
    ]


def local(inputs: CostInputs, prices: Prices) -> OptionCost:
    """Penstock or Kafka on own brokers, replicated."""
    load = workload_of(inputs)
    lines = own_log(load, inputs, prices, inputs.broker_vcpus)
    count = broker_count(load, inputs.broker_rate, copies=load.replication_factor)
    disk_gb = load.stored_gb * load.replication_factor
    return OptionCost(
        key="local",
        label="local, replicated",
        lines=(*lines, operations(lines, inputs.operations_share)),
        sizes=(
            brokers_figure("local", count, load, inputs.broker_rate),
            size(
                "local", "stored_bytes", "data on disks", disk_gb * GB, "bytes",
                f"{significant(load.gb_day)} GB a day × {load.retention_days:g} d"
                f" × RF {load.replication_factor}, before free space", _STORAGE,
            ),
        ),
        latency_p99_ms=LOCAL_P99_MS,
    )  # fmt: skip


def tiered(inputs: CostInputs, prices: Prices) -> OptionCost:
    """Kafka with remote storage: local disks for the newest data, an object store for the rest."""
    load = workload_of(inputs)
    near = min(inputs.local_retention, inputs.retention)
    far_gb = load.gb_day * (inputs.retention - near)
    count = broker_count(load, inputs.broker_rate, copies=load.replication_factor)
    moved = 1 - near / inputs.retention
    puts = load.bytes_s * SECONDS / SEGMENT_BYTES if moved else 0.0
    lines = [
        compute(count, inputs.broker_vcpus, prices),
        disk(load, near, inputs.disk_free, prices["disk.gb-month"]),
        priced(
            "objects", "object store", "storage", far_gb, prices["object.gb-month"],
            f"{significant(load.gb_day)} GB a day × ({inputs.retention:g} - {near:g}) d, one copy",
            _STORAGE,
        ),
        priced(
            "requests", "uploads", "requests", puts / 1000, prices["object.put-thousand"],
            f"{significant(load.gb_month)} GB / segment.bytes {SEGMENT_BYTES}; reads of old data"
            " are not counted", "KIP-405",
        ),
        *cross_zone(load, prices),
    ]  # fmt: skip
    return OptionCost(
        key="tiered",
        label="tiered (KIP-405)",
        lines=(*lines, operations(lines, inputs.operations_share)),
        sizes=(
            brokers_figure("tiered", count, load, inputs.broker_rate),
            size(
                "tiered", "moved_percent", "data moved to objects", 100 * moved, "%",
                f"1 - {near:g} d / {inputs.retention:g} d", _STORAGE,
            ),
        ),
        latency_p99_ms=LOCAL_P99_MS,
    )  # fmt: skip
