"""The figures of a capacity plan: rates, partitions, brokers, disks, networks, producers."""

from __future__ import annotations

from functools import partial
from math import ceil
from typing import Final

from penstock.planner.capacity.ceilings import Deployment
from penstock.planner.capacity.inputs import CapacityInputs
from penstock.planner.capacity.objects import requests_per_second
from penstock.planner.capacity.sizing import (
    DAY_SECONDS,
    MONTH_DAYS,
    PARTITIONS_PER_DISK,
    Sizing,
    crossing,
    disk_room,
    salt_ways,
)
from penstock.planner.quantities import format_quantity, significant
from penstock.planner.results import Figure

_ARITHMETIC: Final = "capacity arithmetic of partitioned logs"
_OWN: Final = "Penstock's own limits and settings"
IN_FLIGHT_REQUESTS: Final = 5
"""max.in.flight.requests.per.connection of Kafka's producer."""


def load_figures(inputs: CapacityInputs, sizing: Sizing) -> list[Figure]:
    """What comes in and goes out, at the end of the horizon."""
    figure = partial(Figure, group="load", source=_ARITHMETIC)
    grown = f" × growth {inputs.growth:.3g}" if inputs.growth != 1 else ""
    wire = f"message {inputs.message_bytes:g} bytes / compression {inputs.compression_ratio:g}"
    return [
        figure(name="messages_per_second", label="messages", value=sizing.mean_messages,
               unit="messages/s", formula=f"{inputs.messages_per_second:g} messages/s{grown}"),
        figure(name="peak_messages_per_second", label="messages at the peak",
               value=sizing.peak_messages, unit="messages/s",
               formula=f"messages × peak factor {inputs.peak_factor:g}"),
        figure(name="write_bytes_per_second", label="written", value=sizing.mean_bytes,
               unit="bytes/s", formula=f"messages × {wire}"),
        figure(name="peak_write_bytes_per_second", label="written at the peak",
               value=sizing.peak_bytes, unit="bytes/s", formula=f"messages at the peak × {wire}"),
        figure(name="replicated_bytes_per_second", label="written, with replicas",
               value=sizing.mean_bytes * inputs.copies, unit="bytes/s",
               formula=f"written × {inputs.copies} replicas"),
        figure(name="read_bytes_per_second", label="read", value=sizing.read_mean_bytes,
               unit="bytes/s", formula=f"written × {inputs.groups} groups"),
        figure(name="peak_read_bytes_per_second", label="read at the peak",
               value=sizing.read_peak_bytes, unit="bytes/s",
               formula=f"written at the peak × {inputs.groups} groups"),
    ]  # fmt: skip


def partition_figures(
    inputs: CapacityInputs, deployment: Deployment, sizing: Sizing
) -> list[Figure]:
    """How many partitions, what consumers need, and what the hottest has to bear."""
    figure = partial(Figure, group="partitions and consumers", source=_ARITHMETIC)
    free = f"(1 - headroom {inputs.headroom:g})"
    planned = (
        f"as given; needed are {sizing.partitions_needed}"
        if inputs.partitions
        else f"the largest of: needed {sizing.partitions_needed} × {inputs.over_provision:g}; for"
        " what a disk should hold of each; one for each broker. Rounded up to 2^n or 3 × 2^n; a"
        " keyed topic cannot get more later without moving its keys"
    )
    per_consumer = _consumer_formula(inputs)
    return [
        figure(name="partitions", label="partitions", value=sizing.partitions,
               unit="partitions", minimum=sizing.partitions_needed, formula=planned,
               source="over-provision 4 to 10 times: the count is decided once",
               setting="num.partitions"),
        figure(name="partitions_by_produce", label="partitions for what is written",
               value=sizing.partitions_by_produce, unit="partitions",
               formula="written at the peak / ("
               f"{deployment.said('partition_produce_mb_per_s')} MB/s × {free})"),
        figure(name="partitions_by_disk", label="partitions for what is kept",
               value=sizing.partitions_by_disk, unit="partitions",
               formula="on disks / replicas / the smaller of partition-bytes"
               f" {format_quantity(inputs.partition_bytes, 'bytes')} and 1/{PARTITIONS_PER_DISK} of"
               f" a disk's {format_quantity(disk_room(inputs, deployment), 'bytes')} × {free},"
               " less a segment that is not deleted yet",
               source="a partition lies on one disk, and is moved and recovered whole"),
        figure(name="consumers_per_group", label="consumers per group", value=sizing.consumers,
               unit="consumers", source="Kafka: a partition is read by one consumer of a group",
               formula=f"messages at the peak / ({per_consumer} × {free}); as many partitions"),
        figure(name="mean_partition_messages_per_second", label="a partition in the mean",
               value=sizing.peak_messages / sizing.partitions, unit="messages/s",
               formula=f"messages at the peak / {sizing.partitions} partitions"),
        figure(name="hottest_key_messages_per_second", label="the busiest key",
               value=sizing.skew.hottest_share * sizing.peak_messages, unit="messages/s",
               formula=f"its share {sizing.skew.hottest_share:.3g} × messages at the peak"),
        figure(name="hottest_partition_messages_per_second", label="the busiest partition",
               value=sizing.hottest_messages, unit="messages/s",
               formula="messages at the peak × the larger of: share of the busiest key"
               f" {sizing.skew.hottest_share:.3g} + all other keys / {sizing.partitions}; 1 /"
               f" {sizing.partitions} + deviation × sqrt(2 ln {sizing.partitions})",
               source="Kafka: a key hashes to one partition; extreme values of normal variables"),
        figure(name="hottest_partition_bytes_per_second", label="the busiest partition, bytes",
               value=sizing.hottest_bytes, unit="bytes/s",
               formula=f"its share {sizing.hottest_share:.3g} × written at the peak"),
        figure(name="salt_ways", label="ways to salt the busiest key",
               value=salt_ways(sizing.skew.hottest_share * sizing.peak_messages,
                               allowed_messages(deployment, sizing)),
               unit="ways", formula="its messages / what a consumer and a partition take with"
               f" headroom: {significant(allowed_messages(deployment, sizing))} messages/s",
               source="a salted key loses its strict order"),
    ]  # fmt: skip


def allowed_messages(deployment: Deployment, sizing: Sizing) -> float:
    """Messages a second that one partition and its consumer can take, with headroom."""
    bytes_each = sizing.peak_bytes / sizing.peak_messages
    produced = deployment.ceiling("partition_produce_mb_per_s") * 1e6 / bytes_each
    consumed = sizing.consumer_messages if sizing.consumers else produced
    return sizing.usable * min(produced, consumed)


def _consumer_formula(inputs: CapacityInputs) -> str:
    parts = [f"{inputs.consumer_rate:g} messages/s"]
    if inputs.message_work:
        parts.append(f"1 / {inputs.message_work:g} ms")
    if inputs.consumer_bytes:
        parts.append(f"{format_quantity(inputs.consumer_bytes, 'bytes/s')} / message")
    return parts[0] if len(parts) == 1 else f"the least of {', '.join(parts)}"


def broker_figures(inputs: CapacityInputs, deployment: Deployment, sizing: Sizing) -> list[Figure]:
    """How many brokers, and which resource asks for them."""
    figure = partial(Figure, group="brokers", source=_ARITHMETIC, unit="brokers")
    free = f"(1 - headroom {inputs.headroom:g})"
    produce = deployment.said(deployment.produce_name(inputs))
    cpu = deployment.said(deployment.produce_name(inputs, "cpu_s_per_gb"))
    needs = {
        "throughput": f"(written with replicas / {produce} MB/s"
        f" + read / {deployment.said('consume_mb_per_s')} MB/s) / {free}, at the peak",
        "cores": f"(written × {cpu} s/GB + read ×"
        f" {deployment.said('consume_cpu_s_per_gb')} s/GB) / {inputs.broker_cores:g} cores"
        f" / {free}",
        "network": f"the larger of in and out / {format_quantity(inputs.broker_network, 'bytes/s')}"
        f" / {free}",
        "disk": "(on disks + segments not deleted) /"
        f" (({format_quantity(inputs.broker_disk, 'bytes')} less the journal)"
        f" × {free} - one partition, as they do not divide evenly)",
        "partitions": f"partitions × replicas / {inputs.broker_partitions:,} per broker",
        "replicas and zones": "one for each replica, and for each zone",
    }
    rows = [
        figure(name="brokers", label="brokers", value=sizing.brokers,
               minimum=sizing.brokers_needed,
               formula="the largest need of all resources + 1, so that one may be down"),
    ]  # fmt: skip
    for name, count in sizing.brokers_by.items():
        slug = name.replace(" ", "_")
        rows.append(
            figure(name=f"brokers_by_{slug}", label=f"for {name}", value=count,
                   formula=needs[name])
        )  # fmt: skip
    rows.append(
        Figure(name="partitions_per_broker", label="replicas per broker", unit="partitions",
               value=ceil(sizing.replicas / sizing.brokers), group="brokers",
               formula="partitions × replicas / brokers", source=_ARITHMETIC)
    )  # fmt: skip
    rows.append(
        figure(name="idle_brokers", label="brokers without a partition", value=sizing.idle_brokers,
               formula="brokers - partitions × replicas, where that is more than none")
    )  # fmt: skip
    return rows


def storage_figures(inputs: CapacityInputs, deployment: Deployment, sizing: Sizing) -> list[Figure]:
    """What disks and the object store hold."""
    figure = partial(Figure, group="storage", source=_ARITHMETIC, unit="bytes")
    journal = (
        0
        if inputs.storage == "diskless"
        else deployment.storage.journal_files_max * deployment.storage.journal_file_bytes
    )
    segment = format_quantity(deployment.log.segment_bytes, "bytes")
    moved = 1 - sizing.disk_days / inputs.retention
    each = (sizing.disk_bytes + sizing.slack_bytes) / sizing.brokers_needed + journal
    return [
        figure(name="daily_bytes", label="a day", value=sizing.mean_bytes * DAY_SECONDS,
               formula="written × 86,400 s"),
        figure(name="disk_bytes", label="on disks", value=sizing.disk_bytes,
               formula=f"a day (compressed) × {sizing.disk_days:g} days × {inputs.copies} replicas",
               source="daily ingest × retention × replication / compression"),
        figure(name="disk_slack_bytes", label="segments not deleted yet",
               value=sizing.slack_bytes, source="Kafka: retention deletes whole segments",
               formula=f"up to one segment of {segment} per replica, and a retention at most"),
        figure(name="disk_bytes_per_broker", label="disk per broker, filled",
               value=each, formula=f"(on disks + segments not deleted) / {sizing.brokers_needed}"
               f" brokers + journal {format_quantity(journal, 'bytes')}",
               source="journal.files.max × journal.file.bytes"),
        figure(name="partition_disk_bytes", label="a partition on a disk",
               value=sizing.replica_bytes, formula="(on disks + segments not deleted) /"
               f" {sizing.replicas:,} replicas; the busiest has"
               f" {format_quantity(sizing.busiest_replica_bytes, 'bytes')}"),
        figure(name="fullest_disk_bytes", label="the fullest disk",
               value=sizing.fullest_disk_bytes + journal,
               formula=f"{ceil(sizing.replicas / sizing.brokers)} partitions, the busiest among"
               f" them, on one of {sizing.brokers} brokers + journal"),
        figure(name="store_bytes", label="in the object store", value=sizing.store_bytes,
               formula=f"a day × {inputs.retention - sizing.disk_days:g} days, stored once",
               source="KIP-405; the store replicates on its own"),
        figure(name="store_share", label="share of days that is not on disks", value=moved,
               unit="", formula=f"1 - {sizing.disk_days:g} d / {inputs.retention:g} d"),
    ]  # fmt: skip


def network_figures(inputs: CapacityInputs, sizing: Sizing) -> list[Figure]:
    """What networks carry, on each broker and between zones."""
    figure = partial(Figure, group="network", source=_ARITHMETIC, unit="bytes/s")
    produced, replicated, fetched = crossing(inputs)
    cross = sizing.mean_bytes * (produced + replicated + fetched * inputs.groups)
    month = DAY_SECONDS * MONTH_DAYS
    store = inputs.storage != "local"
    return [
        figure(name="network_in_bytes_per_second", label="into all brokers, peak",
               value=sizing.network_in,
               formula="written × replicas" + (" + read from the store" if store else "")),
        figure(name="network_out_bytes_per_second", label="out of all brokers, peak",
               value=sizing.network_out,
               formula=f"written × ({inputs.copies} - 1 followers + {inputs.groups} groups"
               + (" + 1 to the store)" if store else ")")),
        figure(name="broker_network_in_bytes_per_second", label="into a broker, one down",
               value=sizing.network_in / sizing.brokers_needed,
               formula=f"in / {sizing.brokers_needed} brokers"),
        figure(name="broker_network_out_bytes_per_second", label="out of a broker, one down",
               value=sizing.network_out / sizing.brokers_needed,
               formula=f"out / {sizing.brokers_needed} brokers"),
        figure(name="cross_zone_produce_bytes_per_second", label="between zones: produced",
               value=sizing.mean_bytes * produced, formula=f"written × {produced:.3g}"),
        figure(name="cross_zone_replication_bytes_per_second",
               label="between zones: replicated", value=sizing.mean_bytes * replicated,
               formula=f"written × {replicated:.3g} followers in other zones than their leader:"
               f" {inputs.copies} replicas over {inputs.zones} zones"),
        figure(name="cross_zone_fetch_bytes_per_second", label="between zones: fetched",
               value=sizing.read_mean_bytes * fetched, formula=f"read × {fetched:.3g}"
               + (", clients read what is near" if inputs.zone_aware else ""),
               source="KIP-392"),
        figure(name="cross_zone_replication_bytes_per_month",
               label="between zones in a month: replicated",
               value=sizing.mean_bytes * replicated * month, unit="bytes/month",
               formula=f"replicated between zones × 86,400 s × {MONTH_DAYS}"),
        figure(name="cross_zone_bytes_per_month", label="between zones in a month: all",
               value=cross * month, unit="bytes/month",
               formula=f"all three × 86,400 s × {MONTH_DAYS}"),
    ]  # fmt: skip


def producer_figures(
    inputs: CapacityInputs, sizing: Sizing, acknowledged_p99_ms: float
) -> list[Figure]:
    """What a producer process keeps in memory."""
    figure = partial(Figure, group="a producer", unit="bytes")
    batches = sizing.partitions * inputs.batch_bytes
    rate = sizing.peak_messages * inputs.message_bytes / inputs.producers
    waiting = rate * acknowledged_p99_ms / 1000
    filled = min(
        float(inputs.batch_bytes),
        max(rate / sizing.partitions * inputs.linger / 1000, inputs.message_bytes),
    )
    needed = max(batches, waiting)
    return [
        figure(name="producer_batches_bytes", label="one open batch per partition",
               value=batches, formula=f"{sizing.partitions} partitions ×"
               f" {format_quantity(inputs.batch_bytes, 'bytes')}",
               source="Kafka: RecordAccumulator, batch.size"),
        figure(name="producer_waiting_bytes", label="not acknowledged at the 99th percentile",
               value=waiting, formula="messages at the peak × message / producers"
               f" × {acknowledged_p99_ms:.3g} ms until the answer",
               source="Little's law"),
        figure(name="producer_memory_bytes", label="producer memory",
               value=max(float(inputs.buffer_bytes), 2.0 * needed), minimum=needed,
               setting="buffer.memory",
               formula="twice the larger of the two above, at least"
               f" {format_quantity(inputs.buffer_bytes, 'bytes')}; needed is the larger one",
               source="Kafka: ProducerConfig, buffer.memory"),
        figure(name="producer_batch_fill_bytes", label="bytes in a batch when it leaves",
               value=filled, formula="messages at the peak × message / producers / partitions"
               f" × linger {inputs.linger:g} ms; one message at least, batch.size at most",
               source="Kafka: ProducerConfig, linger.ms"),
        figure(name="produce_requests_per_second",
               label="requests of all producers to a broker, peak",
               value=requests_per_second(inputs, sizing, sizing.peak_messages),
               unit="requests/s",
               formula=f"{inputs.producers} producers, one per linger of {inputs.linger:g} ms"
               " (1 ms at least), more when requests of 1 MiB are full; at most one per message",
               source="Kafka: one ProduceRequest per broker, linger.ms"),
        figure(name="producer_request_window", label="requests under way per broker",
               value=IN_FLIGHT_REQUESTS, unit="requests",
               formula="the default, at which an idempotent producer keeps its order",
               source="Kafka: max.in.flight.requests.per.connection"),
    ]  # fmt: skip
