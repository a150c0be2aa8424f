"""Figures of brokers, producers, produce latency, and requests to the object store."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Final

from penstock.planner.capacity.inputs import (
    STORE_PREFIX_PUTS_PER_SECOND,
    WAL_PREFIXES,
    CapacityInputs,
    Deployment,
)
from penstock.planner.capacity.sizing import (
    ARITHMETIC,
    MONTH_DAYS,
    MONTH_SECONDS,
    REQUEST_BYTES,
    Sizing,
)
from penstock.planner.latency import (
    DisklessLatency,
    Distribution,
    diskless_latency,
    gathering_ms,
    objects_per_second,
    waiting,
)
from penstock.planner.quantities import format_quantity
from penstock.planner.results import Figure, figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Latencies since a message's send, in milliseconds."""

    acknowledged: Distribution
    consumed: Distribution
    diskless: DisklessLatency | None
    saturated: bool


def requests_per_second(inputs: CapacityInputs, sizing: Sizing, messages: float) -> float:
    """Return produce requests per second to one broker.

    Every producer sends one to every broker per linger (at least 1 ms), fewer with fewer messages,
    and more when a request is full.
    """
    share = messages / sizing.peak_messages_per_second
    by_time = inputs.producers * 1000 / max(inputs.linger, 1.0)
    by_bytes = sizing.peak_write_bytes_per_second * share / sizing.brokers / REQUEST_BYTES
    return min(messages / sizing.brokers, max(by_time, by_bytes))


def put_latency(inputs: CapacityInputs, deployment: Deployment) -> Distribution:
    names = deployment.put_names(inputs)
    return deployment.latency(*names, p50=inputs.put_p50, p99=inputs.put_p99)


def commit_latency(inputs: CapacityInputs, deployment: Deployment) -> Distribution:
    p50, p99 = inputs.commit_p50, inputs.commit_p99
    return deployment.latency("commit_p50_ms", "commit_p99_ms", p50=p50, p99=p99)


def object_latency(
    inputs: CapacityInputs,
    deployment: Deployment,
    sizing: Sizing,
    *,
    interval_ms: float | None = None,
) -> DisklessLatency:
    written = sizing.peak_write_bytes_per_second / sizing.brokers
    return diskless_latency(
        interval_ms=deployment.interval_ms(inputs) if interval_ms is None else interval_ms,
        requests_per_second=requests_per_second(inputs, sizing, sizing.peak_messages_per_second),
        put=put_latency(inputs, deployment),
        commit=commit_latency(inputs, deployment),
        request=Distribution.constant(inputs.round_trip),
        objects_in_flight_max=deployment.diskless.objects_in_flight_max,
        fill_ms=deployment.diskless.buffer_bytes_max / written * 1000,
    )


def latencies(inputs: CapacityInputs, deployment: Deployment, sizing: Sizing) -> Latencies:
    per_producer = sizing.peak_messages_per_second / inputs.producers / max(1, sizing.brokers)
    lingering = waiting(inputs.linger, inputs.linger / 1000 * per_producer)
    if inputs.storage == "diskless":
        found = object_latency(inputs, deployment, sizing)
        answered, saturated = found.produce, found.saturated
    else:
        found, saturated = None, False
        synced = deployment.latency("produce_p50_ms", "produce_p99_ms")
        answered = synced.plus(Distribution.constant(inputs.round_trip))
        for _ in range(min(inputs.copies - 1, 1)):
            # all followers fetch and write in parallel, after the leader
            answered = answered.plus(synced).plus(Distribution.constant(inputs.round_trip))
    acknowledged = lingering.plus(answered)
    delivery = deployment.latency("delivery_p50_ms", "delivery_p99_ms")
    return Latencies(
        acknowledged=acknowledged,
        consumed=acknowledged.plus(delivery),
        diskless=found,
        saturated=saturated,
    )


def puts_per_second(
    inputs: CapacityInputs,
    deployment: Deployment,
    sizing: Sizing,
    *,
    interval_ms: float | None = None,
) -> float:
    written = sizing.write_bytes_per_second / sizing.brokers
    gathers_ms = gathering_ms(
        deployment.interval_ms(inputs) if interval_ms is None else interval_ms,
        put_latency(inputs, deployment),
        commit_latency(inputs, deployment),
        objects_in_flight_max=deployment.diskless.objects_in_flight_max,
        fill_ms=deployment.diskless.buffer_bytes_max / written * 1000,
    )
    requests = requests_per_second(inputs, sizing, sizing.messages_per_second)
    return sizing.brokers * objects_per_second(gathers_ms, requests)


def with_rate(inputs: CapacityInputs, messages_per_second: float) -> CapacityInputs:
    return replace(inputs, messages_per_second=messages_per_second)


_MODEL: Final = "Penstock's latency model: Lindley's recursion over an interval, PUTs and commits"
_SUM: Final = "sums of independent lognormal parts, by quantiles"
_SETTINGS: Final = "Penstock's settings of diskless topics"
_STORE: Final = "object store"


def latency_figures(
    inputs: CapacityInputs, deployment: Deployment, sizing: Sizing, found: Latencies
) -> list[Figure]:
    source = _SUM if found.diskless is None else _MODEL
    row = partial(Figure, group="latency at the peak", unit="ms", source=source)
    if found.diskless is None:
        parts = (
            f"linger {inputs.linger:g} ms + round trip {inputs.round_trip:g} ms + append and sync:"
            f" p50 {deployment.text('produce_p50_ms')}, p99 {deployment.text('produce_p99_ms')}"
            + (", once more for the followers" if inputs.copies > 1 else "")
        )
    else:
        parts = (
            f"linger {inputs.linger:g} ms + round trip {inputs.round_trip:g} ms + wait of up to"
            f" {found.diskless.interval_ms:.3g} ms + PUT + turn + commit"
        )
    rows = [
        *_quantiles(row, "produce", "produced to acknowledged", found.acknowledged, parts),
        *_quantiles(
            row, "end_to_end", "produced to consumed", found.consumed,
            f"the above + delivery: p50 {deployment.text('delivery_p50_ms')},"
            f" p99 {deployment.text('delivery_p99_ms')}",
        ),
    ]  # fmt: skip
    if found.diskless is None:
        return rows
    p50, p99 = deployment.put_names(inputs)
    given = inputs.put_p50 or inputs.put_p99
    put_from = "given" if given else f"p50 {deployment.text(p50)}, p99 {deployment.text(p99)}"
    given = inputs.commit_p50 or inputs.commit_p99
    commit_from = (
        "given"
        if given
        else f"p50 {deployment.text('commit_p50_ms')}, p99 {deployment.text('commit_p99_ms')}"
    )
    put, commit = put_latency(inputs, deployment), commit_latency(inputs, deployment)
    configured = deployment.interval_ms(inputs)
    waits = "an object closes so long after its first request, which waits for all of it"
    return [
        *rows,
        row(name="object_interval_ms", label="an object gathers",
            value=found.diskless.interval_ms, setting="diskless.commit.interval.ms",
            formula=f"{configured} ms, less when diskless.buffer.max.bytes is full before, more"
            " while PUTs or commits take longer", source=_SETTINGS),
        *_quantiles(row, "gathering", "of it: waiting", found.diskless.wait, waits),
        *_quantiles(row, "put", "of it: PUT", put, put_from),
        *_quantiles(row, "commit", "of it: commit", commit, commit_from),
        *_quantiles(row, "object_write", "of it: PUT, turn and commit", found.diskless.write,
                    "max(PUT, what the object before still takes) + commit"),
    ]  # fmt: skip


def _quantiles(
    row: partial[Figure], name: str, label: str, of: Distribution, formula: str
) -> list[Figure]:
    return [
        row(name=f"{name}_p{percent}_ms", label=f"{label}, p{percent}",
            value=of.quantile(percent / 100), formula=formula)
        for percent in (50, 99)
    ]  # fmt: skip


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests of diskless topics to the store per second, on all brokers, at the mean rate."""

    inputs: CapacityInputs
    deployment: Deployment
    sizing: Sizing
    puts: float

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
        """Limit of a broker's requests for old data per second."""
        return self.deployment.fetching.lagging_rate_limit or inf

    @figure("bytes of an object", "bytes", group=_STORE, source=_SETTINGS,
            formula="written / PUTs a second; at most diskless.buffer.max.bytes ="
            " {deployment.diskless.buffer_bytes_max:,}")
    def object_bytes(self) -> float:
        return self.sizing.write_bytes_per_second / self.puts

    @figure("PUTs of objects", "requests/s", group=_STORE, source=_MODEL,
            formula="{sizing.brokers} brokers × 1 / (interval + time until the next request)")
    def object_puts_per_second(self) -> float:
        return self.puts

    @figure("PUTs of segments", "requests/s", group=_STORE, source=_SETTINGS,
            formula="written / diskless.consolidation.segment.bytes, or extents /"
            " diskless.consolidation.min.extents where that is more")
    def segment_puts_per_second(self) -> float:
        settings = self.deployment.diskless
        by_bytes = self.sizing.write_bytes_per_second / settings.consolidation_segment_bytes
        by_extents = self.puts * self.extents / settings.consolidation_min_extents
        return max(by_bytes, by_extents) if self.consolidated else 0.0

    @figure("GETs of consolidation", "requests/s", group=_STORE, source=_SETTINGS,
            formula="objects × {extents:.3g} extents, each read once")
    def consolidation_gets_per_second(self) -> float:
        return self.puts * self.extents if self.consolidated else 0.0

    @figure("GETs of recent data", "requests/s", group=_STORE,
            source="Penstock: a rack has its own leaders",
            formula="objects × brokers of other zones that read them, once for all groups; none"
            " where leaders read what they wrote")
    def zone_gets_per_second(self) -> float:
        zones = self.inputs.zones
        if not (self.inputs.zone_aware and self.inputs.groups):
            return 0.0
        return self.puts * max(1.0, min(self.extents, self.sizing.brokers / zones)) * (zones - 1)

    @figure("GETs of old data", "requests/s", group=_STORE, source=_SETTINGS,
            setting="diskless.fetch.lagging.consumer.request.rate.limit",
            formula="lagging groups {inputs.lagging_groups} × written / extent, at most"
            " {deployment.fetching.lagging_rate_limit} a broker")
    def replay_gets_per_second(self) -> float:
        old = self.sizing.write_bytes_per_second * self.inputs.lagging_groups
        return min(old / max(1.0, self.extent_bytes), self.replay_limit * self.sizing.brokers)

    @figure("old data a broker reads, not consolidated", "bytes/s", group=_STORE,
            source=_SETTINGS, formula="rate limit × bytes of a partition in an object")
    def replay_bytes_per_second(self) -> float:
        return self.extent_bytes * self.replay_limit

    @figure("PUTs in a month", "requests", group=_STORE, source=_MODEL,
            formula=f"PUTs of objects and segments × 86,400 s × {MONTH_DAYS}")
    def store_puts_per_month(self) -> float:
        return (self.puts + self.segment_puts_per_second) * MONTH_SECONDS

    @figure("GETs in a month", "requests", group=_STORE, source=_MODEL,
            formula=f"all GETs × 86,400 s × {MONTH_DAYS}")
    def store_gets_per_month(self) -> float:
        gets = self.consolidation_gets_per_second + self.zone_gets_per_second
        return (gets + self.replay_gets_per_second) * MONTH_SECONDS

    @figure("share of what one prefix takes", group=_STORE,
            formula=f"PUTs of objects / {STORE_PREFIX_PUTS_PER_SECOND:,} a second; keys are spread"
            f" over {WAL_PREFIXES} prefixes",
            source="Amazon S3: 3,500 PUT and 5,500 GET requests a second per prefix")
    def prefix_share(self) -> float:
        return self.puts / STORE_PREFIX_PUTS_PER_SECOND
# fmt: on


def store_requests(inputs: CapacityInputs, deployment: Deployment, sizing: Sizing) -> Requests:
    puts = puts_per_second(inputs, deployment, sizing)
    return Requests(inputs=inputs, deployment=deployment, sizing=sizing, puts=puts)


IN_FLIGHT_REQUESTS: Final = 5
"""max.in.flight.requests.per.connection of Kafka's producer."""


def broker_figures(inputs: CapacityInputs, deployment: Deployment, sizing: Sizing) -> list[Figure]:
    figure = partial(Figure, group="brokers", source=ARITHMETIC, unit="brokers")
    free = sizing.free
    produce = deployment.text(deployment.produce_name(inputs))
    cpu = deployment.text(deployment.produce_cpu_name(inputs))
    needs = {
        "throughput": f"(written with replicas / {produce} MB/s"
        f" + read / {deployment.text('consume_mb_per_s')} MB/s) / {free}, at the peak",
        "cores": f"(written × {cpu} s/GB + read ×"
        f" {deployment.text('consume_cpu_s_per_gb')} s/GB) / {inputs.broker_cores:g} cores"
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
               value=sizing.replicas_per_broker, group="brokers",
               formula="partitions × replicas / brokers", source=ARITHMETIC)
    )  # fmt: skip
    rows.append(
        figure(name="idle_brokers", label="brokers without a partition", value=sizing.idle_brokers,
               formula="brokers - partitions × replicas, where that is more than none")
    )  # fmt: skip
    return rows


def producer_figures(
    inputs: CapacityInputs, sizing: Sizing, acknowledged_p99_ms: float
) -> list[Figure]:
    figure = partial(Figure, group="a producer", unit="bytes")
    batches = sizing.partitions * inputs.batch_bytes
    rate = sizing.peak_messages_per_second * inputs.message_bytes / inputs.producers
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
               value=requests_per_second(inputs, sizing, sizing.peak_messages_per_second),
               unit="requests/s",
               formula=f"{inputs.producers} producers, one per linger of {inputs.linger:g} ms"
               " (1 ms at least), more when requests of 1 MiB are full; at most one per message",
               source="Kafka: one ProduceRequest per broker, linger.ms"),
        figure(name="producer_request_window", label="requests under way per broker",
               value=IN_FLIGHT_REQUESTS, unit="requests",
               formula="the default, at which an idempotent producer keeps its order",
               source="Kafka: max.in.flight.requests.per.connection"),
    ]  # fmt: skip
