"""The figures of a capacity plan about latency, and about requests to the object store."""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock.planner.capacity.ceilings import (
    STORE_PREFIX_PUTS_PER_SECOND,
    WAL_PREFIXES,
    Deployment,
)
from penstock.planner.capacity.inputs import CapacityInputs
from penstock.planner.capacity.objects import (
    Latencies,
    Requests,
    commit_latency,
    put_latency,
)
from penstock.planner.capacity.sizing import DAY_SECONDS, MONTH_DAYS, Sizing
from penstock.planner.latency import Distribution
from penstock.planner.results import Figure

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
