"""Burrow's table of cases, cases in which Burrow raises a false alarm, and generated histories.

The table is data of LinkedIn's Burrow (Apache-2.0). Its three cases with `allowed-lag` are expected
as Burrow's own function evaluates them without that threshold.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.broker.lag.rules import (
    COMMITS_MAX,
    DISTANCE_MS,
    ENDS_MAX,
    PATIENCE_ALONE_MS,
    PATIENCE_MS,
    Commit,
    Ends,
    Evaluation,
    Outlook,
    Position,
    State,
    Window,
    evaluate,
    explanation_of,
    has_stopped,
    state_of,
    summary_of,
)

CASES = json.loads((Path(__file__).parent / "burrow_cases.json").read_text())["cases"]
TOPIC = UUID(int=1)
SECOND = 1_000
START_MS = 1_700_000_000_000
SAMPLE_MS = 10_000


def caught_up_ms(case: dict[str, Any]) -> int:
    """Return the last time without lag: of a commit, or of a sampled end, ten seconds apart."""
    commits = [at_ms for _, at_ms, lag in case["commits"] if lag == 0]
    last = case["commits"][-1][0]
    samples = [
        case["now_ms"] - SAMPLE_MS * age
        for age, end in enumerate(case["broker_offsets"])
        if end <= last
    ]
    return max([*commits, *samples], default=-1)


@pytest.mark.parametrize("case", CASES, ids=[str(case["number"]) for case in CASES])
def test_burrows_cases(case: dict[str, Any]) -> None:
    commits = [Commit(*commit) for commit in case["commits"]]
    stopped = has_stopped(
        commits,
        now_ms=case["now_ms"],
        last_ms=commits[-1].at_ms,
        caught_up_ms=caught_up_ms(case),
    )
    state = state_of(commits, lag=case["current_lag"], stopped=stopped, complete=True)
    assert state.name == case["status_without_allowed_lag"], case["why"]


def test_burrows_table_is_whole() -> None:
    assert [case["number"] for case in CASES] == list(range(16))
    assert {case["status"] for case in CASES} == {"OK", "STOP", "STALL", "REWIND"}


def window_of(
    offsets: Sequence[int], ends: Sequence[int | None], *, every_ms: int = 10 * SECOND
) -> Window:
    """Return a window whose commits are `every_ms` apart, with the ends at their times."""
    window = Window(TOPIC, START_MS)
    for index, (offset, end) in enumerate(zip(offsets, ends, strict=True)):
        window.add(offset, START_MS + index * every_ms, end)
    return window


def explained(
    window: Window, *, end: int | None, after_ms: int = SECOND, **facts: Any
) -> tuple[Evaluation, str]:
    """Evaluate a window some time after its last commit; return also the explanation."""
    now_ms = window.last_ms + after_ms
    position = Position(now_ms=now_ms, offset=window.offset, end=end, **facts)
    found = evaluate(window, position)
    return found, explanation_of(found, window, position)


def evaluated(window: Window, **facts: Any) -> Evaluation:
    return explained(window, **facts)[0]


STEADY = list(range(0, 1_000, 100))


def test_keeping_up_is_ok() -> None:
    window = window_of(STEADY, [offset + 10 * (index % 3) for index, offset in enumerate(STEADY)])
    assert evaluated(window, end=950).state is State.OK


def test_a_growing_lag_warns() -> None:
    window = window_of(STEADY, [2 * offset + 100 for offset in STEADY])
    found, reasons = explained(window, end=2_000, produced_per_second=20.0)
    assert found.state is State.WARN
    assert found.consumed_per_second == 10
    assert found.forecast.outlook is Outlook.STAYS_BEHIND
    assert "did not decrease at any of the last 10 commits" in reasons


def test_unchanged_offsets_stall() -> None:
    found, reasons = explained(window_of([100] * 10, [200] * 10), end=200)
    assert found.state is State.STALL
    assert found.consumed_per_second == 0
    assert reasons.startswith("The last 10 commits all have offset 100, while 100 ")


def test_silence_longer_than_the_window_stops() -> None:
    window = window_of(STEADY, [offset + 100 for offset in STEADY])
    assert evaluated(window, end=1_100, after_ms=90 * SECOND).state is State.WARN
    found, reasons = explained(window, end=1_100, after_ms=90 * SECOND + 1)
    assert found.state is State.STOP
    assert reasons == "No commit for 90 s, while 200 records wait."


def test_a_rewind_is_seen_until_the_former_offset_is_reached() -> None:
    window = window_of([100, 500, 200], [600] * 3)
    found, reasons = explained(window, end=600)
    assert found.state is State.REWIND
    assert reasons == "The group went back from offset 500 to 200; 400 records wait."
    window.add(499, window.last_ms + 10 * SECOND, 600)
    assert evaluated(window, end=600).state is State.REWIND
    window.add(500, window.last_ms + 10 * SECOND, 600)
    assert evaluated(window, end=600).state is State.OK


def test_a_second_rewind_is_seen_after_the_first_has_recovered() -> None:
    """Burrow looks for the first rewind only."""
    assert evaluated(window_of([500, 400, 600, 550], [700] * 4), end=700).state is State.REWIND


def test_records_deleted_before_they_were_read_are_an_error() -> None:
    window = window_of(STEADY, [2_000] * 10)
    found, reasons = explained(window, end=2_000, start=1_500)
    assert found.state is State.ERR
    assert reasons == "Retention deleted 600 records before the group read them."
    emptied = evaluated(window, end=2_000, start=2_000, after_ms=3_600 * SECOND)
    assert emptied.state is State.ERR, "nothing is left to read, so the group has not stopped"


# False alarms of other tools


def test_without_lag_no_silence_is_a_stop() -> None:
    window = window_of(STEADY, [offset + 100 for offset in STEADY])
    found = evaluated(window, end=900, after_ms=365 * 86_400 * SECOND)
    assert found.state is State.OK
    assert (found.lag, found.seconds_behind) == (0, 0)
    assert found.forecast.outlook is Outlook.CAUGHT_UP


def test_the_first_record_after_an_idle_night_is_no_stop() -> None:
    """The group had nothing to commit, so silence begins with the lag."""
    window = window_of(STEADY, STEADY)
    night_ms = 8 * 3_600 * SECOND
    window.caught_up_ms = window.last_ms + night_ms
    assert evaluated(window, end=901, after_ms=night_ms + 90 * SECOND).state is State.OK
    assert evaluated(window, end=901, after_ms=night_ms + 91 * SECOND).state is State.STOP


@pytest.mark.parametrize("count", range(1, COMMITS_MAX))
def test_few_commits_are_no_alarm(count: int) -> None:
    """After a restart of the broker, windows are incomplete, and the last commit may be old."""
    window = Window(TOPIC, START_MS + 3_600 * SECOND)
    for index in range(count):
        window.add(100, START_MS + index * 10 * SECOND, 200)
    patience_ms = PATIENCE_MS if count > 1 else PATIENCE_ALONE_MS
    for since_ms, expected in (
        (0, State.OK),
        (patience_ms, State.OK),
        (patience_ms + 1, State.STOP),
    ):
        now_ms = window.observed_ms + since_ms
        found = evaluate(window, Position(now_ms=now_ms, offset=100, end=200))
        assert found.state is expected


def test_an_unknown_end_is_no_alarm() -> None:
    found, reasons = explained(window_of([5] * 10, [None] * 10), end=None, after_ms=10**12)
    assert (found.state, found.lag, found.seconds_behind) == (State.OK, None, None)
    assert "leader does not respond" in reasons


def test_frequent_commits_do_not_shorten_the_window() -> None:
    """A consumer that commits each record would otherwise stop after some milliseconds."""
    window = Window(TOPIC, START_MS)
    for index in range(100_000):
        window.add(index, START_MS + index, 200_000)
    assert window.complete
    commits = window.commits()
    assert commits[-1].at_ms - commits[0].at_ms > (COMMITS_MAX - 2) * (DISTANCE_MS - 2)
    assert window.offset == 99_999
    assert window.consumed_per_second(0) == 1_000


def test_the_rate_of_a_stopped_group_falls() -> None:
    """It does not fall before the next commit is due."""
    window = window_of(STEADY, [offset + 100 for offset in STEADY])
    rates = [
        window.consumed_per_second(window.last_ms + after_ms)
        for after_ms in (0, 10 * SECOND, 55 * SECOND, 100 * SECOND)
    ]
    assert rates == [10, 10, pytest.approx(900 / (90 + 45)), 5]
    assert evaluated(window, end=1_000, after_ms=55 * SECOND).consumed_per_second == rates[2]


# Forecasts


def test_it_catches_up() -> None:
    window = window_of(STEADY, [2_000 - 50 * index for index in range(10)])
    found, reasons = explained(window, end=1_500, produced_per_second=4.0)
    assert found.forecast.outlook is Outlook.CATCHES_UP
    assert found.forecast.seconds == pytest.approx(600 / (10 - 4))
    assert reasons.endswith("and it catches up in 100 s at this rate.")


def test_an_abandoned_group_does_not_catch_up() -> None:
    window = window_of(STEADY, [2_000 - 50 * index for index in range(10)])
    found = evaluated(window, end=1_500, produced_per_second=4.0, abandoned=True)
    assert found.consumed_per_second == 0
    assert found.forecast.outlook is Outlook.STAYS_BEHIND


def test_equal_rates_are_steady() -> None:
    window = window_of(STEADY, [offset + 50 for offset in STEADY])
    for produced, outlook in ((9.6, Outlook.STEADY), (10.4, Outlook.STEADY)):
        found = evaluated(window, end=950, produced_per_second=produced, retention_records=10**6)
        assert found.forecast.outlook is outlook


def test_it_loses_records_by_age() -> None:
    """Retention has one hour left, and the age grows by half a second each second."""
    window = window_of(STEADY, [2_000] * 10)
    now_ms = window.last_ms + SECOND
    found = evaluated(
        window, end=40_000, produced_per_second=20.0, unread_ms=now_ms - 3_600 * SECOND,
        retention_ms=7_200 * SECOND,
    )  # fmt: skip
    assert found.seconds_behind == 3_600
    assert found.forecast.outlook is Outlook.LOSES_RECORDS
    assert found.forecast.seconds == pytest.approx(7_200)


def test_it_loses_records_by_size() -> None:
    window = window_of(STEADY, [2_000] * 10)
    found = evaluated(window, end=1_900, produced_per_second=60.0, retention_records=2_000)
    assert found.forecast.outlook is Outlook.LOSES_RECORDS
    assert found.forecast.seconds == pytest.approx((2_000 - 1_000) / 50)


def test_a_stopped_group_loses_records_when_the_first_one_expires() -> None:
    window = window_of(STEADY, [offset + 100 for offset in STEADY])
    now_ms = window.last_ms + 3_600 * SECOND
    found, reasons = explained(
        window, end=1_100, after_ms=3_600 * SECOND, produced_per_second=0.0,
        unread_ms=now_ms - 3_600 * SECOND, retention_ms=86_400 * SECOND,
    )  # fmt: skip
    assert found.state is State.STOP
    assert found.forecast.seconds == pytest.approx(23 * 3_600)
    assert reasons.endswith("and retention deletes unread records in 23.0 h.")


def test_the_rate_of_production_is_that_of_the_samples() -> None:
    ends = Ends()
    assert ends.per_second() is None
    for index in range(50):
        ends.add(index * 100, START_MS + index * 10 * SECOND)
    assert ends.per_second() == 10
    ends.add(4_900, START_MS + 3_600 * SECOND)
    rate = ends.per_second()
    assert rate is not None
    assert 0 < rate < 1


# Generated histories

offsets = st.integers(0, 2**62)
waits = st.integers(0, 10**9)
steps = st.tuples(offsets, waits, st.none() | offsets)
rates = st.none() | st.floats(0, 1e9, allow_nan=False)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Window, Position]:
    window, ends = Window(TOPIC, START_MS), Ends()
    now_ms = START_MS
    for offset, wait, end in draw(st.lists(steps, min_size=1, max_size=25)):
        now_ms += wait
        if end is not None:
            ends.add(end, now_ms)
        window.add(offset, now_ms, end)
    now_ms += draw(waits)
    position = Position(
        now_ms=now_ms,
        offset=window.offset,
        end=draw(st.none() | offsets),
        start=draw(st.none() | offsets),
        unread_ms=draw(st.none() | st.integers(-1, 2**62)),
        produced_per_second=draw(rates),
        retention_ms=draw(st.none() | st.integers(0, 2**62)),
        retention_records=draw(rates),
    )
    return window, position


def numbers_of(found: Evaluation) -> Iterator[float]:
    values = (
        found.lag, found.seconds_behind, found.consumed_per_second, found.produced_per_second,
        found.forecast.seconds,
    )  # fmt: skip
    yield from (value for value in values if value is not None)


@given(histories())
def test_an_evaluation_has_a_reason_and_finite_numbers(history: tuple[Window, Position]) -> None:
    window, position = history
    found = evaluate(window, position)
    assert explanation_of(found, window, position).endswith(".")
    assert all(math.isfinite(number) for number in numbers_of(found))
    assert all(
        number >= 0
        for number in (found.lag, found.seconds_behind, found.forecast.seconds)
        if number is not None
    )
    assert summary_of([found, found]).state is found.state


@given(histories())
def test_without_lag_the_state_is_ok(history: tuple[Window, Position]) -> None:
    window, position = history
    caught_up = Position(now_ms=position.now_ms, offset=window.offset, end=window.offset)
    assert evaluate(window, caught_up).state is State.OK


@given(histories(), st.integers(1, 2**61))
def test_a_rewind_is_seen(history: tuple[Window, Position], back: int) -> None:
    window, position = history
    before = window.offset
    assume(before > 0)
    window.add(max(0, before - back), position.now_ms, before + 1)
    found = evaluate(window, Position(now_ms=position.now_ms, offset=window.offset, end=before + 1))
    assert found.state is State.REWIND


@given(st.lists(st.tuples(offsets, waits, st.none() | offsets), max_size=100))
def test_memory_is_bounded(history: list[tuple[int, int, int | None]]) -> None:
    window, ends, now_ms = Window(TOPIC, 0), Ends(), 0
    for offset, wait, end in history:
        now_ms += wait
        window.add(offset, now_ms, end)
        if end is not None:
            ends.add(end, now_ms)
    assert len(window) <= COMMITS_MAX
    assert len(ends._values) <= 3 * ENDS_MAX
