"""Metrics: the text that a scraper reads, parsed by the reference parser."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from penstock.base.metrics import Histogram, Metric, Registry, Sample, render

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
