"""Metrics: the text that a scraper reads, parsed by the reference parser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.base.metrics import (
    Histogram,
    Metric,
    Metrics,
    Registry,
    Sample,
    counter,
    counters,
    gauge,
    gauges,
    histogram,
    histograms,
    render,
)

REQUESTS = Metric(
    name="penstock_requests_total", kind="counter", doc="Requests.", labels=("api", "error")
)
LATENCY = Metric(name="penstock_latency_seconds", kind="histogram", doc="Latency.")
LAG = Metric(name="kafka_consumergroup_lag", kind="gauge", doc="Lag.", labels=("group",))


def collect() -> Iterator[Sample]:
    histogram = Histogram(bounds=(0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    yield Sample(REQUESTS, 3, ("fetch", "none"))
    yield Sample(LATENCY, histogram)
    yield Sample(LAG, 5, ('quo"te\\',))
    yield Sample(REQUESTS, 4, ("produce", "none"))


def test_a_scraper_reads_what_was_collected() -> None:
    registry = Registry()
    registry.add(collect)
    families = {
        f.name: f for f in text_string_to_metric_families(render(registry.collect()).decode())
    }
    requests = families["penstock_requests"]
    assert requests.type == "counter"
    assert {(s.labels["api"], s.value) for s in requests.samples} == {("fetch", 3), ("produce", 4)}
    assert families["kafka_consumergroup_lag"].samples[0].labels == {"group": 'quo"te\\'}
    buckets = {
        s.labels["le"]: s.value
        for s in families["penstock_latency_seconds"].samples
        if s.name.endswith("_bucket")
    }
    assert buckets == {"0.1": 2, "1.0": 3, "+Inf": 4}
    values = {s.name: s.value for s in families["penstock_latency_seconds"].samples}
    assert values["penstock_latency_seconds_count"] == 4
    assert values["penstock_latency_seconds_sum"] == 7.65


def test_nothing_collected_renders_as_nothing() -> None:
    assert render(Registry().collect()).strip() == b""


class Parts(Metrics, prefix="penstock_part_", labels=("part",)):
    __slots__ = ("plain",)

    passes = counter("passes_total", "Passes.")
    seconds: float = counter("seconds_total", "Time of passes.")
    lag: int | None = gauge("lag", "Lag, where it is known.")
    failed: dict[str, int] = counters("failed_total", "Failures.", "reason")
    offset: dict[tuple[str, str], int] = gauges("offset", "Offsets.", "topic", "partition")
    size = histogram("size", "Sizes.", (1, 10))
    latency = histograms("latency_seconds", "Latency.", "api")

    def passed(self) -> None:
        self.passes += 1


def test_declarations_are_attributes_samples_and_metrics() -> None:
    parts, others = Parts(), Parts()
    parts.passed()
    parts.seconds += 0.5
    parts.lag = None
    parts.failed["late"] += 2
    parts.offset["topic", "3"] = 7
    parts.size.observe(3)
    parts.latency["fetch"] = Histogram()
    found = {
        (sample.metric.name, *sample.labels): sample.value for sample in parts.samples("first")
    }
    assert found == {
        ("penstock_part_passes_total", "first"): 1,
        ("penstock_part_seconds_total", "first"): 0.5,
        ("penstock_part_failed_total", "first", "late"): 2,
        ("penstock_part_offset", "first", "topic", "3"): 7,
        ("penstock_part_size", "first"): parts.size,
        ("penstock_part_latency_seconds", "first", "fetch"): parts.latency["fetch"],
    }
    assert Parts.metrics["offset"] == Metric(
        name="penstock_part_offset",
        kind="gauge",
        doc="Offsets.",
        labels=("part", "topic", "partition"),
    )
    assert [metric.kind for metric in Parts.metrics.values()] == [
        "counter", "counter", "gauge", "counter", "gauge", "histogram", "histogram",
    ]  # fmt: skip
    assert (others.passes, others.lag, others.size.counts) == (0, 0, [0, 0, 0])


def test_only_declared_attributes_exist() -> None:
    with pytest.raises(AttributeError):
        Parts().other = 1  # type: ignore[attr-defined]
