"""Distributions and the latency of diskless topics, compared with theory and a simulation."""

from __future__ import annotations

from math import inf, log
from random import Random
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.planner.capacity.inputs import (
    ZERO,
    DisklessLatency,
    Distribution,
    diskless_latency,
    gathering_ms,
    objects_per_second,
    waiting,
)
from penstock.planner.quantities import ImpossiblePlan

PUT: Final = (1.8, 6.0)
COMMIT: Final = (1.0, 3.0)
milliseconds = st.floats(0.01, 1_000)


def lognormal(p50: float, p99: float) -> Distribution:
    return Distribution.lognormal(p50, p99)


def test_quantiles_come_back() -> None:
    found = lognormal(50, 200)
    assert found.quantile(0.5) == pytest.approx(50, rel=0.001)
    assert found.quantile(0.99) == pytest.approx(200, rel=0.005)
    assert found.mean == pytest.approx(50 * np.exp((log(4) / 2.3263) ** 2 / 2), rel=0.005)
    assert Distribution.constant(3).quantile(0.999) == 3


@pytest.mark.parametrize(("p50", "p99"), [(0, 1), (-1, 1), (2, 1)])
def test_impossible_quantiles(p50: float, p99: float) -> None:
    with pytest.raises(ImpossiblePlan, match="99th percentile"):
        lognormal(p50, p99)


def test_samples_and_histograms() -> None:
    dice = Random(1)
    values = [dice.expovariate(1 / 7) for _ in range(50_000)]
    found = Distribution.samples(values)
    for share in (0.1, 0.5, 0.9, 0.99, 0.999):
        assert found.quantile(share) == pytest.approx(np.quantile(values, share), rel=0.03)
    spread = Distribution.histogram((1, 2, 5), (0, 10, 0, 0))
    assert spread.quantile(0.5) == pytest.approx(1.5)
    assert spread.values[0] == pytest.approx(1, abs=0.01)
    assert spread.values[-1] == pytest.approx(2, abs=0.01)
    gap = Distribution.histogram((1, 2, 5, 10), (50, 0, 0, 50, 0))
    assert gap.quantile(0.25) == pytest.approx(0.5, abs=0.01)
    assert gap.quantile(0.75) == pytest.approx(7.5, abs=0.1)
    assert Distribution.histogram((1, 2), (0, 0, 5)).quantile(0.5) == 2


def test_sums_are_those_of_independent_parts() -> None:
    one = Distribution.exponential(4)
    both = one.plus(one)
    # Erlang's distribution of two stages: 1 - exp(-x/4) (1 + x/4)
    for share, expected in ((0.5, 6.713), (0.9, 15.559), (0.99, 26.553)):
        assert both.quantile(share) == pytest.approx(expected, rel=0.01)
    # the larger of two: the square root of the share
    larger = one.later(one)
    for share in (0.5, 0.9, 0.99):
        assert larger.quantile(share) == pytest.approx(-4 * log(1 - share**0.5), rel=0.01)
    assert one.minus(one).quantile(0.5) == pytest.approx(0, abs=0.05)
    assert one.plus(ZERO).quantile(0.9) == pytest.approx(one.quantile(0.9), rel=0.005)


def test_a_sum_of_tails_is_not_the_tail_of_the_sum() -> None:
    put, commit = lognormal(*PUT), lognormal(*COMMIT)
    tail = put.plus(commit).quantile(0.99)
    assert tail < PUT[1] + COMMIT[1]
    assert tail > PUT[1] + 0.5 * COMMIT[0]


@given(milliseconds, milliseconds, milliseconds, st.floats(1, 10), st.floats(1, 10))
@settings(max_examples=30, deadline=None)
def test_larger_parts_never_give_a_smaller_sum(
    p50: float, more: float, other: float, stretch: float, wider: float
) -> None:
    small = lognormal(p50, p50 * stretch)
    large = Distribution(small.values + more)
    added = lognormal(other, other * wider)
    assert np.all(large.plus(added).values >= small.plus(added).values)
    assert np.all(large.later(added).values >= small.later(added).values)
    assert np.all(np.diff(small.plus(added).values) >= 0)


def test_waiting_for_an_object_to_close() -> None:
    alone = waiting(250, 0)
    assert alone.quantile(0.01) == alone.quantile(0.99) == 250
    many = waiting(250, 1e9)
    assert many.quantile(0.5) == pytest.approx(125, rel=0.01)
    one_more = waiting(5, 1)
    assert one_more.quantile(0.25) == pytest.approx(2.5, rel=0.02)
    assert one_more.quantile(0.75) == 5


def simulated(requests_per_second: float, interval_ms: float, objects: int) -> np.ndarray:
    """Simulate objects one after the other, as the writer makes them."""
    dice = np.random.default_rng(7)
    deviate = 2.3263478740408408

    def draw(p50: float, p99: float) -> np.ndarray:
        return p50 * np.exp(log(p99 / p50) / deviate * dice.standard_normal(objects))

    put, commit = draw(*PUT), draw(*COMMIT)
    gap_ms = 1000 / requests_per_second
    between = interval_ms + dice.exponential(gap_ms, objects)
    took, before = np.zeros(objects), 0.0
    for place in range(objects):
        before = max(put[place], before - between[place]) + commit[place]
        took[place] = before
    later = dice.poisson(interval_ms / gap_ms, objects)
    waits = dice.uniform(0, interval_ms, int(later.sum()))
    return np.concatenate([interval_ms + took, waits + np.repeat(took, later)])


@pytest.mark.parametrize(("requests", "interval_ms"), [(200.0, 5.0), (2_000.0, 3.0), (20.0, 50.0)])
def test_the_model_agrees_with_a_simulation(requests: float, interval_ms: float) -> None:
    model = diskless_latency(
        interval_ms=interval_ms,
        requests_per_second=requests,
        put=lognormal(*PUT),
        commit=lognormal(*COMMIT),
    )
    found = simulated(requests, interval_ms, 60_000)
    for share in (0.5, 0.9, 0.99):
        expected = float(np.quantile(found, share))
        assert model.produce.quantile(share) == pytest.approx(expected, rel=0.03)


def test_objects_wait_for_their_turn() -> None:
    def write(gap_ms: float) -> Distribution:
        return diskless_latency(
            interval_ms=5,
            requests_per_second=1000 / gap_ms,
            put=lognormal(2, 20),
            commit=Distribution.constant(1),
        ).write

    rare, often = write(100_000), write(0.1)
    assert rare.quantile(0.99) == pytest.approx(21, rel=0.02)
    assert often.quantile(0.99) > 1.1 * rare.quantile(0.99)


def model(interval_ms: float, requests: float, put: float, commit: float) -> DisklessLatency:
    return diskless_latency(
        interval_ms=interval_ms,
        requests_per_second=requests,
        put=Distribution.constant(put),
        commit=Distribution.constant(commit),
    )


@given(
    st.floats(1, 1_000),
    st.floats(1, 10),
    st.floats(0.01, 100_000),
    st.floats(0.1, 300),
    st.floats(0.01, 20),
)
@settings(max_examples=30, deadline=None)
def test_a_longer_interval_never_means_less_latency_or_more_puts(
    interval_ms: float, factor: float, requests: float, put: float, commit: float
) -> None:
    """PUTs take a constant time here; varying PUTs queue at short intervals."""
    short = model(interval_ms, requests, put, commit)
    long = model(interval_ms * factor, requests, put, commit)
    for share in (0.01, 0.5, 0.99):
        assert long.produce.quantile(share) >= short.produce.quantile(share) - 1e-9
    assert long.objects_per_second <= short.objects_per_second + 1e-9


def test_objects_gather_on_while_writing_is_slow() -> None:
    slow = model(5, 1_000, 400, 1)
    assert slow.saturated
    assert slow.interval_ms == pytest.approx(401 / 8)
    assert model(5, 1_000, 20, 7).interval_ms == pytest.approx(7)
    fast = model(250, 1_000, 50, 1)
    assert not fast.saturated
    assert fast.interval_ms == 250
    put, commit = Distribution.constant(2), Distribution.constant(1)
    assert gathering_ms(250, put, commit, fill_ms=100) == 100
    assert gathering_ms(250, put, commit, fill_ms=inf) == 250


def test_without_requests_there_are_no_objects() -> None:
    assert objects_per_second(250, 0) == 0
    assert objects_per_second(250, 4) == 2
    quiet = model(250, 0, 50, 1)
    assert quiet.objects_per_second == 0
    assert quiet.produce.quantile(0.5) == pytest.approx(301)
