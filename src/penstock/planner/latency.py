"""Latency of a produce request to a diskless topic, as a distribution.

It is the sum of consecutive parts:

    request + wait for the object to close + PUT, and the turn to commit + commit

A sum of medians is not a median, and a sum of 99th percentiles is not a 99th percentile: two parts
that are slow once in a hundred times are both slow once in ten thousand, and one of them twice in
a hundred. So the parts are combined as independent random variables, and any quantile is read from
the result.

A `Distribution` is its own quantile function at fixed shares, finer towards the end. Combining two
takes all pairs with their weights, and reads the quantiles of those. It uses no random numbers, and
is monotonic: if a part is larger at every quantile, so is the sum.

**Waiting.** An object closes an interval after its first request. That one waits for all of it;
later ones, at random moments, wait for the rest of it.

**The turn.** PUTs run in parallel, but objects are committed one at a time, in the order of their
closing, so that each waits for the one before. With L for the time from closing to committed, D for
the time between two closings, P for PUT and C for commit:

    L = max(P, L of the one before - D) + C        D = interval + time until the next request

which is Lindley's recursion of a queue; its fixed point is found by repetition.

**Limits.** Parts are assumed to be independent. On one disk PUTs and commits are slow together
(correlations of 0.15 to 0.5 were measured), and the real 99th percentile was 9 to 40 % above the
model's in runs of ten seconds. Where a store takes 50 ms or more it was within 1 %.

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
"""Shares whose quantiles a distribution has."""
_WEIGHTS: Final[Floats] = np.diff(_EDGES)
_PAIR_WEIGHTS: Final[Floats] = np.multiply.outer(_WEIGHTS, _WEIGHTS).ravel()
_DEVIATES: Final[Floats] = np.array([NormalDist().inv_cdf(share) for share in _SHARES])
_DEVIATE_99: Final = NormalDist().inv_cdf(0.99)

_TURNS_MAX: Final = 64
"""Limit of the recursion's repetitions; a queue that has not converged counts as full."""
_CONVERGED: Final = 1e-3
"""Relative change below which the recursion has converged."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Durations in milliseconds: ascending quantiles, at this module's shares."""

    values: Floats

    @classmethod
    def constant(cls, value_ms: float) -> Distribution:
        return cls(np.full(len(_SHARES), float(value_ms)))

    @classmethod
    def lognormal(cls, p50_ms: float, p99_ms: float) -> Distribution:
        """Return the lognormal distribution of this median and 99th percentile.

        Raises:
            ImpossiblePlan: not 0 < p50 <= p99.
        """
        if not 0 < p50_ms <= p99_ms:
            raise ImpossiblePlan(
                "a 99th percentile is at least the median, and both are above 0",
                f"p50 = {p50_ms:g} ms, p99 = {p99_ms:g} ms",
                "give the two figures of the same measurement",
            )
        sigma = log(p99_ms / p50_ms) / _DEVIATE_99
        return cls(p50_ms * np.exp(sigma * _DEVIATES))

    @classmethod
    def samples(cls, values_ms: Sequence[float]) -> Distribution:
        return cls(np.quantile(np.asarray(values_ms, dtype=np.float64), _SHARES))

    @classmethod
    def histogram(cls, bounds_ms: Sequence[float], counts: Sequence[float]) -> Distribution:
        """Return the distribution of counts up to each bound, and above the last.

        Values are evenly spread in each bucket; those above the last bound count as the last bound.
        At least one count is above 0.
        """
        edges = np.concatenate([[0.0], np.asarray(bounds_ms, dtype=np.float64), [bounds_ms[-1]]])
        below = np.concatenate([[0.0], np.cumsum(np.asarray(counts, dtype=np.float64))])
        rising = np.concatenate([[True], np.diff(below) > 0])
        before = np.concatenate([rising[1:], [True]])
        kept = rising | before
        return cls(np.interp(_SHARES, below[kept] / below[-1], edges[kept]))

    @classmethod
    def exponential(cls, mean_ms: float) -> Distribution:
        """Return the time until the next of events at random moments."""
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
    """Return how long requests wait for their object to close after its interval.

    Of an object with one first and `arrivals_per_interval` later requests in the mean, the first
    waits for all of the interval, the others for a random part of it.
    """
    later = arrivals_per_interval / (1.0 + arrivals_per_interval)
    if later == 0.0:
        return Distribution.constant(interval_ms)
    return Distribution(interval_ms * np.minimum(1.0, _SHARES / later))


@dataclass(frozen=True, slots=True, kw_only=True)
class DisklessLatency:
    """Parts of a produce latency in milliseconds, and their sum."""

    interval_ms: float
    """Actual gathering time of objects."""
    objects_per_second: float
    wait: Distribution
    write: Distribution
    """Time from an object's closing until it is committed."""
    produce: Distribution
    """Time from the request until its response."""
    saturated: bool
    """Whether objects close after their interval, since earlier ones are not committed."""


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
    """Return the latency of produce requests at random moments to one broker.

    `request` is the cost of a request that the broker answers at once, and `fill_ms` the time in
    which an object is full before the interval ends. While `objects_in_flight_max` objects are
    written, and where a commit takes longer than an interval, objects continue to gather.
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
    """Return objects' gathering time: the interval, less when full, more with slow writes."""
    written_ms = (put.mean + commit.mean) / objects_in_flight_max
    return max(min(interval_ms, fill_ms), written_ms, commit.mean)


def objects_per_second(gathers_ms: float, requests_per_second: float) -> float:
    """Return objects of one broker: each gathers, and the next begins with the next request."""
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
