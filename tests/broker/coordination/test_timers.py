"""The heap of deadlines compared with a plain list."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.groups.runtime.core import STALE_ENTRIES_MIN, Timer, Timers

TIMERS = 8
steps = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.integers(0, TIMERS - 1), st.integers(0, 50)),
        st.tuples(st.just("stop"), st.integers(0, TIMERS - 1), st.just(0)),
        st.tuples(st.just("pass"), st.just(0), st.integers(0, 20)),
    ),
    max_size=60,
)


@given(steps)
def test_timers_fire_as_a_plain_list_would(script: list[tuple[str, int, int]]) -> None:
    fired: list[int] = []
    timers = Timers()
    all_timers = [Timer(partial(fired.append, number)) for number in range(TIMERS)]
    plain: dict[int, int] = {}
    now_ms = 0
    for action, number, value in script:
        if action == "start":
            timers.start(all_timers[number], now_ms + value)
            plain[number] = now_ms + value
        elif action == "stop":
            timers.stop(all_timers[number])
            plain.pop(number, None)
        else:
            now_ms += value
            due = {number for number, deadline in plain.items() if deadline <= now_ms}
            fired.clear()
            for timer in timers.due(now_ms):
                timer.fire()
            assert set(fired) == due
            assert len(fired) == len(due)
            plain = {number: at for number, at in plain.items() if number not in due}
        deadline = timers.next_deadline_ms()
        if plain:
            assert deadline is not None
            assert deadline <= min(plain.values())
        else:
            assert deadline is None
        for number, timer in enumerate(all_timers):
            assert timer.deadline_ms == plain.get(number)


def test_what_is_left_over_is_cleared_away() -> None:
    timers = Timers()
    kept = [Timer(lambda: None) for _ in range(10)]
    for timer in kept:
        timers.start(timer, 1_000_000)
    for _ in range(10_000):
        timer = Timer(lambda: None)
        timers.start(timer, 1_000_000)
        timers.stop(timer)
    assert len(timers) <= len(kept) + STALE_ENTRIES_MIN + 1
    for deadline in range(1_000_000, 0, -100):
        timers.start(kept[0], deadline)
    assert len(timers) <= len(kept) + STALE_ENTRIES_MIN + 1


def test_putting_off_costs_no_entry() -> None:
    timers = Timers()
    timer = Timer(lambda: None)
    for deadline in range(1, 10_000):
        timers.start(timer, deadline)
    assert len(timers) == 1
    assert list(timers.due(9_000)) == []
    assert timers.next_deadline_ms() == 9_999
    assert list(timers.due(9_999)) == [timer]
