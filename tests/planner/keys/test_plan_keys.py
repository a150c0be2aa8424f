"""Plan of a census: the article's example, findings, advice, charts, bad inputs."""

from __future__ import annotations

import pytest

from penstock.base.errors import InvalidSetting
from penstock.planner.keys.census import Census
from penstock.planner.keys.inputs import KeysInputs, partition_counts
from penstock.planner.keys.plan import plan_keys, shown_key
from penstock.planner.quantities import ImpossiblePlan, NothingToPlan, read_inputs
from penstock.planner.results import Plan, draw
from tests.planner.keys.records import batch, count, scope

EVEN = {b"key-%d" % number: 100 for number in range(1000)}
# One of a hundred keys, the top 1 %, has half of the records.
SKEWED = {b"hot": 9_900} | {b"key-%d" % number: 100 for number in range(99)}


def planned(counts: dict[bytes, int], of_topic: int, /, **given: object) -> Plan:
    inputs = read_inputs(KeysInputs, given)
    return plan_keys(scope(of_topic), count(counts, partitions=of_topic, inputs=inputs), inputs)


def test_uniform_growth_is_fine() -> None:
    # 10K messages/s on 32 partitions are some 300 each, ten times as much some 3K.
    for rate, each in ((10_000, 312.5), (100_000, 3125)):
        plan = planned(EVEN, 32, rate=rate)
        assert rate / 32 == each
        assert each <= plan.value("hottest_now_rate") <= 1.6 * each
        assert plan.value("hot_keys") == 0
        assert plan.value("salts") == 1
        assert "32" in str(plan.value("counts_that_do"))
        (finding,) = [finding for finding in plan.findings if finding.subject == "hot keys"]
        assert finding.severity == "ok"


def test_ten_times_with_skew_is_one_hot_partition() -> None:
    # 10 × 10K messages/s where the top 1 % of keys has 50 %: one partition takes 50K/s.
    plan = planned(SKEWED, 32, rate=100_000)
    assert plan.value("top_1_percent_share_percent") == pytest.approx(50)
    assert plan.value("hot_keys") == 1
    assert 50_000 <= plan.value("hottest_now_rate") <= 55_000
    # more partitions do not help
    for partitions in (32, 64, 128, 256):
        assert plan.value(f"partitions_{partitions}_hottest_percent") >= 50
    assert plan.value("counts_that_do") == "none; more partitions do not divide the load of a key"
    # salting does
    assert plan.value("salts") > 1
    assert plan.value("hottest_salted_rate") < 20_000
    (hot,) = [finding for finding in plan.findings if finding.subject == "hot keys"]
    assert hot.severity == "warn"
    assert "The hottest key gives one partition 50 % (50,000 messages/s)" in hot.cause
    assert hot.fix == f"salt hot keys with {plan.value('salts')} salts"
    assert any([finding.subject == "salted keys" for finding in plan.findings])
    assert f"sequence % {plan.value('salts')}" in plan.snippets[0].text
    assert not plan.failed


def test_partitions_are_provided_four_to_ten_times() -> None:
    plan = planned(EVEN, 8, rate=1_000_000)
    assert plan.value("needed_partitions") == 20
    assert plan.value("provision_min_partitions") == 80
    assert plan.value("provision_max_partitions") == 200
    assert {20, 80, 200} <= {
        int(figure.name.split("_")[1]) for figure in plan.figures
        if figure.group == "with other numbers of partitions"
    }  # fmt: skip


def test_insufficient_salts_are_reported() -> None:
    plan = planned({b"a": 1000, b"b": 10}, 64, rate=1_000_000, **{"salts-max": 4})
    (finding,) = [finding for finding in plan.findings if finding.subject == "salting"]
    assert "still has" in finding.cause
    assert plan.value("salts") in (2, 4)


def test_few_even_keys_are_no_hot_keys() -> None:
    # Eight keys of one size on eight partitions: none is hot, and yet they meet.
    plan = planned({b"k%d" % number: 100 for number in range(8)}, 8, **{"skew-max": 1.5})
    (finding,) = [finding for finding in plan.findings if finding.subject == "skew"]
    assert "no single key is hot" in finding.cause


def test_other_numbers_of_partitions_can_be_asked_for() -> None:
    plan = planned(SKEWED, 1, partitions=48)
    assert plan.value("partitions_48_hottest_percent") >= 50
    assert plan.figure("salts_2_hot_hottest_percent").label == "2 salts: hottest of 48 partitions"


def test_samples_estimates_nulls_and_others_are_noted() -> None:
    inputs = KeysInputs(tracked_keys=5)
    census = Census(8, partition_counts(inputs, 8), 5)
    keys = [b"key-%d" % (number % 100) for number in range(1000)]
    census.add(batch([*keys, None], partitions=8))
    census.add(batch([b"elsewhere"] * 100, partitions=1))
    plan = plan_keys(scope(8, complete=False), census.result(), inputs)
    subjects = {finding.subject for finding in plan.findings}
    assert {"sample", "estimates", "records without a key", "number of partitions"} <= subjects
    assert plan.value("null_keys_percent") == pytest.approx(100 / 1101)
    assert plan.value("count_error_records") > 0
    assert plan.figure("key_1_records_percent").label.endswith("of records, at least")


def test_many_even_keys_leave_none_in_the_summary() -> None:
    inputs = KeysInputs(tracked_keys=10)
    plan = plan_keys(scope(), count(EVEN, inputs=inputs), inputs)
    assert plan.value("hottest_key_percent") == 0
    assert plan.value("count_error_records") == 100
    assert plan.value("hot_keys") == 0
    assert plan.value("partitions_8_hottest_percent") < 20
    assert b"<svg" in draw(plan, ".svg")


def test_charts_are_drawn() -> None:
    plan = planned(SKEWED, 8, rate=100_000)
    shares, loads, salts = plan.charts
    assert shares.x_log
    assert shares.y_log
    assert shares.curves[0].y[0] == pytest.approx(50)
    assert sum(loads.curves[0].y) == pytest.approx(100)
    assert loads.curves[1].y[0] < loads.curves[0].y[0]
    assert salts.curves[0].x == (1, 2, 4, 8, 16)
    assert b"<svg" in draw(plan, ".svg")
    assert len(planned(EVEN, 8).charts[0].curves[0].x) <= 200


def test_figures_are_unique_and_explained() -> None:
    plan = planned(SKEWED, 8)
    names = [figure.name for figure in plan.figures]
    assert len(set(names)) == len(names)
    assert all([figure.formula and figure.source for figure in plan.figures])
    assert plan.value("needed_partitions") is None  # no rate: timestamps span no minute


def test_keys_as_people_read_them() -> None:
    assert shown_key(b"car-7") == "car-7"
    assert shown_key(b"\x00\xff") == "0x00ff"
    assert shown_key(b"x" * 99) == "x" * 39 + "…"
    assert shown_key(b"\xff" * 99) == "0x" + "ff" * 18 + "f…"
    assert shown_key(b"") == ""


def test_topics_without_keys_are_refused() -> None:
    census = Census(8, (8,), 5)
    census.add(batch([None, None], partitions=8))
    with pytest.raises(NothingToPlan, match=r"2 records without a key \(all of it\)\. "):
        plan_keys(scope(), census.result(), KeysInputs())


def test_too_many_partitions_are_refused() -> None:
    inputs = KeysInputs(rate=1e9, partition_rate=1)
    with pytest.raises(ImpossiblePlan, match=r"at most 100,000 partitions: .* raise "):
        partition_counts(inputs, 8)


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ({"rate": "-1"}, "rate = .*must be at least 0"),
        ({"partition-rate": "0"}, "partition-rate = .*must be at least 0.001"),
        ({"skew-max": "0.5"}, "skew-max = .*must be at least 1"),
        ({"salts-max": "1"}, "salts-max = .*must be at least 2"),
        ({"tracked-keys": "0"}, "tracked-keys = .*must be at least 1"),
        ({"partitions": "20k"}, "partitions = .*must be at most 10000"),
    ],
)
def test_bad_inputs_are_named(texts: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidSetting, match=why):
        read_inputs(KeysInputs, texts)
