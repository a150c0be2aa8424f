"""How long a produce request to a diskless topic takes, as a distribution.

Its latency is a sum of what happens one after the other:

    request + wait for the object to close + PUT, and the turn to commit + commit

A sum of medians is no median, and a sum of 99th percentiles is no 99th percentile: two parts that
are slow once in a hundred times are slow together once in ten thousand, and one of both twice in
a hundred. So the parts are combined as independent random variables, and any quantile is read from
the result.

A `Distribution` is its own quantile function at fixed shares, finer towards the end. Combining two
takes all pairs with their weights, and reads the quantiles of those: no dice, and if a part becomes
larger at every quantile, so does the sum.

**Waiting.** An object closes an interval after its first request. That one waits for all of it;
those that come meanwhile, at random moments, wait for what is left of it.

**The turn.** PUTs run beside each other, but objects are committed one at a time, in the order in
which they closed. An object of which the one before is slow waits for that one. With L for the time
from closing to committed, D for the time between two closings, P for PUT and C for commit:

    L = max(P, L of the one before - D) + C        D = interval + time until the next request

which is Lindley's recursion of a queue; its fixed point is found by repetition.

**What is not in it.** Parts are taken as independent. On one disk they are not quite: in moments in
which it is slow, PUTs and commits are slow together (correlations of 0.15 to 0.5 were measured),
and the real 99th percentile lay 9 to 40 % above the model's in runs of ten seconds. Where a store
takes 50 ms or more it lay within 1 %.

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

from penstock.planner.errors import ImpossiblePlan

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
"""The shares whose quantiles a distribution holds."""
_WEIGHTS: Final[Floats] = np.diff(_EDGES)
_PAIR_WEIGHTS: Final[Floats] = np.multiply.outer(_WEIGHTS, _WEIGHTS).ravel()
_DEVIATES: Final[Floats] = np.array([NormalDist().inv_cdf(share) for share in _SHARES])
_DEVIATE_99: Final = NormalDist().inv_cdf(0.99)

_TURNS_MAX: Final = 64
"""Repetitions of the recursion; a queue that has not settled by then is as good as full."""
_SETTLED: Final = 1e-3
"""Relative change below which the recursion has settled."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Milliseconds that something takes: ascending quantiles, at this module's shares."""

    values: Floats

    @classmethod
    def constant(cls, value_ms: float) -> Distribution:
        """Always the same."""
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
        """What was measured, at least one value."""
        return cls(np.quantile(np.asarray(values_ms, dtype=np.float64), _SHARES))

    @classmethod
    def histogram(cls, bounds_ms: Sequence[float], counts: Sequence[float]) -> Distribution:
        """Counts of values up to each bound, and above the last; evenly spread in each bucket.

        Those above the last bound count as the last bound; at least one count is above 0.
        """
        edges = np.concatenate([[0.0], np.asarray(bounds_ms, dtype=np.float64), [bounds_ms[-1]]])
        below = np.concatenate([[0.0], np.cumsum(np.asarray(counts, dtype=np.float64))])
        rising = np.concatenate([[True], np.diff(below) > 0])
        before = np.concatenate([rising[1:], [True]])
        kept = rising | before
        return cls(np.interp(_SHARES, below[kept] / below[-1], edges[kept]))

    @classmethod
    def exponential(cls, mean_ms: float) -> Distribution:
        """Return the time until the next of events that come at random moments."""
        return cls(-mean_ms * np.log1p(-_SHARES))

    def quantile(self, share: float) -> float:
        """What this share of all does not exceed."""
        return float(np.interp(share, _SHARES, self.values))

    @property
    def mean(self) -> float:
        """The mean, of values up to the last quantile."""
        return float(self.values @ _WEIGHTS)

    def plus(self, other: Distribution) -> Distribution:
        """Return the sum of two that do not depend on each other."""
        return _combined(np.add.outer(self.values, other.values))

    def minus(self, other: Distribution) -> Distribution:
        """Return the difference of two that do not depend on each other."""
        return _combined(np.subtract.outer(self.values, other.values))

    def later(self, other: Distribution) -> Distribution:
        """Return the larger of two that do not depend on each other."""
        return _combined(np.maximum.outer(self.values, other.values))


ZERO: Final = Distribution.constant(0.0)


def _combined(pairs: Floats) -> Distribution:
    flat = pairs.ravel()
    order = np.argsort(flat)
    below = np.cumsum(_PAIR_WEIGHTS[order])
    places = np.minimum(np.searchsorted(below, _SHARES), len(flat) - 1)
    return Distribution(flat[order[places]])


def waiting(interval_ms: float, arrivals_per_interval: float) -> Distribution:
    """How long requests wait for their object to close, which it does after an interval.

    Of an object with one first and `arrivals_per_interval` later requests in the mean, the first
    waits for all of the interval, the others for anything between nothing and all of it.
    """
    later = arrivals_per_interval / (1.0 + arrivals_per_interval)
    if later == 0.0:
        return Distribution.constant(interval_ms)
    return Distribution(interval_ms * np.minimum(1.0, _SHARES / later))


@dataclass(frozen=True, slots=True, kw_only=True)
class DisklessLatency:
    """The parts of a produce latency in milliseconds, and their sum."""

    interval_ms: float
    """How long objects really gather."""
    objects_per_second: float
    wait: Distribution
    write: Distribution
    """From an object's closing until it is committed."""
    produce: Distribution
    """From the request until its answer."""
    saturated: bool
    """Objects close later than the interval says, since those before are not committed yet."""


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
    """Return the latency of produce requests that come at random moments to one broker.

    `request` is what a request costs that the broker answers at once, and `fill_ms` the time in
    which an object is full before the interval ends. While `objects_in_flight_max` objects are
    written, and where a commit takes longer than an interval, objects gather on.
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
    """How long objects gather: the interval, less when they are full, more when writing is slow."""
    written_ms = (put.mean + commit.mean) / objects_in_flight_max
    return max(min(interval_ms, fill_ms), written_ms, commit.mean)


def objects_per_second(gathers_ms: float, requests_per_second: float) -> float:
    """Objects of one broker: each gathers, and the next begins with the next request."""
    if requests_per_second <= 0:
        return 0.0
    return 1000 / (gathers_ms + 1000 / requests_per_second)


def _in_turn(
    put: Distribution, commit: Distribution, interval_ms: float, gap_ms: float
) -> Distribution:
    """From closing to committed, where objects are committed in the order of closing."""
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
        if change < _SETTLED:
            return write
    return write
