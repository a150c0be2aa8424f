"""Self-managed clusters: replicated local disks, tiered disks, and diskless brokers.

**Replicated.** Retention dominates and replication multiplies: bytes a day × days × RF. Every
follower in another zone receives every byte across zones, as do consumers of a leader elsewhere.

**Tiered** (KIP-405). Local disks hold `local-retention`; an object store holds the rest once.

**Diskless.** Brokers of a zone gather `commit-interval` or `object-bytes`, whichever comes first,
so there are as many PUTs as brokers × intervals until objects fill up. Clients stay in their zone,
and nothing is replicated between zones: every partition has a broker in each. So an object holds
extents of partitions × zones / brokers, and the brokers of the same partitions in each other zone
(chosen independently, by rendezvous hashing) read it once each, for any number of groups.
Consolidation reads every extent by its own range, and makes a segment of `sealed-bytes`, or of
`diskless.consolidation.min.extents` where extents are small.

Source: the log and queue article, sections 4g, 12a to 12c; KIP-405; Penstock's
`broker/diskless.py` and `diskless/consolidation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from penstock.planner.cost.inputs import DISKLESS, SEGMENT_BYTES, CostInputs
from penstock.planner.cost.lines import Line, OptionCost, Price, Prices, operations, priced, size
from penstock.planner.cost.workload import GB, HOURS, MB, SECONDS, Workload, workload_of
from penstock.planner.quantities import significant
from penstock.planner.results import Figure

LOCAL_P99_MS: Final = 15.0
DISKLESS_P99_MS: Final = 500.0
_STORAGE: Final = "log and queue article, section 12a"
_ZONES: Final = "log and queue article, section 12b"


def broker_count(load: Workload, broker_rate: float, *, copies: int) -> int:
    """Return the brokers for the peak: as many in each zone, and at least one for each copy."""
    target = max(copies, ceil(load.peak_bytes_s / broker_rate))
    return ceil(target / load.zones) * load.zones


def brokers_figure(option: str, count: int, load: Workload, broker_rate: float) -> Figure:
    return size(
        option, "brokers", "brokers", count, "",
        f"peak {significant(load.peak_bytes_s / 1e6)} MB/s / {significant(broker_rate / 1e6)} MB/s"
        f" each; at least one a copy; as many in each of {load.zones} zones",
    )  # fmt: skip


def compute(count: int, vcpus: int, prices: Prices, key: str = "compute.vcpu-hour") -> Line:
    return priced(
        "compute", "brokers", "compute", count * vcpus * HOURS, prices[key],
        f"{count} brokers × {vcpus} vCPU × {HOURS} h",
    )  # fmt: skip


def cross_zone(load: Workload, prices: Prices, *, replication_free: bool = False) -> list[Line]:
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
    factor = load.replication_factor
    return priced(
        "disk", label, "storage", load.gb_day * days * factor / (1 - disk_free), price,
        f"{significant(load.gb_day)} GB a day × {days:g} d × RF {factor}"
        f" / {1 - disk_free:g} filled", _STORAGE,
    )  # fmt: skip


def own_log(load: Workload, inputs: CostInputs, prices: Prices, vcpus: int) -> list[Line]:
    count = broker_count(load, inputs.broker_rate, copies=load.replication_factor)
    return [
        compute(count, vcpus, prices),
        disk(load, load.retention_days, inputs.disk_free, prices["disk.gb-month"]),
        *cross_zone(load, prices),
    ]


def local(inputs: CostInputs, prices: Prices) -> OptionCost:
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


_SPLIT = "log and queue article, section 12c"
_SETTINGS = "Penstock: DisklessSettings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests per second to the object store. `readers` and `extents` are per object."""

    brokers: int
    objects_s: float
    readers: float
    extents: float
    consolidated: bool
    sealed_s: float

    @property
    def puts_s(self) -> float:
        return self.objects_s + self.sealed_s

    @property
    def fetch_gets_s(self) -> float:
        return self.objects_s * self.readers

    @property
    def consolidation_gets_s(self) -> float:
        return self.objects_s * self.extents if self.consolidated else 0.0


def requests_of(inputs: CostInputs, load: Workload) -> Requests:
    count = broker_count(load, inputs.diskless_broker_rate, copies=1)
    ticks_s = count * 1000 / inputs.commit_interval
    objects_s = max(load.bytes_s / inputs.object_bytes, min(ticks_s, load.records_s))
    served = max(1.0, inputs.partitions * load.zones / count)
    extents = max(1.0, min(served, load.records_s / objects_s))
    readers = (load.zones - 1) * min(count / load.zones, extents) if load.groups else 0.0
    by_bytes = load.bytes_s / inputs.sealed_bytes
    by_extents = objects_s * extents / DISKLESS.consolidation_min_extents
    return Requests(
        brokers=count,
        objects_s=objects_s,
        readers=readers,
        extents=extents,
        consolidated=inputs.consolidation,
        sealed_s=max(by_bytes, by_extents) if inputs.consolidation else 0.0,
    )


def diskless(inputs: CostInputs, prices: Prices) -> OptionCost:
    load = workload_of(inputs)
    asked = requests_of(inputs, load)
    lines = [
        compute(asked.brokers, inputs.diskless_broker_vcpus, prices),
        priced(
            "objects", "object store", "storage", load.stored_gb, prices["object.gb-month"],
            f"{significant(load.gb_day)} GB a day × {load.retention_days:g} d, one copy", _SPLIT,
        ),
        *_requests(inputs, asked, prices),
        priced(
            "database", "PostgreSQL", "database", inputs.database_vcpus * HOURS,
            prices["database.vcpu-hour"], f"{inputs.database_vcpus} vCPU × {HOURS} h",
        ),
        priced(
            "cache", "cache disks", "cache", load.gb_day / 24 * inputs.cache_time * load.zones,
            prices["disk.gb-month"],
            f"{significant(load.gb_day / 24)} GB an hour × {inputs.cache_time:g} h"
            f" × {load.zones} zones", _SPLIT,
        ),
    ]  # fmt: skip
    return OptionCost(
        key="diskless",
        label="diskless",
        lines=(*lines, operations(lines, inputs.operations_share)),
        sizes=(
            brokers_figure("diskless", asked.brokers, load, inputs.diskless_broker_rate),
            size(
                "diskless", "object_bytes", "size of an object", load.bytes_s / asked.objects_s,
                "bytes",
                f"{significant(load.bytes_s / MB)} MB/s / {significant(asked.objects_s)} objects/s",
            ),
            size(
                "diskless", "puts_per_second", "PUTs", asked.puts_s, "requests/s",
                f"objects: the larger of bytes / {inputs.object_bytes} and {asked.brokers} brokers"
                f" / {inputs.commit_interval:g} ms; segments: of {inputs.sealed_bytes} bytes or"
                f" {DISKLESS.consolidation_min_extents} extents",
                _SETTINGS,
            ),
            size(
                "diskless", "extents_per_object", "extents in an object", asked.extents, "",
                f"the smaller of {inputs.partitions} partitions × {load.zones} zones /"
                f" {asked.brokers} brokers and of the object's messages",
            ),
            size(
                "diskless", "gets_per_second", "GETs",
                asked.fetch_gets_s + asked.consolidation_gets_s, "requests/s",
                f"{significant(asked.fetch_gets_s)} of consumers +"
                f" {significant(asked.consolidation_gets_s)} of consolidation",
            ),
        ),
        latency_p99_ms=DISKLESS_P99_MS,
    )  # fmt: skip


def _requests(inputs: CostInputs, asked: Requests, prices: Prices) -> list[Line]:
    month = SECONDS / 1000
    return [
        priced(
            "puts", "PUTs", "requests", asked.puts_s * month, prices["object.put-thousand"],
            f"({significant(asked.objects_s)} objects/s + {significant(asked.sealed_s)} segments/s)"
            f" × {SECONDS:,} s", _SETTINGS,
        ),
        priced(
            "fetch_gets", "GETs of consumers", "requests",
            asked.fetch_gets_s * month, prices["object.get-thousand"],
            f"{significant(asked.objects_s)} objects/s × {significant(asked.readers)} brokers of"
            f" other zones × {SECONDS:,} s",
        ),
        priced(
            "consolidation_gets", "GETs of consolidation", "requests",
            asked.consolidation_gets_s * month, prices["object.get-thousand"],
            f"{significant(asked.objects_s)} objects/s × {significant(asked.extents)} extents ×"
            f" {SECONDS:,} s" if asked.consolidated else "consolidation is off",
        ),
    ]  # fmt: skip
