"""Metrics: declarations, values and their export to Prometheus.

Components increment plain attributes, which costs as little as possible. A subclass of `Metrics`
declares each metric in one statement, with the unit last in the name:

    class CleanerCounters(Metrics, prefix="penstock_cleaner_"):
        passes = counter("passes_total", "Passes over a log.")
        dirty_bytes = gauge("dirty_bytes", "Bytes that wait for a pass.")

A declaration defines the attribute (`counters.passes += 1`), its sample, and its row in the metrics
reference. A gauge whose value must be computed is assigned when samples are requested. At scrape
time a collector yields `Sample`s, and `render` returns them as Prometheus text or OpenMetrics.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

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


class Sample(Struct, frozen=True, gc=False):
    """Value of a metric; `labels` are in the order of the metric's declaration."""

    metric: Metric
    value: float | Histogram
    labels: tuple[str, ...] = ()


class Exemplar(NamedTuple):
    """Observation of a trace: value, trace id, and time in seconds since the epoch."""

    value: float
    trace_id: bytes
    seconds: float


class Histogram:
    """Number of observations in each bucket, and their sum; an observation takes about 0.3 µs."""

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float] = LATENCY_BUCKETS_SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = {}
        """Newest observation of a trace in each bucket, by the number of the bucket."""

    def observe(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def keep(self, exemplar: Exemplar) -> None:
        """Keep an observation of a trace, which `observe` counts."""
        self.exemplars[bisect_left(self.bounds, exemplar.value)] = exemplar

    def copy(self) -> Histogram:
        copied = Histogram(self.bounds)
        copied.counts, copied.total = list(self.counts), self.total
        copied.exemplars = dict(self.exemplars)
        return copied


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


OPENMETRICS: Final = "application/openmetrics-text"
LABELS_KEPT_MAX: Final = 1 << 15
"""Label texts that are kept between scrapes: about 5 MB."""
_EOF: Final = "# EOF\n"
_ESCAPED: Final = re.compile(r'[\\\n"]')
_ESCAPES: Final = {"\\": "\\\\", "\n": "\\n", '"': '\\"'}
_SPECIAL: Final = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


def accepts_openmetrics(accept: str) -> bool:
    """Return whether a client asks for OpenMetrics, by the `Accept` header of its request."""
    return any(part.partition(";")[0].strip() == OPENMETRICS for part in accept.split(","))


def render(samples: Iterable[Sample], *, openmetrics: bool = False) -> bytes:
    """Return samples in the Prometheus text format, or as OpenMetrics with exemplars."""
    text = Exposition(openmetrics=openmetrics)
    text.add(samples)
    return text.finish()


class Exposition:
    """Text of samples that are added in parts; 1,000 samples take about 0.3 ms.

    prometheus_client needs 4 to 5 ms for them. So the scrape of a broker with 10,000 partitions
    would take twice its limit of 50 ms (`benchmarks/metrics_scrape.py`).
    """

    def __init__(self, *, openmetrics: bool = False) -> None:
        self._openmetrics = openmetrics
        self._families: dict[str, list[str]] = {}

    def add(self, samples: Iterable[Sample]) -> None:
        families, openmetrics = self._families, self._openmetrics
        latest: Metric | None = None
        lines: list[str] = []
        name = ""
        for sample in samples:
            metric, value = sample.metric, sample.value
            if metric is not latest:
                latest, name = metric, metric.name
                if name not in families:
                    families[name] = [_head(metric, openmetrics=openmetrics)]
                lines = families[name]
            labels = _pairs(metric.labels, sample.labels) if metric.labels else ""
            if type(value) is int:
                lines.append(f"{name}{labels} {value}.0\n")
            elif isinstance(value, Histogram):
                lines += _buckets(name, labels, value, exemplars=openmetrics)
            else:
                lines.append(f"{name}{labels} {_number(value)}\n")

    def finish(self) -> bytes:
        text = "".join(["".join(lines) for lines in self._families.values()])
        return (text + _EOF if self._openmetrics else text).encode()


def _head(metric: Metric, *, openmetrics: bool) -> str:
    name, doc = metric.name, metric.doc.replace("\\", "\\\\").replace("\n", "\\n")
    if openmetrics:
        doc = doc.replace('"', '\\"')
        name = name.removesuffix("_total") if metric.kind == "counter" else name
    return f"# HELP {name} {doc}\n# TYPE {name} {metric.kind}\n"


@lru_cache(maxsize=LABELS_KEPT_MAX)
def _pairs(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Return labels in braces, in the order of their names."""
    pairs = sorted(zip(names, values, strict=True))
    inside = [f'{name}="{_ESCAPED.sub(_escape, value)}"' for name, value in pairs]
    return "{" + ",".join(inside) + "}"


def _escape(found: re.Match[str]) -> str:
    return _ESCAPES[found[0]]


def _number(value: float) -> str:
    text = repr(float(value))
    return _SPECIAL.get(text, text)


def _buckets(name: str, labels: str, value: Histogram, *, exemplars: bool) -> Iterator[str]:
    known = value.exemplars if exemplars else {}
    first = labels[:-1] + "," if labels else "{"
    running = 0
    for place, count in enumerate(value.counts):
        running += count
        bound = repr(value.bounds[place]) if place < len(value.bounds) else "+Inf"
        line = f'{name}_bucket{first}le="{bound}"}} {running}.0'
        found = known.get(place)
        if found is not None:
            line += f' # {{trace_id="{found.trace_id.hex()}"}} {found.value!r} {found.seconds:.3f}'
        yield line + "\n"
    yield f"{name}_sum{labels} {_number(value.total)}\n"
    yield f"{name}_count{labels} {running}.0\n"
