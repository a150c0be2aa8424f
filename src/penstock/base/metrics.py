"""Metrics: declarations, values and their export to Prometheus.

Components increment plain attributes, which costs as little as possible. A subclass of `Metrics`
declares each metric in one statement, with the unit last in the name:

    class CleanerCounters(Metrics, prefix="penstock_cleaner_"):
        passes = counter("passes_total", "Passes over a log.")
        dirty_bytes = gauge("dirty_bytes", "Bytes that wait for a pass.")

A declaration defines the attribute (`counters.passes += 1`), its sample, and its row in the metrics
reference. A gauge whose value must be computed is assigned when samples are requested. At scrape
time a collector yields `Sample`s, and `render` returns them in the Prometheus text format.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeVar, cast

from msgspec import Struct

Kind = Literal["counter", "gauge", "histogram"]
LATENCY_BUCKETS_SECONDS: Final = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01,
    0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip

_Labels = TypeVar("_Labels", bound=str | tuple[str, ...])
_Number = TypeVar("_Number", bound=float)


class Metric(Struct, frozen=True, kw_only=True):
    """Declaration of a metric: its name with the unit last, its labels and one sentence."""

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()


class Sample(Struct, frozen=True):
    """Value of a metric; `labels` are in the order of the metric's declaration."""

    metric: Metric
    value: float | Histogram
    labels: tuple[str, ...] = ()


class Histogram:
    """Number of observations in each bucket, and their sum; an observation takes about 0.3 µs."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = LATENCY_BUCKETS_SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


def counter(name: str, doc: str) -> int:
    """Declare a counter, of whole numbers unless the attribute is annotated as `float`."""
    return cast("int", _Declaration("counter", name, doc))


def gauge(name: str, doc: str) -> int:
    """Declare a gauge, of whole numbers unless the attribute is annotated as `float`.

    A gauge with the value None is not exported.
    """
    return cast("int", _Declaration("gauge", name, doc))


def histogram(name: str, doc: str, bounds: Sequence[float] = LATENCY_BUCKETS_SECONDS) -> Histogram:
    """Declare a histogram."""
    return cast("Histogram", _Declaration("histogram", name, doc, new=partial(Histogram, bounds)))


def counters(name: str, doc: str, *labels: str) -> dict[_Labels, _Number]:
    """Declare counters with labels, as a dictionary.

    A key is the value of the label, or a tuple of values in the order of several labels. Missing
    counters are created with 0: `counters["produce"] += 1`.
    """
    new: Callable[[], object] = partial(defaultdict, int)
    return cast("dict[_Labels, _Number]", _Declaration("counter", name, doc, labels, new))


def gauges(name: str, doc: str, *labels: str) -> dict[_Labels, _Number]:
    """Declare gauges with labels, as a dictionary with keys as in `counters`."""
    return cast("dict[_Labels, _Number]", _Declaration("gauge", name, doc, labels, dict))


def histograms(name: str, doc: str, label: str) -> dict[str, Histogram]:
    """Declare histograms with one label, as a dictionary by the label's value."""
    return cast("dict[str, Histogram]", _Declaration("histogram", name, doc, (label,), dict))


class _Declaration(Struct, frozen=True):
    kind: Kind
    name: str
    doc: str
    labels: tuple[str, ...] = ()
    new: Callable[[], object] = int


class _Declaring(type):
    """Metaclass that turns declarations in a class body into slots."""

    initial: dict[str, Callable[[], object]]
    metrics: dict[str, Metric]

    def __new__(
        cls,
        name: str,
        bases: tuple[type, ...],
        body: dict[str, Any],
        *,
        prefix: str = "",
        labels: tuple[str, ...] = (),
    ) -> _Declaring:
        declared = {key: value for key, value in body.items() if isinstance(value, _Declaration)}
        kept = {key: value for key, value in body.items() if key not in declared}
        slots = (*declared, *body.get("__slots__", ()))
        made = super().__new__(cls, name, bases, {**kept, "__slots__": slots})
        made.initial = {key: declaration.new for key, declaration in declared.items()}
        made.metrics = {
            key: Metric(
                name=prefix + declaration.name,
                kind=declaration.kind,
                doc=declaration.doc,
                labels=labels + declaration.labels,
            )
            for key, declaration in declared.items()
        }
        return made


class Metrics(metaclass=_Declaring):
    """Values of the metrics that the class body declares, as plain attributes in slots.

    Class arguments of a subclass are the `prefix` of its metrics' names, and the names of `labels`
    that all of them have.
    """

    def __init__(self) -> None:
        for attribute, new in type(self).initial.items():
            setattr(self, attribute, new())

    def samples(self, *labels: str) -> Iterator[Sample]:
        """Yield the values in the order of their declarations.

        `labels` are the values of the labels that all metrics of the class have.
        """
        for attribute, metric in type(self).metrics.items():
            value = getattr(self, attribute)
            if isinstance(value, dict):
                for key, part in value.items():
                    more = (key,) if isinstance(key, str) else key
                    yield Sample(metric, part, (*labels, *more))
            elif value is not None:
                yield Sample(metric, value, labels)


Collector = Callable[[], Iterable[Sample]]


class Registry:
    """Collectors of a process, called in turn at every scrape."""

    __slots__ = ("_collectors",)

    def __init__(self) -> None:
        self._collectors: list[Collector] = []

    def add(self, collector: Collector) -> None:
        self._collectors.append(collector)

    def collect(self) -> Iterator[Sample]:
        for collector in self._collectors:
            yield from collector()


def render(samples: Iterable[Sample]) -> bytes:
    """Return samples in the Prometheus text format; import prometheus_client at the first call."""
    from prometheus_client import exposition
    from prometheus_client.core import Metric as Family

    families: dict[str, Family] = {}
    for sample in samples:
        metric = sample.metric
        family = families.get(metric.name)
        if family is None:
            stem = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
            family = families[metric.name] = Family(stem, metric.doc, metric.kind)
        pairs = dict(zip(metric.labels, sample.labels, strict=True))
        for suffix, extra, value in _points(metric, sample.value):
            family.add_sample(metric.name + suffix, {**pairs, **extra}, value)
    return exposition.generate_latest(_Families(families.values()))  # type: ignore[arg-type]


class _Families:
    """Adapter with the one method that the exposition library calls on a registry."""

    def __init__(self, families: Iterable[object]) -> None:
        self._families = families

    def collect(self) -> Iterable[object]:
        return self._families


def _points(
    metric: Metric, value: float | Histogram
) -> Iterator[tuple[str, dict[str, str], float]]:
    if not isinstance(value, Histogram):
        yield "", {}, value
        return
    running = 0
    for bound, count in zip((*value.bounds, float("inf")), value.counts, strict=True):
        running += count
        yield "_bucket", {"le": "+Inf" if bound == float("inf") else repr(bound)}, running
    yield "_sum", {}, value.total
    yield "_count", {}, running
