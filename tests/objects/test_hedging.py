"""When a request counts as slow, and how often it is made twice."""

from __future__ import annotations

from penstock.objects.store_path import (
    HEDGE_DELAY_MIN_SECONDS,
    HEDGE_SAMPLES_MIN,
    HEDGE_SHARE,
    HEDGE_WINDOW,
    HEDGES_SAVED_MAX,
    Hedging,
)


def observed(*latencies: float) -> Hedging:
    hedging = Hedging()
    for seconds in latencies:
        hedging.observe(seconds)
    return hedging


def test_too_few_latencies_hedge_nothing() -> None:
    assert Hedging().delay is None
    assert observed(*[1.0] * (HEDGE_SAMPLES_MIN - 1)).delay is None
    assert observed(*[1.0] * HEDGE_SAMPLES_MIN).delay == 1.0


def test_the_delay_is_the_99th_percentile() -> None:
    latencies = [number / 100 for number in range(1, HEDGE_WINDOW + 1)]
    assert observed(*latencies).delay == latencies[int(HEDGE_WINDOW * 0.99)]


def test_the_delay_follows_the_store() -> None:
    hedging = observed(*[0.1] * HEDGE_WINDOW)
    for _ in range(HEDGE_WINDOW):
        hedging.observe(0.5)
    assert hedging.delay == 0.5
    for _ in range(2 * HEDGE_WINDOW):
        hedging.observe(0.2)
    assert hedging.delay == 0.2


def test_fast_stores_are_not_hedged_within_their_noise() -> None:
    assert observed(*[0.001] * HEDGE_WINDOW).delay == HEDGE_DELAY_MIN_SECONDS


def test_hedges_are_a_small_share_of_requests() -> None:
    hedging = Hedging()
    spent = 0
    for _ in range(10_000):
        hedging.observe(1.0)
        spent += hedging.spend()
    assert spent <= 10_000 * HEDGE_SHARE + 1
    assert spent >= 10_000 * HEDGE_SHARE - 1


def test_a_quiet_time_saves_few_hedges() -> None:
    hedging = observed(*[1.0] * 10_000)
    assert sum(hedging.spend() for _ in range(100)) == HEDGES_SAVED_MAX
