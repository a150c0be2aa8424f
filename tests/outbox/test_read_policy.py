"""Read policy: every trouble to its end, with bounded attempts and pauses."""

from __future__ import annotations

import pytest

from penstock.outbox.reader.policy import (
    DEAD_LETTER,
    STOP,
    Judgement,
    ReadPolicy,
    Trouble,
    TryAgain,
)

POLICY = ReadPolicy()


def run(
    trouble: Trouble, record_age_ms: int, policy: ReadPolicy = POLICY
) -> tuple[list[int], Judgement]:
    """Return all pauses until the end, and the end; time advances by the pauses alone."""
    pauses: list[int] = []
    for attempts in range(1, 2_000):
        judged = policy.judge(trouble, attempts=attempts, record_age_ms=record_age_ms + sum(pauses))
        if not isinstance(judged, TryAgain):
            return pauses, judged
        pauses.append(judged.pause_ms)
    raise AssertionError("it never ends")


@pytest.mark.parametrize("age_ms", [0, 10_000_000])
def test_an_unreadable_payload_stops_the_consumer(age_ms: int) -> None:
    pauses, end = run(Trouble.UNREADABLE, age_ms)
    assert end is STOP
    assert pauses == [50, 100, 200, 400, 800, 1_600, 3_200]


def test_a_missing_payload_is_missing_after_the_grace_period() -> None:
    pauses, end = run(Trouble.MISSING, 0)
    assert end is DEAD_LETTER
    assert sum(pauses) == POLICY.missing_grace_ms
    assert max(pauses) == POLICY.pause_max_ms


def test_an_old_record_is_not_waited_for() -> None:
    assert run(Trouble.MISSING, 60_000) == ([], DEAD_LETTER)


def test_a_record_from_the_future_is_waited_for_with_a_bound() -> None:
    pauses, end = run(Trouble.MISSING, -(10**12))
    assert end is DEAD_LETTER
    assert POLICY.missing_grace_ms <= sum(pauses) <= 2 * POLICY.missing_grace_ms


def test_a_corrupt_payload_is_read_twice() -> None:
    assert run(Trouble.CORRUPT, 0) == ([50], DEAD_LETTER)


@pytest.mark.parametrize("trouble", [Trouble.INVALID, Trouble.TOO_LARGE])
def test_permanent_troubles_are_not_retried(trouble: Trouble) -> None:
    assert run(trouble, 0) == ([], DEAD_LETTER)


@pytest.mark.parametrize("trouble", list(Trouble))
@pytest.mark.parametrize("first_ms", [0, 1, 10**9])
def test_every_trouble_ends(trouble: Trouble, first_ms: int) -> None:
    policy = ReadPolicy(pause_first_ms=first_ms, pause_max_ms=first_ms, missing_grace_ms=1_000)
    run(trouble, 0, policy)
