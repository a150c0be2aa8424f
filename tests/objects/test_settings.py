"""The fetch paths' settings: names, defaults, and what is refused at start."""

from __future__ import annotations

import pytest

from penstock.base.errors import InvalidSetting
from penstock.base.settings import load, to_mapping
from penstock.objects import FetchSettings

PREFIX = "diskless."
THRESHOLD = "diskless.fetch.lagging.consumer.threshold.ms"
LIFESPAN = "diskless.consume.cache.expiration.lifespan.sec"


def test_names_and_defaults_are_those_of_the_source() -> None:
    settings = to_mapping(FetchSettings())
    expected = {
        "fetch.data.thread.pool.size": "32",
        "fetch.lagging.consumer.thread.pool.size": "16",
        "fetch.lagging.consumer.threshold.ms": "-1",
        "fetch.lagging.consumer.request.rate.limit": "200",
        "consume.cache.expiration.lifespan.sec": "60",
        "consume.cache.block.bytes": str(16 << 20),
    }
    for name, value in expected.items():
        assert settings[PREFIX + name] == value


def test_the_threshold_defaults_to_the_lifespan() -> None:
    assert FetchSettings().threshold_ms == 60_000
    assert FetchSettings(cache_lifespan_seconds=5).threshold_ms == 5000
    assert FetchSettings(lagging_threshold_ms=60_000).threshold_ms == 60_000
    assert load(FetchSettings, {THRESHOLD: "90000", LIFESPAN: "90"}).threshold_ms == 90_000


@pytest.mark.parametrize("threshold", [0, 1, 59_999])
def test_a_threshold_below_the_lifespan_is_refused(threshold: int) -> None:
    with pytest.raises(InvalidSetting, match=r"threshold\.ms = .*lifespan\.sec \(60000 ms\)"):
        load(FetchSettings, {THRESHOLD: threshold})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (THRESHOLD, -2),
        ("diskless.fetch.lagging.consumer.thread.pool.size", -1),
        ("diskless.fetch.lagging.consumer.request.rate.limit", -1),
        ("diskless.fetch.data.thread.pool.size", 0),
        ("diskless.consume.cache.max.bytes", 1 << 20),
    ],
)
def test_contradictory_settings_are_rejected(name: str, value: int) -> None:
    with pytest.raises(InvalidSetting, match="diskless"):
        load(FetchSettings, {name: value})


@pytest.mark.parametrize(
    ("age_ms", "lagging"),
    [(-1_000_000, False), (-1, False), (0, False), (60_000, False), (60_001, True)],
)
def test_age_decides(age_ms: int, lagging: bool) -> None:
    now_ms = 10_000_000
    settings = FetchSettings()
    assert settings.lagging(now_ms=now_ms, newest_timestamp_ms=now_ms - age_ms) == lagging


def test_without_a_pool_or_a_timestamp_all_is_recent() -> None:
    off = FetchSettings(lagging_pool_size=0)
    assert not off.lagging(now_ms=10**12, newest_timestamp_ms=0)
    assert not FetchSettings().lagging(now_ms=10**12, newest_timestamp_ms=-1)
    assert FetchSettings().lagging(now_ms=10**12, newest_timestamp_ms=0)
