"""Costs of logs: self-managed clusters (replicated, tiered, diskless) and managed services.

**Replicated.** The largest cost is storage: bytes per day × days × replication factor. Every
follower in another zone receives every byte across zones. So does every consumer that reads from a
leader in another zone.

**Tiered** (KIP-405). Local disks hold the last `local-retention`; an object store holds older data
once.

**Diskless.** Each broker collects data for `commit-interval` or until `object-bytes`, whichever
comes first, and then writes an object. Until objects fill up, there are brokers × intervals PUTs.
Every partition has a broker in each zone, so clients stay in their zone and nothing is replicated
between zones. An object holds extents of partitions × zones / brokers. In each other zone, the
brokers of these partitions read the object once each, for all groups together. Partitions are
assigned to brokers by rendezvous hashing, independently in each zone. Consolidation reads every
extent with a request of its own. It writes a segment of `sealed-bytes`, or of
`diskless.consolidation.min.extents` extents if extents are small.

**Kinesis.** A shard accepts 1 MB or 1,000 records per second, whichever is reached first. It
returns 2 MB/s to all readers together, or to each reader with enhanced fan-out. A record counts as
one PUT payload unit per 25 KB, rounded up, so small records need many units. On demand, the size of
a record is rounded up to a multiple of 1 KiB.

**MSK.** Brokers are charged by the hour, with EBS volumes. Express charges incoming bytes, and one
copy of stored bytes. Serverless charges the cluster, its partitions, and bytes in both directions.

Source: the log and queue article, sections 4g, 12a to 12c; KIP-405; Penstock's
`broker/metadata/leaders.py` and `diskless/consolidation`; the filesystem outbox article, "The
Kinesis math" and "MSK"; AWS's price pages for the rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from penstock.planner.cost.inputs import (
    DISKLESS,
    GB,
    HOURS,
    MB,
    SECONDS,
    SEGMENT_BYTES,
    CostInputs,
    Line,
    OptionCost,
    Price,
    Prices,
    Workload,
    operations,
    priced,
    size,
    workload_of,
)
from penstock.planner.quantities import significant
from penstock.planner.results import Figure

LOCAL_P99_MS: Final = 15.0
DISKLESS_P99_MS: Final = 500.0
_STORAGE: Final = "log and queue article, section 12a"
_ZONES: Final = "log and queue article, section 12b"


def broker_count(load: Workload, broker_rate: float, *, copies: int) -> int:
    """Return the brokers for the peak: at least one per replica, and equal in all zones."""
    target = max(copies, ceil(load.peak_bytes_s / broker_rate))
    return ceil(target / load.zones) * load.zones


def brokers_figure(option: str, count: int, load: Workload, broker_rate: float) -> Figure:
    return size(
        option, "brokers", "brokers", count, "",
        f"peak {significant(load.peak_bytes_s / 1e6)} MB/s / {significant(broker_rate / 1e6)}"
        " MB/s per broker; at least one per replica, and the same number in each of"
        f" {load.zones} zones",
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
        f"{significant(load.gb_day)} GB per day × {days:g} d × RF {factor}"
        f" / {1 - disk_free:g} used", _STORAGE,
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
                f"{significant(load.gb_day)} GB per day × {load.retention_days:g} d × RF"
                f" {load.replication_factor}, without free space", _STORAGE,
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
            f"{significant(load.gb_day)} GB per day × ({inputs.retention:g} - {near:g}) d,"
            " one copy", _STORAGE,
        ),
        priced(
            "requests", "uploads", "requests", puts / 1000, prices["object.put-thousand"],
            f"{significant(load.gb_month)} GB / segment.bytes {SEGMENT_BYTES}; reads of old data"
            " are not included", "KIP-405",
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
    """Requests per second to the object store; `readers` and `extents` are per object."""

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
            f"{significant(load.gb_day)} GB per day × {load.retention_days:g} d, one copy", _SPLIT,
        ),
        *_requests(inputs, asked, prices),
        priced(
            "database", "PostgreSQL", "database", inputs.database_vcpus * HOURS,
            prices["database.vcpu-hour"], f"{inputs.database_vcpus} vCPU × {HOURS} h",
        ),
        priced(
            "cache", "cache disks", "cache", load.gb_day / 24 * inputs.cache_time * load.zones,
            prices["disk.gb-month"],
            f"{significant(load.gb_day / 24)} GB per hour × {inputs.cache_time:g} h"
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
                f"objects: the larger of bytes / {inputs.object_bytes} and {asked.brokers}"
                f" brokers / {inputs.commit_interval:g} ms; segments: bytes /"
                f" {inputs.sealed_bytes}, or more if extents /"
                f" {DISKLESS.consolidation_min_extents} is larger",
                _SETTINGS,
            ),
            size(
                "diskless", "extents_per_object", "extents per object", asked.extents, "",
                f"the smaller of {inputs.partitions} partitions × {load.zones} zones /"
                f" {asked.brokers} brokers and the number of messages in an object",
            ),
            size(
                "diskless", "gets_per_second", "GETs",
                asked.fetch_gets_s + asked.consolidation_gets_s, "requests/s",
                f"{significant(asked.fetch_gets_s)} for consumers +"
                f" {significant(asked.consolidation_gets_s)} for consolidation",
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
            f"{significant(asked.objects_s)} objects/s × {significant(asked.readers)} brokers in"
            f" other zones × {SECONDS:,} s",
        ),
        priced(
            "consolidation_gets", "GETs of consolidation", "requests",
            asked.consolidation_gets_s * month, prices["object.get-thousand"],
            f"{significant(asked.objects_s)} objects/s × {significant(asked.extents)} extents ×"
            f" {SECONDS:,} s" if asked.consolidated else "consolidation is off",
        ),
    ]  # fmt: skip


ARTICLE: Final = "filesystem outbox article"
SHARD_BYTES_S: Final = 1_000_000
SHARD_RECORDS_S: Final = 1000
SHARD_READ_BYTES_S: Final = 2_000_000
PUT_UNIT_BYTES: Final = 25_000
ON_DEMAND_ROUNDING_BYTES: Final = 1024
EXTENDED_DAYS: Final = 7
KINESIS_DAYS_MAX: Final = 365
SERVERLESS_MBPS_MAX: Final = 200
EXPRESS_RATE_FACTOR: Final = 3
"""Throughput of an Express broker, as a multiple of a standard broker's of the same size."""


def record_bytes_of(inputs: CostInputs) -> float:
    return inputs.kinesis_record_bytes or max(1.0, inputs.message_bytes / inputs.compression)


def records_per_second(load: Workload, record_bytes: float) -> float:
    return load.bytes_s / record_bytes


def put_units_per_second(load: Workload, record_bytes: float) -> float:
    """Return PUT payload units per second; a record counts one unit per 25 KB, rounded up."""
    return records_per_second(load, record_bytes) * ceil(record_bytes / PUT_UNIT_BYTES)


def shards_of(load: Workload, record_bytes: float, *, fan_out: bool) -> int:
    records = records_per_second(load, record_bytes) * load.peak
    readers = 0 if fan_out else load.groups
    return max(
        1,
        ceil(load.peak_bytes_s / SHARD_BYTES_S),
        ceil(records / SHARD_RECORDS_S),
        ceil(readers * load.peak_bytes_s / SHARD_READ_BYTES_S),
    )


def provisioned_lines(
    load: Workload, inputs: CostInputs, prices: Prices, *, given: int, record_bytes: float
) -> list[Line]:
    shards = given or shards_of(load, record_bytes, fan_out=inputs.enhanced_fan_out)
    units = put_units_per_second(load, record_bytes)
    hours = f"{shards} shards × {HOURS} h"
    lines = [
        priced("shards", "shards", "shards", shards * HOURS, prices["kinesis.shard-hour"],
               hours, ARTICLE),
        priced(
            "put_units", "PUT payload units", "ingest", units * SECONDS / 1e6,
            prices["kinesis.put-million"],
            f"{significant(units)} units/s ({significant(record_bytes)} bytes per record) ×"
            f" {SECONDS:,} s", ARTICLE,
        ),
    ]  # fmt: skip
    if inputs.enhanced_fan_out:
        lines += _fan_out(load, shards, prices)
    if load.retention_days > 1:
        lines.append(
            priced(
                "extended", "retention up to 7 days", "storage", shards * HOURS,
                prices["kinesis.extended-shard-hour"], hours,
            )
        )  # fmt: skip
    return lines + _long(load, prices)


def _fan_out(load: Workload, shards: int, prices: Prices) -> list[Line]:
    return [
        priced(
            "fan_out", "enhanced fan-out", "retrieval", shards * load.groups * HOURS,
            prices["kinesis.fan-out-shard-hour"],
            f"{shards} shards × {load.groups} groups × {HOURS} h",
        ),
        priced(
            "fan_out_read", "enhanced fan-out, read", "retrieval", load.read_gb_month,
            prices["kinesis.fan-out-gb"],
            f"{significant(load.gb_month)} GB × {load.groups} groups",
        ),
    ]  # fmt: skip


def _long(load: Workload, prices: Prices) -> list[Line]:
    beyond = load.retention_days - EXTENDED_DAYS
    if beyond <= 0:
        return []
    return [
        priced(
            "long", "retention beyond 7 days", "storage", load.gb_day * beyond,
            prices["kinesis.long-gb-month"],
            f"{significant(load.gb_day)} GB per day × {beyond:g} d",
        )
    ]  # fmt: skip


def kinesis_provisioned(inputs: CostInputs, prices: Prices) -> OptionCost:
    load, record_bytes = workload_of(inputs), record_bytes_of(inputs)
    shards = inputs.kinesis_shards or shards_of(load, record_bytes, fan_out=inputs.enhanced_fan_out)
    key = "kinesis-provisioned"
    return OptionCost(
        key=key,
        label="Kinesis, provisioned",
        lines=tuple(
            provisioned_lines(
                load, inputs, prices, given=inputs.kinesis_shards, record_bytes=record_bytes
            )
        ),
        sizes=(
            size(
                key, "shards", "shards", shards, "",
                "given" if inputs.kinesis_shards else
                f"the largest of {significant(load.peak_bytes_s / MB)} MB/s / 1 MB/s,"
                f" {significant(records_per_second(load, record_bytes) * load.peak)}"
                " records/s / 1,000 records/s, and reads / 2 MB/s", ARTICLE,
            ),
            size(
                key, "put_units_per_second", "PUT payload units",
                put_units_per_second(load, record_bytes), "units/s",
                f"{significant(records_per_second(load, record_bytes))} records/s ×"
                f" {ceil(record_bytes / PUT_UNIT_BYTES)}", ARTICLE,
            ),
        ),
        unfit=_kept_too_long(inputs),
    )  # fmt: skip


def kinesis_on_demand(inputs: CostInputs, prices: Prices) -> OptionCost:
    load, record_bytes = workload_of(inputs), record_bytes_of(inputs)
    billed = ceil(record_bytes / ON_DEMAND_ROUNDING_BYTES) * ON_DEMAND_ROUNDING_BYTES
    extended = load.gb_day * max(0.0, min(load.retention_days, EXTENDED_DAYS) - 1)
    lines = [
        priced("stream", "stream hours", "shards", HOURS, prices["kinesis.stream-hour"],
               f"1 stream × {HOURS} h", ARTICLE),
        priced(
            "ingested", "ingested", "ingest", load.gb_month * billed / record_bytes,
            prices["kinesis.in-gb"],
            f"{significant(load.gb_month)} GB in records of {significant(record_bytes)} bytes,"
            f" rounded up to {billed}", ARTICLE,
        ),
        priced(
            "retrieved", "retrieved", "retrieval", load.read_gb_month, prices["kinesis.out-gb"],
            f"{significant(load.gb_month)} GB × {load.groups} groups", ARTICLE,
        ),
        priced(
            "extended", "retention up to 7 days", "storage", extended,
            prices["kinesis.extended-gb-month"],
            f"{significant(load.gb_day)} GB per day × the days from 2 to 7 of"
            f" {load.retention_days:g} d",
        ),
        *_long(load, prices),
    ]  # fmt: skip
    return OptionCost(
        key="kinesis-on-demand",
        label="Kinesis, on demand",
        lines=tuple(lines),
        unfit=_kept_too_long(inputs),
    )


def _kept_too_long(inputs: CostInputs) -> tuple[str, ...]:
    if inputs.retention <= KINESIS_DAYS_MAX:
        return ()
    return (
        f"Kinesis keeps data for at most {KINESIS_DAYS_MAX} d, but retention is"
        f" {inputs.retention:g} d",
    )


def msk_provisioned(inputs: CostInputs, prices: Prices) -> OptionCost:
    load = workload_of(inputs)
    count = broker_count(load, inputs.msk_broker_rate, copies=load.replication_factor)
    volumes = (
        priced("disk", "EBS volumes", "storage", inputs.msk_storage / GB, prices["msk.gb-month"],
               "given", ARTICLE)
        if inputs.msk_storage
        else disk(load, inputs.retention, inputs.disk_free, prices["msk.gb-month"], "EBS volumes")
    )  # fmt: skip
    return OptionCost(
        key="msk-provisioned",
        label="MSK, provisioned",
        lines=(
            compute(count, inputs.msk_broker_vcpus, prices, "msk.vcpu-hour"),
            volumes,
            *cross_zone(load, prices, replication_free=inputs.managed_replication_free),
        ),
        sizes=(brokers_figure("msk-provisioned", count, load, inputs.msk_broker_rate),),
        latency_p99_ms=LOCAL_P99_MS,
    )


def msk_express(inputs: CostInputs, prices: Prices) -> OptionCost:
    load = workload_of(inputs)
    rate = inputs.msk_broker_rate * EXPRESS_RATE_FACTOR
    count = broker_count(load, rate, copies=1)
    return OptionCost(
        key="msk-express",
        label="MSK, Express",
        lines=(
            compute(count, inputs.msk_broker_vcpus, prices, "msk.express-vcpu-hour"),
            priced("ingested", "ingested", "ingest", load.gb_month, prices["msk.express-in-gb"],
                   f"{significant(load.gb_day)} GB per day × 30 d", ARTICLE),
            _one_copy(load, prices, "msk.express-gb-month"),
            *cross_zone(load, prices, replication_free=True),
        ),
        sizes=(brokers_figure("msk-express", count, load, rate),),
        latency_p99_ms=LOCAL_P99_MS,
    )  # fmt: skip


def msk_serverless(inputs: CostInputs, prices: Prices) -> OptionCost:
    load = workload_of(inputs)
    peak = load.bytes_s * inputs.peak_factor / MB
    unfit = (
        (
            f"MSK Serverless accepts at most {SERVERLESS_MBPS_MAX} MB/s, but the peak is"
            f" {peak:,.0f} MB/s",
        )
        if peak > SERVERLESS_MBPS_MAX
        else ()
    )
    return OptionCost(
        key="msk-serverless",
        label="MSK, Serverless",
        lines=(
            priced("cluster", "cluster hours", "compute", HOURS, prices["msk.cluster-hour"],
                   f"1 cluster × {HOURS} h", ARTICLE),
            priced("partitions", "partition hours", "shards", inputs.partitions * HOURS,
                   prices["msk.partition-hour"], f"{inputs.partitions} × {HOURS} h", ARTICLE),
            priced("ingested", "in", "ingest", load.gb_month, prices["msk.in-gb"],
                   f"{significant(load.gb_day)} GB per day × 30 d", ARTICLE),
            priced("retrieved", "out", "retrieval", load.read_gb_month, prices["msk.out-gb"],
                   f"{significant(load.gb_month)} GB × {load.groups} groups", ARTICLE),
            _one_copy(load, prices, "msk.serverless-gb-month"),
        ),
        unfit=unfit,
    )  # fmt: skip


def _one_copy(load: Workload, prices: Prices, key: str) -> Line:
    return priced(
        "storage", "storage", "storage", load.stored_gb, prices[key],
        f"{significant(load.gb_day)} GB per day × {load.retention_days:g} d, one copy is charged",
    )  # fmt: skip
