"""Latency of a produce request to a diskless topic, as a distribution.

The latency is the sum of consecutive parts:

    request + wait for the object to close + PUT + wait for earlier commits + commit

The plan needs medians and 99th percentiles of the sum. Neither is the sum of the parts' quantiles:
two independent parts, each slow once in 100 times, are both slow once in 10,000 times, and at least
one of them is slow about twice in 100. Therefore the parts are combined as independent random
variables, and quantiles are read from the result.

A `Distribution` stores quantiles at fixed shares, which are denser near 1. Combining two
distributions takes all pairs of their values with their weights, and reads the quantiles of the
pairs. The calculation uses no random numbers. It is monotonic: if a part is larger at every
quantile, the sum is larger too.

**Wait for the object to close.** An object closes one interval after its first request. The first
request waits for the whole interval. Later requests arrive at random moments and wait for the rest
of it.

**Wait for earlier commits.** PUTs run in parallel, but objects are committed one at a time, in the
order in which they closed. So each object waits until the previous one is committed. L is the time
from an object's closing to its commit, D the time between two closings, P the PUT and C the commit:

    L = max(P, previous L - D) + C        D = interval + time until the next request

This is Lindley's recursion of a queue. Its fixed point is found by repetition.

**Limits.** Parts are assumed to be independent. On one disk PUTs and commits are slow at the same
times (correlations of 0.15 to 0.5 were measured). There the measured 99th percentile was 9 to 40 %
above the model's, in runs of ten seconds. With a store that takes 50 ms or more, it was within 1 %.

Source: D. V. Lindley, "The theory of queues with a single server" (1952).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.planner.inputs import ImpossiblePlan

Floats = NDArray[np.float64]

_EDGES: Final[Floats] = np.concatenate(
    [
        np.linspace(0.0, 0.99, 133),
        np.linspace(0.99, 0.999, 31)[1:],
        np.linspace(0.999, 0.9999, 31)[1:],
        [1.0],
    ]
)
_SHARES: Final[Floats] = (_EDGES[1:] + _EDGES[:-1]) / 2
"""Shares at which a distribution stores its quantiles."""
_WEIGHTS: Final[Floats] = np.diff(_EDGES)
_PAIR_WEIGHTS: Final[Floats] = np.multiply.outer(_WEIGHTS, _WEIGHTS).ravel()
_DEVIATES: Final[Floats] = np.array([NormalDist().inv_cdf(share) for share in _SHARES])
_DEVIATE_99: Final = NormalDist().inv_cdf(0.99)

_TURNS_MAX: Final = 64
"""Maximum repetitions of the recursion; the last value is used if it has not converged."""
_CONVERGED: Final = 1e-3
"""Relative change below which the recursion has converged."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Distribution of a duration in milliseconds: its quantiles at `_SHARES`, ascending."""

    values: Floats

    @classmethod
    def constant(cls, value_ms: float) -> Distribution:
        return cls(np.full(len(_SHARES), float(value_ms)))

    @classmethod
    def lognormal(cls, p50_ms: float, p99_ms: float) -> Distribution:
        """Return the lognormal distribution with this median and 99th percentile, in milliseconds.

        Raises:
            ImpossiblePlan: 0 < p50 <= p99 does not hold.
        """
        if not 0 < p50_ms <= p99_ms:
            raise ImpossiblePlan(
                "the 99th percentile must be at least the median, and both above 0",
                f"p50 = {p50_ms:g} ms, p99 = {p99_ms:g} ms",
                "give two figures of the same measurement",
            )
        sigma = log(p99_ms / p50_ms) / _DEVIATE_99
        return cls(p50_ms * np.exp(sigma * _DEVIATES))

    @classmethod
    def samples(cls, values_ms: Sequence[float]) -> Distribution:
        return cls(np.quantile(np.asarray(values_ms, dtype=np.float64), _SHARES))

    @classmethod
    def histogram(cls, bounds_ms: Sequence[float], counts: Sequence[float]) -> Distribution:
        """Return the distribution of a histogram.

        `counts` has the number of durations up to each bound, and last the number above all bounds.
        Values are spread evenly within a bucket. Values above the last bound count as that bound.
        At least one count must be above 0.
        """
        edges = np.concatenate([[0.0], np.asarray(bounds_ms, dtype=np.float64), [bounds_ms[-1]]])
        below = np.concatenate([[0.0], np.cumsum(np.asarray(counts, dtype=np.float64))])
        rising = np.concatenate([[True], np.diff(below) > 0])
        before = np.concatenate([rising[1:], [True]])
        kept = rising | before
        return cls(np.interp(_SHARES, below[kept] / below[-1], edges[kept]))

    @classmethod
    def exponential(cls, mean_ms: float) -> Distribution:
        """Return the distribution of the time until the next of events at random moments."""
        return cls(-mean_ms * np.log1p(-_SHARES))

    def quantile(self, share: float) -> float:
        return float(np.interp(share, _SHARES, self.values))

    @property
    def mean(self) -> float:
        return float(self.values @ _WEIGHTS)

    def plus(self, other: Distribution) -> Distribution:
        """Return the sum of two independent durations."""
        return _combined(np.add.outer(self.values, other.values))

    def minus(self, other: Distribution) -> Distribution:
        """Return the difference of two independent durations."""
        return _combined(np.subtract.outer(self.values, other.values))

    def later(self, other: Distribution) -> Distribution:
        """Return the larger of two independent durations."""
        return _combined(np.maximum.outer(self.values, other.values))


ZERO: Final = Distribution.constant(0.0)


def _combined(pairs: Floats) -> Distribution:
    flat = pairs.ravel()
    order = np.argsort(flat)
    below = np.cumsum(_PAIR_WEIGHTS[order])
    indexes = np.minimum(np.searchsorted(below, _SHARES), len(flat) - 1)
    return Distribution(flat[order[indexes]])


def waiting(interval_ms: float, arrivals_per_interval: float) -> Distribution:
    """Return how long requests wait until their object closes.

    An object has one first request, and `arrivals_per_interval` later ones on average. The first
    waits for the whole interval, each later one for a random part of it.
    """
    later = arrivals_per_interval / (1.0 + arrivals_per_interval)
    if later == 0.0:
        return Distribution.constant(interval_ms)
    return Distribution(interval_ms * np.minimum(1.0, _SHARES / later))


@dataclass(frozen=True, slots=True, kw_only=True)
class DisklessLatency:
    """Parts of a produce latency in milliseconds, and their sum."""

    interval_ms: float
    """Time in milliseconds that an object stays open for requests."""
    objects_per_second: float
    wait: Distribution
    write: Distribution
    """Time from an object's closing until it is committed."""
    produce: Distribution
    """Time from the request until its response."""
    saturated: bool
    """Whether objects stay open longer than planned, because earlier ones are not committed yet."""


def diskless_latency(
    *,
    interval_ms: float,
    requests_per_second: float,
    put: Distribution,
    commit: Distribution,
    request: Distribution = ZERO,
    objects_in_flight_max: int = 8,
    fill_ms: float = inf,
) -> DisklessLatency:
    """Return the latency of produce requests that reach one broker at random moments.

    `request` is the time of a request without wait and write: a network round trip. `fill_ms` is
    the time after which an object is full. An object stays open beyond its interval while
    `objects_in_flight_max` earlier objects are being written, or while a commit takes longer than
    the interval.
    """
    planned_ms = min(interval_ms, fill_ms)
    gathers_ms = gathering_ms(
        interval_ms, put, commit, objects_in_flight_max=objects_in_flight_max, fill_ms=fill_ms
    )
    per_ms = requests_per_second / 1000
    gap_ms = 1 / per_ms if per_ms > 0 else inf
    wait = waiting(gathers_ms, gathers_ms * per_ms)
    write = _in_turn(put, commit, gathers_ms, gap_ms)
    return DisklessLatency(
        interval_ms=gathers_ms,
        objects_per_second=objects_per_second(gathers_ms, requests_per_second),
        wait=wait,
        write=write,
        produce=request.plus(wait).plus(write),
        saturated=planned_ms < gathers_ms,
    )


def gathering_ms(
    interval_ms: float,
    put: Distribution,
    commit: Distribution,
    *,
    objects_in_flight_max: int = 8,
    fill_ms: float = inf,
) -> float:
    """Return how long an object stays open, in milliseconds.

    It is the interval, or less if the object is full earlier, or more if writes are slow.
    """
    written_ms = (put.mean + commit.mean) / objects_in_flight_max
    return max(min(interval_ms, fill_ms), written_ms, commit.mean)


def objects_per_second(gathers_ms: float, requests_per_second: float) -> float:
    """Return one broker's objects per second; the first request after a close opens an object."""
    if requests_per_second <= 0:
        return 0.0
    return 1000 / (gathers_ms + 1000 / requests_per_second)


def _in_turn(
    put: Distribution, commit: Distribution, interval_ms: float, gap_ms: float
) -> Distribution:
    write = put.plus(commit)
    if gap_ms == inf:
        return write
    between = Distribution(interval_ms + Distribution.exponential(gap_ms).values)
    for _ in range(_TURNS_MAX):
        if write.values[-1] - between.values[0] <= put.values[0]:
            return write
        following = put.later(write.minus(between)).plus(commit)
        change = np.max(np.abs(following.values - write.values) / np.maximum(write.values, 1e-9))
        write = following
        if change < _CONVERGED:
            return write
    return write
