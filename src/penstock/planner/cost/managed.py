"""Managed streams: Kinesis by shards or on demand, and MSK in its three kinds.

**Kinesis.** A shard accepts 1 MB or 1,000 records a second, whichever comes first, and returns
2 MB/s to all readers together, or to each with enhanced fan-out. A record counts as one PUT payload
unit per started 25 KB, so small records are many units. On demand, a record is rounded up to 1 KiB.

**MSK.** Brokers are billed by the hour, with EBS volumes. Express charges for incoming bytes and
for one copy of stored ones; Serverless for the cluster, its partitions, and bytes both ways.

Source: the filesystem outbox article, "The Kinesis math" and "MSK"; the log and queue article,
section 12b; AWS's price pages for the rounding.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from penstock.planner.cost.inputs import CostInputs
from penstock.planner.cost.lines import Line, OptionCost, Prices, priced, size
from penstock.planner.cost.own import (
    LOCAL_P99_MS,
    broker_count,
    brokers_figure,
    compute,
    cross_zone,
    disk,
)
from penstock.planner.cost.workload import GB, HOURS, MB, SECONDS, Workload, workload_of
from penstock.planner.quantities import significant

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
"""Throughput of an Express broker, as a multiple of a standard one of the same size."""


def record_bytes_of(inputs: CostInputs) -> float:
    return inputs.kinesis_record_bytes or max(1.0, inputs.message_bytes / inputs.compression)


def records_per_second(load: Workload, record_bytes: float) -> float:
    return load.bytes_s / record_bytes


def put_units_per_second(load: Workload, record_bytes: float) -> float:
    """Return PUT payload units: one per started 25 KB of a record."""
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
            f"{significant(units)} units/s ({significant(record_bytes)} bytes a record) ×"
            f" {SECONDS:,} s", ARTICLE,
        ),
    ]  # fmt: skip
    if inputs.enhanced_fan_out:
        lines += _fan_out(load, shards, prices)
    if load.retention_days > 1:
        lines.append(
            priced(
                "extended", "retention to 7 days", "storage", shards * HOURS,
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
            f"{significant(load.gb_day)} GB a day × {beyond:g} d",
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
                f"the largest of {significant(load.peak_bytes_s / MB)} MB/s / 1 MB,"
                f" {significant(records_per_second(load, record_bytes) * load.peak)} records/s /"
                f" 1,000, and reads / 2 MB", ARTICLE,
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
            "extended", "retention to 7 days", "storage", extended,
            prices["kinesis.extended-gb-month"],
            f"{significant(load.gb_day)} GB a day × what is beyond 1 of {load.retention_days:g} d",
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
    return (f"Kinesis keeps data {KINESIS_DAYS_MAX} d at most; this needs {inputs.retention:g} d",)


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
                   f"{significant(load.gb_day)} GB a day × 30 d", ARTICLE),
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
        (f"MSK Serverless takes {SERVERLESS_MBPS_MAX} MB/s at most; the peak is {peak:,.0f}",)
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
                   f"{significant(load.gb_day)} GB a day × 30 d", ARTICLE),
            priced("retrieved", "out", "retrieval", load.read_gb_month, prices["msk.out-gb"],
                   f"{significant(load.gb_month)} GB × {load.groups} groups", ARTICLE),
            _one_copy(load, prices, "msk.serverless-gb-month"),
        ),
        unfit=unfit,
    )  # fmt: skip


def _one_copy(load: Workload, prices: Prices, key: str) -> Line:
    return priced(
        "storage", "storage", "storage", load.stored_gb, prices[key],
        f"{significant(load.gb_day)} GB a day × {load.retention_days:g} d, one copy counted",
    )  # fmt: skip
