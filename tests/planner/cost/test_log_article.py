"""The log and queue article's section 12: storage, tiers, traffic between zones, the two splits."""

from __future__ import annotations

import pytest

from penstock.planner.cost import OptionCost
from penstock.planner.cost.inputs import Kind
from tests.planner.cost.bills import bill, plain


def percent(option: OptionCost, *kinds: Kind) -> float:
    return 100 * option.kind_usd(*kinds) / option.total_usd


def to_five(value: float) -> int:
    """Round as the article does."""
    return 5 * round(value / 5)


def test_linkedin_49_pb_and_5_million() -> None:
    found = bill("local", "classic-split")
    assert found.size("stored_bytes") == pytest.approx(49e15)
    assert found.line("disk").usd == pytest.approx(4.9e6)
    assert round(found.line("disk").usd, -6) == 5e6


@pytest.mark.parametrize(
    ("copies", "saved"),
    [(1, 0.66), (3, 0.79)],  # the article's 70 % counts one copy; replicas save more
)
def test_tiering_seven_days_with_one_local(copies: int, saved: float) -> None:
    given = plain(rate=1e9, retention=7, local_retention=1, replication_factor=copies)
    near, far = bill("local", **given), bill("tiered", **given)
    assert far.size("moved_percent") == pytest.approx(85, abs=1)
    reduction = 1 - far.kind_usd("storage") / near.kind_usd("storage")
    assert reduction == pytest.approx(saved, abs=0.005)
    assert copies != 1 or round(reduction, 1) == 0.7


def test_two_copies_save_a_third() -> None:
    three = bill("local", **plain(replication_factor=3)).line("disk").usd
    two = bill("local", **plain(replication_factor=2)).line("disk").usd
    assert 1 - two / three == pytest.approx(0.33, abs=0.005)


def test_replication_of_500_mb() -> None:
    found = bill("local", **plain(rate=500e6, replication_factor=3, zones=3)).line("replication")
    assert found.usd == pytest.approx(26_000, rel=0.005)
    assert found.formula.startswith("2,592,000 × $0.01 per GB")


def test_consumers_cross_zones_on_the_same_scale_and_racks_stop_it() -> None:
    given = plain(rate=500e6, consumer_groups=3)
    without = bill("local", **given).line("fetch").usd
    assert without == pytest.approx(26_000, rel=0.005)
    assert bill("local", **given, rack_aware=True).line("fetch").usd == 0
    two = bill("local", **given, rack_aware=True, replication_factor=2).line("fetch").usd
    assert two <= without / 2


def test_classic_split() -> None:
    found = bill("local", "classic-split")
    shares = [percent(found, kind) for kind in ("storage", "cross-zone", "compute", "operations")]
    assert [to_five(share) for share in shares] == [45, 30, 20, 5]
    assert found.size("brokers") == pytest.approx(4000, rel=0.001)


def test_s3_native_split() -> None:
    found = bill("diskless", "s3-native-split")
    shares = [
        percent(found, "cache"),
        percent(found, "storage"),
        percent(found, "requests"),
        percent(found, "compute"),
        percent(found, "operations", "database"),
    ]
    assert [to_five(share) for share in shares] == [5, 55, 10, 25, 5]
    assert found.kind_usd("cross-zone") == 0


def test_s3_native_saves_30_to_50_percent_against_tiers_and_more_against_disks() -> None:
    found = bill("diskless", "s3-native-split").total_usd
    assert 0.30 <= 1 - found / bill("tiered", "s3-native-split").total_usd <= 0.50
    assert 1 - found / bill("local", "s3-native-split").total_usd == pytest.approx(0.88, abs=0.005)


def test_replication_within_a_managed_service_is_free_if_one_says_so() -> None:
    given = plain(rate=500e6)
    assert bill("msk-provisioned", **given).line("replication").usd == 0
    charged = bill("msk-provisioned", **given, managed_replication_free=False)
    assert charged.line("replication").usd == pytest.approx(25_920)
