"""Metrics: the text that a scraper reads, parsed by the reference parser."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_parser,
)
from prometheus_client.parser import text_string_to_metric_families

from penstock.base.metrics import (
    Exemplar,
    Histogram,
    Metric,
    Metrics,
    Registry,
    Sample,
    accepts_openmetrics,
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


def exported(samples: Iterable[Sample]) -> bytes:
    """The text that prometheus_client makes of the same values."""
    families: dict[str, Family] = {}
    for sample in samples:
        metric, value = sample.metric, sample.value
        stem = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
        family = families.setdefault(metric.name, Family(stem, metric.doc, metric.kind))
        labels = dict(zip(metric.labels, sample.labels, strict=True))
        if not isinstance(value, Histogram):
            family.add_sample(metric.name, labels, value)
            continue
        running = 0
        for bound, count in zip((*value.bounds, float("inf")), value.counts, strict=True):
            running += count
            le = "+Inf" if bound == float("inf") else repr(bound)
            family.add_sample(f"{metric.name}_bucket", {**labels, "le": le}, running)
        family.add_sample(f"{metric.name}_sum", labels, value.total)
        family.add_sample(f"{metric.name}_count", labels, running)
    collector = SimpleNamespace(collect=families.values)
    return generate_latest(collector)


ODD = st.text(alphabet=st.sampled_from('a"\\\n{},= é\t'))
VALUES = st.one_of(st.integers(0, 10**6), st.floats(0, 10**6), st.just(float("inf")))


@given(st.lists(st.tuples(ODD, ODD, VALUES), unique_by=lambda row: row[:2]), ODD)
def test_the_text_is_that_of_prometheus_client(
    rows: list[tuple[str, str, float]], doc: str
) -> None:
    metric = Metric(name="penstock_odd", kind="gauge", doc=doc, labels=("z", "a"))
    samples = [Sample(metric, value, (z, a)) for z, a, value in rows]
    samples += collect()
    ours, theirs = render(samples).decode(), exported(samples).decode()
    assert [*text_string_to_metric_families(ours)] == [*text_string_to_metric_families(theirs)]
    assert {line for line in ours.splitlines() if line.startswith("penstock_latency")} == {
        line for line in theirs.splitlines() if line.startswith("penstock_latency")
    }


def openmetrics(text: str) -> list[Any]:
    parse: Callable[[str], Iterator[Any]] = openmetrics_parser
    return list(parse(text))


def test_openmetrics_names_counters_without_their_ending() -> None:
    families = openmetrics(render(collect(), openmetrics=True).decode())
    assert [(family.name, family.type) for family in families] == [
        ("penstock_requests", "counter"),
        ("penstock_latency_seconds", "histogram"),
        ("kafka_consumergroup_lag", "gauge"),
    ]
    assert {sample.name for sample in families[0].samples} == {"penstock_requests_total"}


def test_openmetrics_has_exemplars() -> None:
    histogram = Histogram(bounds=(0.1, 1.0))
    trace = bytes(range(16))
    for value in (0.05, 0.06, 0.5, 5.0):
        histogram.observe(value)
    histogram.keep(Exemplar(0.05, bytes(16), 1_700_000_000.25))
    histogram.keep(Exemplar(0.06, trace, 1_700_000_001.5))
    histogram.keep(Exemplar(5.0, trace, 1_700_000_002.0))
    text = render([Sample(LATENCY, histogram)], openmetrics=True).decode()
    [family] = openmetrics(text)
    found = {
        sample.labels["le"]: sample.exemplar
        for sample in family.samples
        if sample.name.endswith("_bucket")
    }
    assert found["1.0"] is None
    assert found["0.1"] is not None
    assert found["0.1"].labels == {"trace_id": trace.hex()}
    assert (found["0.1"].value, float(found["0.1"].timestamp)) == (0.06, 1_700_000_001.5)
    assert found["+Inf"] is not None
    assert b"trace_id" not in render([Sample(LATENCY, histogram)])


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", True),
        ("text/plain;version=0.0.4, application/openmetrics-text; version=1.0.0;q=0.1", True),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-textual", False),
        ("", False),
    ],
)
def test_openmetrics_is_sent_if_asked_for(accept: str, expected: bool) -> None:
    assert accepts_openmetrics(accept) is expected
