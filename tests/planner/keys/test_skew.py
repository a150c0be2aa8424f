"""Measures of skew compared with their definitions, and the effect of salting on loads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.planner.keys.inputs import KeysInputs
from penstock.planner.keys.plan import (
    gini,
    hot_keys,
    salt_effects,
    salted_keys,
    top_share,
    zipf_exponent,
)
from tests.planner.keys.records import count

COUNTS = st.lists(st.integers(1, 500), min_size=1, max_size=60)
SALTS = (1, 2, 4, 8, 16)


def ranked(counts: list[int]) -> np.ndarray:
    return np.array(sorted(counts, reverse=True), np.int64)


@settings(max_examples=80)
@given(COUNTS)
def test_gini_is_the_mean_difference(counts: list[int]) -> None:
    values = np.array(counts, float)
    differences = np.abs(values[:, None] - values[None, :]).mean()
    assert gini(ranked(counts), sum(counts), len(counts)) == pytest.approx(
        differences / (2 * values.mean()), abs=1e-9
    )


@settings(max_examples=60)
@given(COUNTS, st.integers(1, 60))
def test_an_even_rest_only_lowers_gini(counts: list[int], kept: int) -> None:
    whole = ranked(counts)
    part = gini(whole[:kept], sum(counts), len(counts))
    assert 0 <= part <= gini(whole, sum(counts), len(counts)) + 1e-9


def test_shares_of_the_top() -> None:
    counts = ranked([50] + [1] * 50)
    assert top_share(counts, 100, 51, 0) == 0.5
    assert top_share(counts, 100, 200, 0.01) == 0.51
    assert top_share(ranked([7] * 700), 4900, 700, 0.01) == 0.01  # not eight keys by rounding
    assert top_share(ranked([]), 0, 0, 0.01) == 0


def test_zipf_exponents_are_found() -> None:
    for exponent in (0.5, 1.0, 1.5):
        counts = (1e6 / np.arange(1, 300) ** exponent).astype(np.int64)
        assert zipf_exponent(counts) == pytest.approx(exponent, abs=0.01)
    assert zipf_exponent(ranked([5, 5, 5])) == pytest.approx(0, abs=1e-12)
    assert zipf_exponent(ranked([5, 5])) is None
    assert zipf_exponent(ranked([50, 40, 30]), error=3) is None


def test_hot_keys_bring_more_than_an_even_share() -> None:
    counts = ranked([26, 25, 25, 24])
    assert hot_keys(counts, 100, 4) == 1
    assert hot_keys(counts, 100, 5) == 4
    assert hot_keys(counts, 100, 1) == 0


def test_salted_names() -> None:
    found = count({b"car": 3, b"": 1})
    assert salted_keys(found.keys, 12).to_pylist() == [b"car:12", b":12"]


@settings(max_examples=60, deadline=None)
@given(COUNTS, st.integers(1, 40), st.integers(0, 60))
def test_salting_keeps_records_and_its_bounds(
    counts: list[int], partitions: int, salted: int
) -> None:
    found = count(
        {b"key-%d" % place: times for place, times in enumerate(counts)}, partitions=partitions
    )
    salted = min(salted, len(counts))
    whole = salt_effects(found, partitions, SALTS, None)
    every = salt_effects(found, partitions, SALTS, len(counts))
    assert [effect.loads.tolist() for effect in whole] == [
        effect.loads.tolist() for effect in every
    ]
    effects = salt_effects(found, partitions, SALTS, salted)
    total = sum(counts)
    shares = found.key_records / total
    assert effects[0].loads.tolist() == found.loads[partitions].tolist()
    rest = effects[0].hottest_share
    for effect in effects:
        assert effect.loads.sum() == pytest.approx(total)
        assert effect.loads.min() >= 0
        assert effect.hottest_share >= 1 / partitions - 1e-9
        if salted:
            # somewhere lies at least one name of the hottest key: an n-th of its records
            assert effect.hottest_share >= shares[0] / effect.salts - 1e-9
        if salted < len(counts):
            assert effect.hottest_share >= shares[salted] - 1e-9  # unsalted keys stay whole
        # the worst case: all names of all salted keys meet on the hottest partition
        assert effect.hottest_share <= rest + shares[:salted].sum() + 1e-9
        assert effect.skew == pytest.approx(effect.hottest_share * partitions)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
def test_salting_a_hot_key_spreads_it(seed: int) -> None:
    """Over many keys, the mean share of the hottest partition falls with every doubling."""
    shares = np.zeros(len(SALTS))
    for number in range(60):
        found = count({b"hot-%d-%d" % (seed, number): 1000}, partitions=64)
        shares += [salt_effect.hottest_share for salt_effect in salt_effects(found, 64, SALTS, 1)]
    shares /= 60
    assert shares[0] == 1
    assert np.all(np.diff(shares) < 0)
    assert shares[-1] < 0.25


def test_a_rest_that_is_not_tracked_is_spread_evenly() -> None:
    counts = {b"hot": 5000} | {b"rare-%d" % number: 5 for number in range(1000)}
    found = count(counts, inputs=KeysInputs(tracked_keys=50), rows=2000, pending=2000)
    assert not found.exact
    effects = salt_effects(found, 8, SALTS, None)
    assert effects[-1].loads.sum() == pytest.approx(10_000)
    exact = count(counts)
    truth = salt_effects(exact, 8, SALTS, None)
    for guess, true in zip(effects, truth, strict=True):
        assert guess.hottest_share == pytest.approx(true.hottest_share, rel=0.1)
