"""Properties of all loads: more load never needs less, and nothing exceeds its ceiling."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.errors import InvalidSetting
from penstock.planner.capacity import CapacityInputs, Deployment, capacity_plan
from penstock.planner.capacity.inputs import STORAGE_KINDS
from penstock.planner.capacity.sizing import (
    Sizing,
    exponent_of,
    harmonic,
    rounded_up,
    salt_ways,
    size,
    skew_of,
    top_keys,
)
from penstock.planner.quantities import ImpossiblePlan, read_inputs

DEPLOYMENT: Final = Deployment()

LOADS: Final = st.builds(
    CapacityInputs,
    messages_per_second=st.floats(0.1, 1e8),
    peak_factor=st.floats(1, 20),
    message_bytes=st.floats(1, 1e6),
    compression_ratio=st.floats(1, 10),
    growth_per_year=st.floats(1, 5),
    retention=st.floats(1, 400),
    storage=st.sampled_from(STORAGE_KINDS),
    replication=st.integers(1, 5),
    groups=st.integers(0, 50),
    message_work=st.floats(0, 10),
    zones=st.integers(1, 5),
    zone_aware=st.booleans(),
    headroom=st.floats(0, 0.9),
    keys=st.integers(1, 10_000_000),
    zipf_exponent=st.floats(0, 3),
)
FACTORS: Final = st.floats(1, 100)

COUNTS: Final = (
    "partitions",
    "partitions_needed",
    "consumers_per_group",
    "brokers",
    "brokers_needed",
    "disk_bytes",
    "disk_slack_bytes",
    "store_bytes",
    "network_in_bytes_per_second",
    "network_out_bytes_per_second",
    "read_bytes_per_second",
    "write_bytes_per_second",
    "hottest_partition_messages_per_second",
    "hottest_partition_bytes_per_second",
)


def never_less(before: Sizing, after: Sizing, *, but: tuple[str, ...] = ()) -> None:
    for name in COUNTS:
        if name not in but:
            assert getattr(after, name) >= getattr(before, name) * (1 - 1e-9), name


@given(LOADS, FACTORS)
@settings(max_examples=60, deadline=None)
def test_a_higher_rate_never_needs_less(load: CapacityInputs, factor: float) -> None:
    more = replace(load, messages_per_second=load.messages_per_second * factor)
    before, after = size(load, DEPLOYMENT), size(more, DEPLOYMENT)
    # with more partitions the busiest of them has less of the keys that collide
    never_less(
        before,
        after,
        but=("hottest_partition_messages_per_second", "hottest_partition_bytes_per_second"),
    )
    same = replace(more, partitions=before.partitions)
    never_less(before, size(same, DEPLOYMENT))


@given(LOADS, FACTORS)
@settings(max_examples=40, deadline=None)
def test_a_longer_retention_never_keeps_less(load: CapacityInputs, factor: float) -> None:
    after = size(replace(load, retention=load.retention * factor), DEPLOYMENT)
    # with more partitions the busiest of them has less of the keys that collide
    never_less(
        size(load, DEPLOYMENT),
        after,
        but=("hottest_partition_messages_per_second", "hottest_partition_bytes_per_second"),
    )


@given(LOADS, st.integers(1, 10), st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_more_replicas_and_groups_never_need_less(
    load: CapacityInputs, replicas: int, groups: int
) -> None:
    before = size(load, DEPLOYMENT)
    never_less(
        before,
        size(replace(load, replication=load.replication + replicas), DEPLOYMENT),
        but=("hottest_partition_messages_per_second", "hottest_partition_bytes_per_second"),
    )
    never_less(
        before,
        size(replace(load, groups=load.groups + groups), DEPLOYMENT),
        but=("hottest_partition_messages_per_second", "hottest_partition_bytes_per_second"),
    )


@given(LOADS)
@settings(max_examples=60, deadline=None)
def test_no_ceiling_is_passed_while_a_broker_is_down(load: CapacityInputs) -> None:
    found = size(load, DEPLOYMENT)
    for share in found.broker_shares.values():
        assert share / (found.brokers - 1) <= found.usable * (1 + 1e-6)
    assert found.partitions * load.copies <= load.broker_partitions * (found.brokers - 1)
    assert found.brokers - 1 >= max(load.copies, load.zones)
    assert found.partitions >= found.consumers_per_group
    assert found.idle_brokers == 0
    most = found.partition_bytes_max
    assert found.disk_bytes / found.replicas <= most
    room = found.disk_room * found.usable
    evenly = ceil(found.replicas / found.brokers) * found.partition_disk_bytes
    assert evenly <= room * (1 + 1e-9)
    ceiling = DEPLOYMENT.ceiling("partition_produce_mb_per_s") * 1e6
    assert found.peak_write_bytes_per_second / found.partitions <= ceiling * found.usable * (
        1 + 1e-9
    )


@given(LOADS, st.integers(1, 100_000))
@settings(max_examples=60, deadline=None)
def test_the_busiest_partition_has_at_least_the_mean_and_the_busiest_key(
    load: CapacityInputs, partitions: int
) -> None:
    skew = skew_of(load)
    share = skew.hottest_partition(partitions)
    assert 1 / partitions <= share * (1 + 1e-9)
    assert skew.hottest_share <= share * (1 + 1e-9)
    assert share <= 1
    assert skew.hottest_share >= 1 / load.keys * (1 - 1e-9)


@given(st.integers(1, 10_000_000), st.floats(0.02, 0.98))
@settings(max_examples=30, deadline=None)
def test_the_exponent_gives_the_share_that_was_asked_for(keys: int, share: float) -> None:
    top = top_keys(keys)
    exponent = exponent_of(keys, share)
    found = harmonic(top, exponent) / harmonic(keys, exponent)
    if top / keys <= share and exponent < 9.9:
        assert found == pytest.approx(share, abs=0.001)
    else:
        assert found >= min(share, top / keys) - 0.001


def test_harmonic_numbers() -> None:
    assert harmonic(3, 0) == 3
    assert harmonic(2, 1) == 1.5
    assert harmonic(1_000_000, 1) == pytest.approx(14.392726722865, rel=1e-9)
    assert harmonic(1_000_000, 2) == pytest.approx(1.644933066849, rel=1e-9)


@given(st.integers(1, 1_000_000))
def test_partition_counts_are_rounded_up_to_what_many_sizes_divide(count: int) -> None:
    found = rounded_up(count)
    assert count <= found < 2 * count or found == count == 1
    while found % 2 == 0:
        found //= 2
    assert found in (1, 3)


@given(st.floats(0, 1e6), st.floats(0.1, 1e6))
def test_salting_brings_a_key_below_what_is_allowed(share: float, allowed: float) -> None:
    ways = salt_ways(share, allowed)
    assert share / ways <= allowed * (1 + 1e-9)
    assert ways == 1 or share / (ways - 1) > allowed * (1 - 1e-9)


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        (
            {"keys": 10, "zipf_exponent": 1.0, "top_percent_share": 0.5},
            "at most one input",
        ),
        ({"zipf_exponent": 1.0}, "skew of keys needs the number of keys"),
        ({"keys": 10, "hottest_key_share": 0.05}, "at least the average share"),
        (
            {"storage": "tiered", "local_retention": 8.0},
            "local-retention must not exceed retention",
        ),
        ({"groups": 1, "lagging_groups": 2}, "lagging-groups"),
        ({"put_p50": 5.0, "put_p99": 4.0}, "put-p99 must be at least put-p50"),
        ({"commit_p50": 5.0, "commit_p99": 4.0}, "commit-p99"),
    ],
)
def test_contradictions_name_the_rule_and_the_fix(inputs: dict[str, Any], named: str) -> None:
    with pytest.raises(ImpossiblePlan, match=named) as caught:
        CapacityInputs(**inputs)
    assert caught.value.fix
    assert caught.value.found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("messages-per-second", "0"),
        ("messages-per-second", "-3"),
        ("message-bytes", "0"),
        ("retention", "0"),
        ("replication", "0"),
        ("compression-ratio", "0.5"),
        ("headroom", "1"),
        ("zones", "0"),
        ("storage", "tape"),
        ("peak-factor", "nan"),
        ("groups", "1.5"),
        ("nonsense", "1"),
    ],
)
def test_bad_values_are_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidSetting, match=name):
        read_inputs(CapacityInputs, {name: text})


@given(LOADS)
@settings(max_examples=8, deadline=None)
def test_a_plan_of_any_load_is_whole(load: CapacityInputs) -> None:
    found = capacity_plan(load)
    names = [figure.name for figure in found.figures]
    assert len(names) == len(set(names))
    for figure in found.figures:
        assert figure.formula
        assert figure.source
        assert figure.group
        assert isinstance(figure.value, str) or (figure.value is not None and figure.value >= 0)
    for chart in found.charts:
        for curve in chart.curves:
            assert len(curve.x) == len(curve.y) > 1


@pytest.mark.parametrize(
    ("keys", "exponent", "partitions"),
    [(1_000, 0.0, 64), (10_000, 0.5, 64), (10_000, 0.8, 512), (10_000, 1.0, 8), (1_000, 1.5, 64)],
)
def test_the_busiest_partition_is_about_that_of_random_hashes(
    keys: int, exponent: float, partitions: int
) -> None:
    dice = np.random.default_rng(3)
    shares = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
    shares /= shares.sum()
    found = [
        np.bincount(dice.integers(0, partitions, keys), weights=shares, minlength=partitions).max()
        for _ in range(40)
    ]
    skew = skew_of(CapacityInputs(keys=keys, zipf_exponent=exponent))
    assert skew.hottest_partition(partitions) == pytest.approx(np.mean(found), rel=0.12)
