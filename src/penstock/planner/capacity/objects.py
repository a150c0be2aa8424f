"""What diskless topics ask of the store, and how long producing takes: models and figures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Final

from penstock.planner.capacity.ceilings import (
    STORE_PREFIX_PUTS_PER_SECOND,
    WAL_PREFIXES,
    Deployment,
)
from penstock.planner.capacity.inputs import CapacityInputs
from penstock.planner.capacity.sizing import DAY_SECONDS, MONTH_DAYS, REQUEST_BYTES, Sizing
from penstock.planner.latency import (
    DisklessLatency,
    Distribution,
    diskless_latency,
    gathering_ms,
    objects_per_second,
    waiting,
)
from penstock.planner.results import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests to the object store a second, at the mean rate."""

    puts: float
    segment_puts: float
    consolidation_gets: float
    zone_gets: float
    replay_gets: float
    extents_per_object: float
    object_bytes: float
    replay_bytes: float
    """Bytes a second of old data that a broker reads before consolidation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """From a message's send on, in milliseconds."""

    acknowledged: Distribution
    consumed: Distribution
    diskless: DisklessLatency | None
    saturated: bool


def requests_per_second(inputs: CapacityInputs, sizing: Sizing, messages: float) -> float:
    """Produce requests a second to one broker.

    Every producer sends one to every broker per linger (1 ms at the least), unless there are
    fewer messages than that, and more when a request is full.
    """
    share = messages / sizing.peak_messages_per_second
    by_time = inputs.producers * 1000 / max(inputs.linger, 1.0)
    by_bytes = sizing.peak_write_bytes_per_second * share / sizing.brokers / REQUEST_BYTES
    return min(messages / sizing.brokers, max(by_time, by_bytes))


def put_latency(inputs: CapacityInputs, deployment: Deployment) -> Distribution:
    """Of a PUT."""
    names = deployment.put_names(inputs)
    return deployment.latency(*names, p50=inputs.put_p50, p99=inputs.put_p99)


def commit_latency(inputs: CapacityInputs, deployment: Deployment) -> Distribution:
    """Of a commit."""
    p50, p99 = inputs.commit_p50, inputs.commit_p99
    return deployment.latency("commit_p50_ms", "commit_p99_ms", p50=p50, p99=p99)


def object_latency(
    inputs: CapacityInputs,
    deployment: Deployment,
    sizing: Sizing,
    *,
    interval_ms: float | None = None,
) -> DisklessLatency:
    """The model of `penstock.planner.latency` for one broker at the peak."""
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
    """At the peak, of any storage."""
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
            # all followers fetch and write at the same time, after the leader
            answered = answered.plus(synced).plus(Distribution.constant(inputs.round_trip))
    acknowledged = lingering.plus(answered)
    delivery = deployment.latency("delivery_p50_ms", "delivery_p99_ms")
    return Latencies(
        acknowledged=acknowledged,
        consumed=acknowledged.plus(delivery),
        diskless=found,
        saturated=saturated,
    )


def store_requests(inputs: CapacityInputs, deployment: Deployment, sizing: Sizing) -> Requests:
    """Of diskless topics, on all brokers."""
    puts = puts_per_second(inputs, deployment, sizing)
    object_bytes, messages_per_object = (
        sizing.write_bytes_per_second / puts,
        sizing.messages_per_second / puts,
    )
    led = max(1.0, sizing.partitions / sizing.brokers)
    extents = max(1.0, min(led, messages_per_object))
    settings = deployment.diskless
    by_bytes = sizing.write_bytes_per_second / settings.consolidation_segment_bytes
    by_extents = puts * extents / settings.consolidation_min_extents
    on = settings.consolidation_interval_ms > 0
    readers = max(1.0, min(extents, sizing.brokers / inputs.zones))
    zone_gets = puts * readers * (inputs.zones - 1) if inputs.zone_aware and inputs.groups else 0.0
    limit = deployment.fetching.lagging_rate_limit or inf
    extent_bytes = object_bytes / extents
    wanted = sizing.write_bytes_per_second * inputs.lagging_groups / max(1.0, extent_bytes)
    return Requests(
        puts=puts,
        segment_puts=max(by_bytes, by_extents) if on else 0.0,
        consolidation_gets=puts * extents if on else 0.0,
        zone_gets=zone_gets,
        replay_gets=min(wanted, limit * sizing.brokers),
        extents_per_object=extents,
        object_bytes=object_bytes,
        replay_bytes=extent_bytes * limit,
    )


def puts_per_second(
    inputs: CapacityInputs,
    deployment: Deployment,
    sizing: Sizing,
    *,
    interval_ms: float | None = None,
) -> float:
    """Objects that all brokers write a second at the mean rate."""
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
    """The same plan at another rate."""
    return replace(inputs, messages_per_second=messages_per_second)


_MODEL: Final = "Penstock's latency model: Lindley's recursion over an interval, PUTs and commits"
_SUM: Final = "sums of independent lognormal parts, by quantiles"
_SETTINGS: Final = "Penstock's settings of diskless topics"


def latency_figures(
    inputs: CapacityInputs, deployment: Deployment, sizing: Sizing, found: Latencies
) -> list[Figure]:
    """From a message's send to its answer, and to a consumer."""
    source = _SUM if found.diskless is None else _MODEL
    figure = partial(Figure, group="latency at the peak", unit="ms", source=source)
    if found.diskless is None:
        parts = (
            f"linger {inputs.linger:g} ms + round trip {inputs.round_trip:g} ms + append and sync:"
            f" p50 {deployment.said('produce_p50_ms')}, p99 {deployment.said('produce_p99_ms')}"
            + (", once more for the followers" if inputs.copies > 1 else "")
        )
    else:
        parts = (
            f"linger {inputs.linger:g} ms + round trip {inputs.round_trip:g} ms + wait of up to"
            f" {found.diskless.interval_ms:.3g} ms + PUT + turn + commit"
        )
    rows = [
        *_quantiles(figure, "produce", "produced to acknowledged", found.acknowledged, parts),
        *_quantiles(
            figure, "end_to_end", "produced to consumed", found.consumed,
            f"the above + delivery: p50 {deployment.said('delivery_p50_ms')},"
            f" p99 {deployment.said('delivery_p99_ms')}",
        ),
    ]  # fmt: skip
    if found.diskless is None:
        return rows
    p50, p99 = deployment.put_names(inputs)
    given = inputs.put_p50 or inputs.put_p99
    put_from = "given" if given else f"p50 {deployment.said(p50)}, p99 {deployment.said(p99)}"
    given = inputs.commit_p50 or inputs.commit_p99
    commit_from = (
        "given"
        if given
        else f"p50 {deployment.said('commit_p50_ms')}, p99 {deployment.said('commit_p99_ms')}"
    )
    put, commit = put_latency(inputs, deployment), commit_latency(inputs, deployment)
    configured = deployment.interval_ms(inputs)
    waits = "an object closes so long after its first request, which waits for all of it"
    return [
        *rows,
        figure(name="object_interval_ms", label="an object gathers",
               value=found.diskless.interval_ms, setting="diskless.commit.interval.ms",
               formula=f"{configured} ms, less when diskless.buffer.max.bytes is full before, more"
               " while PUTs or commits take longer", source=_SETTINGS),
        *_quantiles(figure, "gathering", "of it: waiting", found.diskless.wait, waits),
        *_quantiles(figure, "put", "of it: PUT", put, put_from),
        *_quantiles(figure, "commit", "of it: commit", commit, commit_from),
        *_quantiles(figure, "object_write", "of it: PUT, turn and commit", found.diskless.write,
                    "max(PUT, what the object before still takes) + commit"),
    ]  # fmt: skip


def _quantiles(
    figure: partial[Figure], name: str, label: str, of: Distribution, formula: str
) -> list[Figure]:
    return [
        figure(name=f"{name}_p{percent}_ms", label=f"{label}, p{percent}",
               value=of.quantile(percent / 100), formula=formula)
        for percent in (50, 99)
    ]  # fmt: skip


def request_figures(
    inputs: CapacityInputs, deployment: Deployment, sizing: Sizing, asked: Requests
) -> list[Figure]:
    """Requests to the object store."""
    figure = partial(Figure, group="object store", unit="requests/s", source=_MODEL)
    month = DAY_SECONDS * MONTH_DAYS
    puts, gets = asked.puts + asked.segment_puts, asked.consolidation_gets + asked.zone_gets
    settings = deployment.diskless
    return [
        figure(name="object_bytes", label="bytes of an object", value=asked.object_bytes,
               unit="bytes", formula="written / PUTs a second; at most"
               f" diskless.buffer.max.bytes = {settings.buffer_bytes_max:,}", source=_SETTINGS),
        figure(name="object_puts_per_second", label="PUTs of objects", value=asked.puts,
               formula=f"{sizing.brokers} brokers × 1 / (interval + time until the next request)"),
        figure(name="segment_puts_per_second", label="PUTs of segments",
               value=asked.segment_puts, source=_SETTINGS,
               formula="written / diskless.consolidation.segment.bytes, or extents /"
               " diskless.consolidation.min.extents where that is more"),
        figure(name="consolidation_gets_per_second", label="GETs of consolidation",
               value=asked.consolidation_gets, source=_SETTINGS,
               formula=f"objects × {asked.extents_per_object:.3g} extents, each read once"),
        figure(name="zone_gets_per_second", label="GETs of recent data",
               value=asked.zone_gets, source="Penstock: a rack has its own leaders",
               formula="objects × brokers of other zones that read them, once for all groups;"
               " none where leaders read what they wrote"),
        figure(name="replay_gets_per_second", label="GETs of old data",
               value=asked.replay_gets,
               setting="diskless.fetch.lagging.consumer.request.rate.limit",
               formula=f"lagging groups {inputs.lagging_groups} × written / extent, at most"
               f" {deployment.fetching.lagging_rate_limit} a broker", source=_SETTINGS),
        figure(name="replay_bytes_per_second", label="old data a broker reads, not consolidated",
               value=asked.replay_bytes, unit="bytes/s", source=_SETTINGS,
               formula="rate limit × bytes of a partition in an object"),
        figure(name="store_puts_per_month", label="PUTs in a month", value=puts * month,
               unit="requests", formula=f"PUTs of objects and segments × 86,400 s × {MONTH_DAYS}"),
        figure(name="store_gets_per_month", label="GETs in a month",
               value=(gets + asked.replay_gets) * month, unit="requests",
               formula=f"all GETs × 86,400 s × {MONTH_DAYS}"),
        figure(name="prefix_share", label="share of what one prefix takes",
               value=asked.puts / STORE_PREFIX_PUTS_PER_SECOND, unit="",
               formula=f"PUTs of objects / {STORE_PREFIX_PUTS_PER_SECOND:,} a second; keys are"
               f" spread over {WAL_PREFIXES} prefixes",
               source="Amazon S3: 3,500 PUT and 5,500 GET requests a second per prefix"),
    ]  # fmt: skip
