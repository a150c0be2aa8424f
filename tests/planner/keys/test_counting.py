"""Counts in bounded memory: exact below the bound, within the stated error above it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.partitioning import murmur2, partitions_of_keys
from penstock.planner.keys.census import Census, CensusResult, DistinctEstimate, KeySummary
from penstock.planner.keys.inputs import KeysInputs
from tests.planner.keys.records import batch, count

KEYS = st.lists(st.integers(0, 60), min_size=1, max_size=400)


def names(numbers: list[int]) -> list[bytes | None]:
    return [b"key-%d" % number for number in numbers]


def census(keys: list[bytes | None], tracked: int, rows: int) -> CensusResult:
    found = Census(4, (4, 6), tracked, pending_rows_max=rows)
    whole = batch(keys, partitions=4)
    for start in range(0, len(keys), rows):
        found.add(whole.slice(start, rows))
    return found.result()


@settings(max_examples=80, deadline=None)
@given(KEYS, st.integers(1, 70), st.integers(1, 400))
def test_counts_stay_within_their_error(numbers: list[int], tracked: int, rows: int) -> None:
    keys = names(numbers)
    found = census(keys, tracked, rows)
    truth = Counter(keys)
    counted = dict(zip(found.keys.to_pylist(), found.key_records.tolist(), strict=True))
    assert len(counted) <= tracked
    assert found.records == found.keyed_records == len(keys)
    for key, true_count in truth.items():
        assert counted.get(key, 0) <= true_count <= counted.get(key, 0) + found.count_error
    taken = (tracked + 1) * found.count_error
    assert taken <= len(keys) - sum(counted.values())
    assert found.count_error <= found.count_error_max == len(keys) // (tracked + 1)
    # every key whose share is above the bound is there
    assert {key for key, n in truth.items() if n > found.count_error_max} <= set(counted)
    if len(truth) <= tracked:
        assert found.exact
        assert counted == truth
        assert (found.distinct, found.distinct_error) == (len(truth), 0)
    # loads are exact in any case
    column = pa.array(keys, pa.binary())
    for partitions, loads in found.loads.items():
        placed = partitions_of_keys(column, partitions, unkeyed=0)
        assert loads.tolist() == np.bincount(placed, minlength=partitions).tolist()


def test_keys_are_ranked_with_their_bytes() -> None:
    found = count({b"b": 2, b"a": 2, b"long key": 5})
    assert found.keys.to_pylist() == [b"long key", b"a", b"b"]
    assert found.key_records.tolist() == [5, 2, 2]
    assert found.key_bytes.tolist() == [5 * 18, 2 * 11, 2 * 11]
    assert found.size_bytes == found.keyed_bytes == 5 * 18 + 4 * 11
    assert found.partition_records.tolist() == found.loads[8].tolist()
    assert found.default_placed == 9


def test_nulls_sizes_and_times() -> None:
    found = Census(2, (2,), 10)
    found.add(batch([b"a", None, None, b""], partitions=2, times=[5, 1, 9, 3]))
    found.add(batch([None], partitions=2, value=None, times=[70_001]))
    found.add(batch([], partitions=2))
    result = found.result()
    assert (result.records, result.null_records, result.keyed_records) == (5, 3, 2)
    assert (result.size_bytes, result.null_bytes, result.keyed_bytes) == (41, 20, 21)
    assert (result.first_ms, result.last_ms) == (1, 70_001)
    assert result.records_per_second == pytest.approx(5 / 70)
    assert sorted(result.keys.to_pylist()) == [b"", b"a"]


def test_a_burst_gives_no_rate() -> None:
    found = Census(1, (1,), 10)
    found.add(batch([b"a", b"b"], times=[0, 59_999]))
    assert found.result().records_per_second is None


def test_records_placed_by_others_are_seen() -> None:
    found = Census(64, (64,), 1000)
    keys = names(list(range(640)))
    whole = batch(keys, partitions=64)
    elsewhere = (whole["partition"].to_numpy() + 1) % 64
    found.add(whole.set_column(0, "partition", pa.array(elsewhere, pa.int32())))
    assert found.result().default_placed == 0


def test_nothing_is_counted() -> None:
    result = Census(2, (2,), 10).result()
    assert (result.records, len(result.keys), result.distinct, result.exact) == (0, 0, 0.0, True)
    assert result.records_per_second is None


def test_long_keys_shrink_the_summary() -> None:
    summary = KeySummary(100, bytes_max=350)
    keys = pa.array([b"%0100d" % number for number in range(5)], pa.binary())
    summary.merge(keys, np.array([9, 7, 5, 3, 1]), np.array([1, 1, 1, 1, 1]))
    kept, records, _ = summary.ranked()
    assert (len(kept), summary.least_capacity, summary.error) == (3, 3, 3)
    assert records.tolist() == [6, 4, 2]


@pytest.mark.parametrize("distinct", [1, 100, 10_000, 50_000, 300_000])
def test_distinct_keys_are_estimated(distinct: int) -> None:
    estimate = DistinctEstimate()
    hashes = murmur2(pa.array([b"user-%d" % number for number in range(distinct)], pa.binary()))
    estimate.add(hashes)
    first = estimate.value()
    estimate.add(hashes[::-1])
    assert estimate.value() == first
    assert first == pytest.approx(distinct, rel=0.0325, abs=0.5)  # four standard errors


def test_an_empty_set_is_empty() -> None:
    assert DistinctEstimate().value() == 0


def test_distinct_keys_above_the_bound() -> None:
    found = count({b"k%d" % n: 1 for n in range(20_000)}, inputs=KeysInputs(tracked_keys=100),
                  rows=5000, pending=5000)  # fmt: skip
    assert not found.exact
    assert found.distinct == pytest.approx(20_000, rel=0.0325)
    assert found.distinct_error == pytest.approx(0.0081, abs=0.0001)
