"""Rules table: well-formed, sourced, and consistent for all workloads."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.errors import InvalidSetting
from penstock.base.settings import describe
from penstock.outbox.settings import OutboxSettings
from penstock.planner.choosing import (
    CANDIDATES,
    RULES,
    Workload,
    changes,
    judge,
    plan_choice,
    questions,
)
from penstock.planner.quantities import read_inputs
from penstock.storage import LogConfig

RATES = st.sampled_from([0.5, 10, 999, 1000, 5000, 10_000, 10_001, 50_000, 50_001, 1e6, 1e9])
WORKLOADS = st.builds(
    Workload,
    messages_per_second=RATES,
    message_bytes=st.sampled_from([1, 200, 1024, 1_048_588, 1_048_589, 1 << 30]),
    consumers=st.integers(1, 6),
    replay=st.booleans(),
    latency_ms=st.sampled_from([0.0001, 0.01, 0.5, 1, 4, 20, 49, 50, 200, 1000, 1e6]),
    ordering=st.sampled_from(["none", "key", "global"]),
    reply=st.booleans(),
    consumer_down=st.booleans(),
    bursts=st.booleans(),
    semantics=st.booleans(),
    lifetime_s=st.sampled_from([0.0, 90, 7200, 7201, 1e7]),
    database=st.sampled_from(["none", "there", "transaction"]),
    same_host=st.booleans(),
    shared_files=st.booleans(),
    hops=st.integers(1, 6),
    steps=st.integers(1, 4),
    waits=st.booleans(),
    stateful=st.booleans(),
)

NAMES = {info.attribute: info.name for info in describe(Workload)}


def change_one(workload: Workload, attribute: str, value: object) -> Workload:
    texts = {name: getattr(workload, one) for one, name in NAMES.items()}
    return read_inputs(Workload, {**texts, NAMES[attribute]: value})


def flip(workload: Workload, attribute: str) -> Workload:
    return change_one(workload, attribute, not getattr(workload, attribute))


def test_rules_are_unique_and_sourced() -> None:
    assert max(Counter([(rule.candidate, rule.subject) for rule in RULES]).values()) == 1
    for rule in RULES:
        assert rule.candidate in CANDIDATES
        assert rule.when
        assert "article" in rule.source or "judgement" in rule.source


def test_every_input_matters_to_a_rule() -> None:
    for question in questions():
        assert question.thresholds, question.info.name


def test_questions_contain_their_thresholds() -> None:
    (rate,) = [question for question in questions() if question.info.name == "rate"]
    assert "rate > 50,000 messages/s: speaks for distributed log" in rate.thresholds
    assert "rate > 50,000 messages/s: rules out queue" in rate.thresholds
    (size,) = [question for question in questions() if question.info.name == "message-bytes"]
    assert any(["bytes per day ≥ 1 TB/day" in line for line in size.thresholds])


def test_thresholds_follow_penstock() -> None:
    (large,) = [r for r in RULES if (r.candidate, r.subject) == ("log", "large messages")]
    assert large.when[0].value == LogConfig().max_message_bytes
    assert OutboxSettings().threshold_bytes < LogConfig().max_message_bytes


@settings(max_examples=100, deadline=None)
@given(WORKLOADS)
def test_verdicts_follow_from_reasons(workload: Workload) -> None:
    choice = judge(workload)
    assert set(choice.verdicts) == set(CANDIDATES)
    for verdict in choice.verdicts.values():
        against, caveats = verdict.of("against"), verdict.of("caveat")
        assert (verdict.fit == "does not fit") == bool(against)
        assert (verdict.fit == "fits") == (not against and not caveats)
    for name in choice.recommended:
        assert choice.verdicts[name].fit != "does not fit"
    # hard lines of the matrix, whatever else was answered
    named = set(choice.recommended)
    if workload.replay or workload.consumers > 1:
        assert not named & {"queue", "db-outbox", "rpc", "host-socket"}
    if workload.messages_per_second > 50_000:
        assert not named & {"queue", "db-outbox"}
    if workload.latency_ms < 1:
        assert not named & {"log", "queue", "db-outbox", "file-outbox", "workflow"}
    if workload.consumer_down:
        assert not named & {"rpc", "host-socket"}
    assert ("stream-processor" in named) <= ("log" in named)


@settings(max_examples=40, deadline=None)
@given(WORKLOADS)
def test_changes_change_and_nothing_else_does(workload: Workload) -> None:
    now = judge(workload).recommended
    found = changes(workload)
    for change in found:
        other = judge(change_one(workload, change.info.attribute, change.value)).recommended
        assert other == change.choice.recommended != now
    flipped = {change.info.attribute for change in found}
    for name in ("replay", "reply", "stateful", "waits", "same_host", "bursts", "consumer_down"):
        other = judge(flip(workload, name)).recommended
        assert (other != now) == (name in flipped)


@settings(max_examples=60, deadline=None)
@given(WORKLOADS, RATES)
def test_more_rate_never_brings_a_table_or_queue_back(workload: Workload, rate: float) -> None:
    more = replace(workload, messages_per_second=max(rate, workload.messages_per_second))
    for name in ("queue", "db-outbox"):
        if judge(workload).verdicts[name].fit == "does not fit":
            assert judge(more).verdicts[name].fit == "does not fit"


@settings(max_examples=20, deadline=None)
@given(WORKLOADS)
def test_plans_have_unique_figures(workload: Workload) -> None:
    plan = plan_choice(workload)
    names = [figure.name for figure in plan.figures]
    assert len(set(names)) == len(names)
    assert all([figure.formula and figure.source for figure in plan.figures])


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ({"rate": "0"}, "rate = .*must be at least 0.001"),
        ({"rate": "-1"}, "must be at least"),
        ({"rate": "lots"}, "must be a number of messages/s"),
        ({"consumers": "0"}, "must be at least 1"),
        ({"message-bytes": "0"}, "must be at least 1"),
        ({"latency": "0"}, "latency = .*must be at least"),
        ({"ordering": "some"}, "must be one of none, key, global"),
        ({"database": "yes"}, "must be one of none, there, transaction"),
        ({"replay": "maybe"}, "must be true or false"),
        ({"steps": "0"}, "must be at least 1"),
    ],
)
def test_bad_answers_are_named(texts: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidSetting, match=why):
        read_inputs(Workload, texts)


def test_defaults_are_within_their_bounds() -> None:
    texts = {info.name: getattr(Workload(), info.attribute) for info in describe(Workload)}
    assert read_inputs(Workload, texts) == Workload()
