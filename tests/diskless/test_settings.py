"""Settings of diskless topics: defaults by store, and rules between them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base.errors import InvalidSetting
from penstock.base.settings import load
from penstock.diskless.settings import DisklessSettings


def test_the_interval_depends_on_the_store_unless_it_is_set() -> None:
    settings = load(DisklessSettings, {})
    assert settings.interval_ms(local=True) == 5
    assert settings.interval_ms(local=False) == 250
    settings = load(DisklessSettings, {"diskless.commit.interval.ms": "0"})
    assert settings.interval_ms(local=True) == settings.interval_ms(local=False) == 0


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (
            {"diskless.buffer.max.bytes": 2 << 20, "diskless.pending.bytes.max": 1 << 20},
            ["diskless.buffer.max.bytes", "2097152", "diskless.pending.bytes.max = 1048576"],
        ),
        (
            {"diskless.commit.interval.ms": 500, "diskless.write.timeout.ms": 500},
            ["diskless.commit.interval.ms", "500", "below diskless.write.timeout.ms = 500"],
        ),
        (
            {"diskless.retry.backoff.ms": 3000},
            ["diskless.retry.backoff.ms", "3000", "diskless.retry.backoff.max.ms = 2000"],
        ),
        (
            {"diskless.sweep.pending.grace.ms": 49_999},
            ["diskless.sweep.pending.grace.ms", "2 times diskless.write.timeout.ms = 25000"],
        ),
        ({"diskless.lease.block.objects": 257}, ["diskless.lease.block.objects", "at most 256"]),
    ],
)
def test_a_rule_that_is_broken_is_named(values: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(InvalidSetting) as caught:
        load(DisklessSettings, values)
    for name in names:
        assert name in str(caught.value)
