"""Figures of a capacity plan: brokers, producers, produce latency, and requests to the store."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from penstock.planner.capacity.inputs import (
    STORE_PREFIX_PUTS_PER_SECOND,
    WAL_PREFIXES,
    CapacityInputs,
    Deployment,
    DisklessLatency,
    Distribution,
    diskless_latency,
    gathering_ms,
    objects_per_second,
    waiting,
)
from penstock.planner.capacity.sizing import (
    ARITHMETIC,
    MONTH_DAYS,
    MONTH_SECONDS,
    REQUEST_BYTES,
    Sizing,
)
from penstock.planner.quantities import format_quantity
from penstock.planner.results import Figure, figure, figures_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Latencies of a message from the producer's send on, in milliseconds."""

    acknowledged: Distribution
    consumed: Distribution
    diskless: DisklessLatency | None


def requests_per_second(sizing: Sizing, messages: float) -> float:
    """Return the produce requests per second that one broker receives.

    Each producer sends one request per linger (at least 1 ms) to each broker. It sends more when
    requests are full, and at most one per message.
    """
    share = messages / sizing.peak_messages_per_second
    by_time = sizing.inputs.producers * 1000 / max(sizing.inputs.linger, 1.0)
    by_bytes = sizing.peak_write_bytes_per_second * share / sizing.brokers / REQUEST_BYTES
    return min(messages / sizing.brokers, max(by_time, by_bytes))


def put_latency(sizing: Sizing) -> Distribution:
    inputs, deployment = sizing.inputs, sizing.deployment
    names = deployment.put_names(inputs)
    return deployment.latency(*names, p50=inputs.put_p50, p99=inputs.put_p99)


def commit_latency(sizing: Sizing) -> Distribution:
    p50, p99 = sizing.inputs.commit_p50, sizing.inputs.commit_p99
    return sizing.deployment.latency("commit_p50_ms", "commit_p99_ms", p50=p50, p99=p99)


def fill_ms(sizing: Sizing, written: float) -> float:
    """Return the milliseconds in which each broker fills one object at `written` bytes per second.

    `written` is the rate of the whole cluster.
    """
    return sizing.deployment.diskless.buffer_bytes_max / (written / sizing.brokers) * 1000


def object_latency(sizing: Sizing, interval_ms: float) -> DisklessLatency:
    return diskless_latency(
        interval_ms=interval_ms,
        requests_per_second=requests_per_second(sizing, sizing.peak_messages_per_second),
        put=put_latency(sizing),
        commit=commit_latency(sizing),
        request=Distribution.constant(sizing.inputs.round_trip),
        objects_in_flight_max=sizing.deployment.diskless.objects_in_flight_max,
        fill_ms=fill_ms(sizing, sizing.peak_write_bytes_per_second),
    )


def latencies(sizing: Sizing) -> Latencies:
    inputs, deployment, found = sizing.inputs, sizing.deployment, None
    per_producer = sizing.peak_messages_per_second / inputs.producers / max(1, sizing.brokers)
    lingering = waiting(inputs.linger, inputs.linger / 1000 * per_producer)
    if inputs.storage == "diskless":
        found = object_latency(sizing, deployment.interval_ms(inputs))
        answered = found.produce
    else:
        synced = deployment.latency("produce_p50_ms", "produce_p99_ms")
        answered = synced.plus(Distribution.constant(inputs.round_trip))
        if inputs.copies > 1:
            # all followers fetch and write in parallel, after the leader
            answered = answered.plus(synced).plus(Distribution.constant(inputs.round_trip))
    acknowledged = lingering.plus(answered)
    delivery = deployment.latency("delivery_p50_ms", "delivery_p99_ms")
    return Latencies(
        acknowledged=acknowledged, consumed=acknowledged.plus(delivery), diskless=found
    )


def puts_per_second(sizing: Sizing, interval_ms: float) -> float:
    gathers_ms = gathering_ms(
        interval_ms,
        put_latency(sizing),
        commit_latency(sizing),
        objects_in_flight_max=sizing.deployment.diskless.objects_in_flight_max,
        fill_ms=fill_ms(sizing, sizing.write_bytes_per_second),
    )
    requests = requests_per_second(sizing, sizing.messages_per_second)
    return sizing.brokers * objects_per_second(gathers_ms, requests)


_MODEL: Final = "Penstock's latency model: Lindley's recursion over an interval, PUTs and commits"
_SUM: Final = "sums of independent lognormal parts, by quantiles"
_SETTINGS: Final = "Penstock's settings of diskless topics"
_STORE: Final = "object store"
_LATENCY: Final = "latency at the peak"


def latency_figures(sizing: Sizing, found: Latencies) -> list[Figure]:
    inputs, deployment, diskless = sizing.inputs, sizing.deployment, found.diskless

    def measured(stem: str) -> str:
        return f"p50 {deployment.text(f'{stem}_p50_ms')}, p99 {deployment.text(f'{stem}_p99_ms')}"

    def rows(name: str, label: str, of: Distribution, formula: str) -> list[Figure]:
        return [
            Figure(f"{name}_p{percent}_ms", f"{label}, p{percent}", of.quantile(percent / 100),
               "ms", formula, _SUM if diskless is None else _MODEL, group=_LATENCY)
            for percent in (50, 99)
        ]  # fmt: skip

    parts = f"linger {inputs.linger:g} ms + round trip {inputs.round_trip:g} ms + "
    if diskless is None:
        parts += f"append and sync: {measured('produce')}"
        parts += ", and the same again for the followers" if inputs.copies > 1 else ""
    else:
        parts += (
            f"wait of up to {diskless.interval_ms:.3g} ms for the object to close + PUT + wait"
            " for earlier commits + commit"
        )
    whole = [
        *rows("produce", "produced to acknowledged", found.acknowledged, parts),
        *rows("end_to_end", "produced to consumed", found.consumed,
              f"produced to acknowledged + delivery: {measured('delivery')}"),
    ]  # fmt: skip
    if diskless is None:
        return whole
    given = "given" if inputs.put_p50 or inputs.put_p99 else measured(deployment.put_stem(inputs))
    committed = "given" if inputs.commit_p50 or inputs.commit_p99 else measured("commit")
    return [
        *whole,
        Figure("object_interval_ms", "gathering time of an object", diskless.interval_ms, "ms",
               f"{deployment.interval_ms(inputs)} ms; less if diskless.buffer.max.bytes is"
               " reached earlier, more if PUTs or commits take longer", _SETTINGS, group=_LATENCY,
               setting="diskless.commit.interval.ms"),
        *rows("gathering", "part: wait for the object", diskless.wait,
              "the first request waits for the whole gathering time, later requests for"
              " the rest of it"),
        *rows("put", "part: PUT", put_latency(sizing), given),
        *rows("commit", "part: commit", commit_latency(sizing), committed),
        *rows("object_write", "part: closed to committed", diskless.write,
              "the longer of PUT and the wait for the previous object's commit, + commit"),
    ]  # fmt: skip


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests per second of all brokers to the store for diskless topics, at the mean rate."""

    sizing: Sizing
    puts: float

    @property
    def inputs(self) -> CapacityInputs:
        return self.sizing.inputs

    @property
    def deployment(self) -> Deployment:
        return self.sizing.deployment

    @property
    def extents(self) -> float:
        led = max(1.0, self.sizing.partitions / self.sizing.brokers)
        return max(1.0, min(led, self.sizing.messages_per_second / self.puts))

    @property
    def extent_bytes(self) -> float:
        return self.object_bytes / self.extents

    @property
    def consolidated(self) -> bool:
        return self.deployment.diskless.consolidation_interval_ms > 0

    @property
    def replay_limit(self) -> float:
        """Limit of one broker's requests for old data per second; infinite if it is not set."""
        return self.deployment.fetching.lagging_rate_limit or inf

    @figure("size of an object", "bytes", group=_STORE, source=_SETTINGS,
            formula="bytes written / PUTs per second; at most diskless.buffer.max.bytes ="
            " {deployment.diskless.buffer_bytes_max:,}")
    def object_bytes(self) -> float:
        return self.sizing.write_bytes_per_second / self.puts

    @figure("PUTs of objects", "requests/s", group=_STORE, source=_MODEL,
            formula="{sizing.brokers} brokers × 1 / (gathering time + time until the next request)")
    def object_puts_per_second(self) -> float:
        return self.puts

    @figure("PUTs of segments", "requests/s", group=_STORE, source=_SETTINGS,
            formula="the larger of bytes written / diskless.consolidation.segment.bytes and"
            " extents / diskless.consolidation.min.extents")
    def segment_puts_per_second(self) -> float:
        settings = self.deployment.diskless
        by_bytes = self.sizing.write_bytes_per_second / settings.consolidation_segment_bytes
        by_extents = self.puts * self.extents / settings.consolidation_min_extents
        return max(by_bytes, by_extents) if self.consolidated else 0.0

    @figure("GETs of consolidation", "requests/s", group=_STORE, source=_SETTINGS,
            formula="PUTs of objects × {extents:.3g} extents each; each extent is read once")
    def consolidation_gets_per_second(self) -> float:
        return self.puts * self.extents if self.consolidated else 0.0

    @figure("GETs of recent data", "requests/s", group=_STORE,
            source="Penstock: each rack has its own leaders",
            formula="PUTs of objects × brokers in other zones that read the object, once for all"
            " groups; 0 if leaders only read what they wrote")
    def zone_gets_per_second(self) -> float:
        zones = self.inputs.zones
        if not (self.inputs.zone_aware and self.inputs.groups):
            return 0.0
        return self.puts * max(1.0, min(self.extents, self.sizing.brokers / zones)) * (zones - 1)

    @figure("GETs of old data", "requests/s", group=_STORE, source=_SETTINGS,
            setting="diskless.fetch.lagging.consumer.request.rate.limit",
            formula="{inputs.lagging_groups} lagging groups × bytes written / bytes of an extent;"
            " at most {deployment.fetching.lagging_rate_limit} per broker")
    def replay_gets_per_second(self) -> float:
        old = self.sizing.write_bytes_per_second * self.inputs.lagging_groups
        return min(old / max(1.0, self.extent_bytes), self.replay_limit * self.sizing.brokers)

    @figure("old data read by a broker", "bytes/s", group=_STORE,
            source=_SETTINGS, formula="request limit × bytes of an extent; before consolidation")
    def replay_bytes_per_second(self) -> float:
        return self.extent_bytes * self.replay_limit

    @figure("PUTs per month", "requests", group=_STORE, source=_MODEL,
            formula=f"PUTs of objects and segments × 86,400 s × {MONTH_DAYS}")
    def store_puts_per_month(self) -> float:
        return (self.puts + self.segment_puts_per_second) * MONTH_SECONDS

    @figure("GETs per month", "requests", group=_STORE, source=_MODEL,
            formula=f"all GETs × 86,400 s × {MONTH_DAYS}")
    def store_gets_per_month(self) -> float:
        gets = self.consolidation_gets_per_second + self.zone_gets_per_second
        return (gets + self.replay_gets_per_second) * MONTH_SECONDS

    @figure("share of one prefix's limit", group=_STORE,
            formula=f"PUTs of objects / {STORE_PREFIX_PUTS_PER_SECOND:,} PUTs per second; keys are"
            f" spread over {WAL_PREFIXES} prefixes",
            source="Amazon S3: 3,500 PUT and 5,500 GET requests per second and prefix")
    def prefix_share(self) -> float:
        return self.puts / STORE_PREFIX_PUTS_PER_SECOND
# fmt: on


def store_requests(sizing: Sizing) -> Requests:
    interval_ms = sizing.deployment.interval_ms(sizing.inputs)
    return Requests(sizing=sizing, puts=puts_per_second(sizing, interval_ms))


IN_FLIGHT_REQUESTS: Final = 5
"""Default of max.in.flight.requests.per.connection of Kafka's producer."""


def broker_figures(sizing: Sizing) -> list[Figure]:
    inputs, deployment, free = sizing.inputs, sizing.deployment, sizing.free
    produce = deployment.text(deployment.produce_name(inputs))
    cpu = deployment.text(deployment.produce_cpu_name(inputs))
    needs = {
        "throughput": f"at the peak: (bytes written with replicas / {produce} MB/s"
        f" + bytes read / {deployment.text('consume_mb_per_s')} MB/s) / {free}",
        "cores": f"at the peak: (bytes written with replicas × {cpu} s/GB + bytes read ×"
        f" {deployment.text('consume_cpu_s_per_gb')} s/GB) / {inputs.broker_cores:g} cores"
        f" / {free}",
        "network": "the larger of received and sent by all brokers /"
        f" {format_quantity(inputs.broker_network, 'bytes/s')} / {free}",
        "disk": "(stored on disks + segments not deleted yet) /"
        f" (({format_quantity(inputs.broker_disk, 'bytes')} - journal)"
        f" × {free} - one partition, because partitions do not divide evenly)",
        "partitions": f"partitions × replicas / {inputs.broker_partitions:,} replicas per broker",
        "replicas and zones": "the larger of the number of replicas and the number of zones",
    }
    brokers, *others = figures_of(sizing, "brokers")
    by_need = [
        Figure(f"brokers_by_{name.replace(' ', '_')}", f"brokers for {name}", count, "brokers",
               needs[name], ARITHMETIC, group="brokers")
        for name, count in sizing.brokers_by.items()
    ]  # fmt: skip
    return [brokers, *by_need, *others]


def producer_figures(sizing: Sizing, acknowledged_p99_ms: float) -> list[Figure]:
    inputs, group = sizing.inputs, "a producer"
    batches = sizing.partitions * inputs.batch_bytes
    rate = sizing.peak_messages_per_second * inputs.message_bytes / inputs.producers
    waiting = rate * acknowledged_p99_ms / 1000
    filled = min(
        float(inputs.batch_bytes),
        max(rate / sizing.partitions * inputs.linger / 1000, inputs.message_bytes),
    )
    needed = max(batches, waiting)
    return [
        Figure("producer_batches_bytes", "open batches", batches, "bytes",
               f"{sizing.partitions} partitions × {format_quantity(inputs.batch_bytes, 'bytes')},"
               " one open batch per partition",
               "Kafka: RecordAccumulator, batch.size", group=group),
        Figure("producer_waiting_bytes", "unacknowledged at the p99 latency", waiting,
               "bytes", "messages at the peak × message bytes / producers ×"
               f" {acknowledged_p99_ms:.3g} ms from produced to acknowledged",
               "Little's law", group=group),
        Figure("producer_memory_bytes", "producer memory",
               max(float(inputs.buffer_bytes), 2.0 * needed), "bytes",
               "twice the larger of open batches and unacknowledged bytes, at least"
               f" {format_quantity(inputs.buffer_bytes, 'bytes')}; the larger one itself is"
               " the minimum",
               "Kafka: ProducerConfig, buffer.memory", minimum=needed, setting="buffer.memory",
               group=group),
        Figure("producer_batch_fill_bytes", "size of a sent batch", filled, "bytes",
               "messages at the peak × message bytes / producers / partitions × linger"
               f" {inputs.linger:g} ms; at least one message, at most batch.size",
               "Kafka: ProducerConfig, linger.ms", group=group),
        Figure("produce_requests_per_second", "produce requests to a broker, peak",
               requests_per_second(sizing, sizing.peak_messages_per_second), "requests/s",
               f"{inputs.producers} producers, each one request per linger of"
               f" {inputs.linger:g} ms (at least 1 ms); more if requests of 1 MiB are full,"
               " at most one per message",
               "Kafka: one ProduceRequest per broker, linger.ms", group=group),
        Figure("producer_request_window", "requests in flight per broker", IN_FLIGHT_REQUESTS,
               "requests", "Kafka's default, with which an idempotent producer keeps the order",
               "Kafka: max.in.flight.requests.per.connection", group=group),
    ]  # fmt: skip
