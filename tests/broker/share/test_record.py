"""Stored form of a share partition: round trips, and truncation at every position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.share.stored import CorruptShareState, ShareState, decode_state, encode_state
from penstock.broker.share.values import Cause, RecordState, Run

AVAILABLE, ACQUIRED, RESOLVED, ARCHIVING = RecordState


@st.composite
def states(draw: st.DrawFn) -> ShareState:
    start = at = draw(st.integers(0, 2**62))
    runs = []
    for _ in range(draw(st.integers(0, 6))):
        last = at + draw(st.integers(0, 2**40))
        state = draw(st.sampled_from(RecordState))
        count = 0 if state == RESOLVED else draw(st.integers(0, 30_000))
        member = draw(st.text(max_size=8)) if state == ACQUIRED else ""
        deadline = draw(st.integers(0, 2**44)) if state == ACQUIRED else 0
        cause = draw(st.sampled_from(Cause)) if state == ARCHIVING else 0
        runs.append(Run(at, last, state, count, member, deadline, cause))
        at = last + 1
    return ShareState(
        state_epoch=draw(st.integers(0, 2**31 - 1)),
        leader_epoch=draw(st.integers(-1, 2**31 - 1)),
        start=start,
        runs=tuple(runs),
    )


def encoded(state: ShareState) -> bytes:
    return encode_state(state.state_epoch, state.leader_epoch, state.start, state.runs)


@given(states())
def test_there_and_back(state: ShareState) -> None:
    assert decode_state("g", encoded(state)) == state


@given(states())
def test_what_is_cut_off_or_too_long_is_refused(state: ShareState) -> None:
    row = encoded(state)
    for size in range(len(row)):
        with pytest.raises(CorruptShareState):
            decode_state("g", row[:size])
    with pytest.raises(CorruptShareState):
        decode_state("g", row + b"\0")
    with pytest.raises(CorruptShareState):
        decode_state("g", b"\7" + row[1:])


def test_rows_of_the_first_version_are_read() -> None:
    runs = (Run(3, 5, ACQUIRED, 2, "m", 10**12), Run(6, 9, RESOLVED), Run(10, 11, AVAILABLE, 1))
    row = encode_state(1, 2, 3, runs)
    state = ShareState(state_epoch=1, leader_epoch=2, start=3, runs=runs)
    assert decode_state("g", b"\1" + row[1:]) == state


def test_a_run_takes_few_bytes() -> None:
    runs = [Run(0, 499, ACQUIRED, 1, "m" * 22, 10**12), Run(500, 600, AVAILABLE, 2)]
    assert len(encode_state(0, 3, 0, runs)) == 25 + 1 + 23 + 1 + 5 + 3
