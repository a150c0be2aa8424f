"""Effects of the tier core, by its state."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from penstock.control.values.tiers import TierBounds, TiersDropped, TierSegment
from penstock.partitions.tiers.core import (
    Ask,
    Copy,
    Cut,
    Effect,
    Look,
    Policy,
    Retain,
    Roll,
    TierCore,
)
from penstock.storage.log.tiering import ClosedSegment

NOW_MS = 1_000_000
POLICY = Policy(True, True, retention_ms=-1, retention_bytes=-1, interval_ms=1000)


def closed(*bounds: int, epoch: int = 0) -> list[ClosedSegment]:
    """Closed segments of 100 bytes between these offsets."""
    return [
        ClosedSegment(f"/{base}", base, end, 100, epoch) for base, end in itertools.pairwise(bounds)
    ]


def look(*bounds: int, **fields: Any) -> Look:
    end = bounds[-1] + 5 if bounds else 5
    whole = {
        "leader_epoch": 0, "start_offset": 0, "local_start": 0, "end_offset": end, "stable": end,
        "segments": closed(*bounds), "open_bytes": 50, "open_timestamp": NOW_MS,
        "epochs": [(0, 0)], **fields,
    }  # fmt: skip
    return Look(**whole)


def knowing(bounds: TierBounds | None, epoch: int = 0) -> TierCore:
    core = TierCore()
    core.learned(bounds, epoch)
    return core


def step(
    core: TierCore, seen: Look, policy: Policy = POLICY, now_ms: int = NOW_MS
) -> Effect | None:
    return core.step(seen, policy, now_ms)


def test_unknown_tiers_are_requested_and_again_in_a_new_epoch() -> None:
    core = TierCore()
    assert step(core, look(0, 10)) == Ask()
    core.learned(None, 0)
    assert step(core, look(0, 10)) == Copy(closed(0, 10)[0], 0)
    assert step(core, look(0, 10, leader_epoch=1)) == Ask()


@pytest.mark.parametrize(
    ("bounds", "stable", "start", "base"),
    [
        (None, 40, 0, 0),
        (None, 40, 15, 10),
        (None, 9, 0, None),
        (TierBounds(0, 10, 100, 1, ((0, 0),)), 20, 0, 10),
        (TierBounds(0, 10, 100, 1, ((0, 0),)), 19, 0, None),
        (TierBounds(0, 14, 100, 1, ((0, 0),)), 40, 0, 14),
        (TierBounds(0, 30, 300, 3, ((0, 0),)), 40, 0, None),
        (TierBounds(25, 10, 0, 0), 40, 25, 20),
        (TierBounds(25, 22, 0, 0), 40, 25, 22),
    ],
)
def test_the_first_that_is_committed_and_not_archived_is_copied(
    bounds: TierBounds | None, stable: int, start: int, base: int | None
) -> None:
    found = step(knowing(bounds), look(0, 10, 20, 30, stable=stable, start_offset=start))
    assert (found.base_offset if isinstance(found, Copy) else found) == base


def test_nothing_is_copied_where_that_is_turned_off() -> None:
    core = knowing(None)
    assert step(core, look(0, 10), POLICY._replace(copies=False)) is None
    assert (core.lag_segments, core.lag_bytes) == (0, 0)
    step(core, look(0, 10, 20))
    assert (core.lag_segments, core.lag_bytes) == (2, 200)


def test_after_a_failure_there_is_a_pause_and_a_question() -> None:
    core = knowing(None)
    core.failed("the store is away", NOW_MS)
    assert core.error == "the store is away"
    assert step(core, look(0, 10), now_ms=NOW_MS + 100) is None
    assert step(core, look(0, 10), now_ms=NOW_MS + 500) == Ask()
    first = core.failures
    core.failed("again", NOW_MS + 500)
    assert step(core, look(0, 10), now_ms=NOW_MS + 1200) is None
    assert core.failures == first + 1


@pytest.mark.parametrize(
    ("tiers", "log", "local_start", "end", "cut"),
    [
        (((0, 0),), [(0, 0)], 0, 50, None),
        (((0, 0),), [(0, 0)], 0, 25, 25),
        (((0, 0), (2, 20)), [(0, 0), (2, 20)], 10, 50, None),
        (((0, 0), (2, 20)), [(0, 0), (3, 20)], 10, 50, 20),
        (((0, 0), (2, 20)), [(0, 0), (3, 15)], 10, 50, 15),
        (((0, 0), (2, 20)), [(3, 30)], 30, 50, None),
        (((0, 0), (2, 20)), [(2, 25), (3, 28)], 25, 50, 28),
    ],
)
def test_a_new_leader_cuts_tiers_beyond_its_log(
    tiers: tuple[tuple[int, int], ...],
    log: list[tuple[int, int]],
    local_start: int,
    end: int,
    cut: int | None,
) -> None:
    core = knowing(TierBounds(0, 30, 300, 3, tiers), 4)
    seen = look(
        30, 40, leader_epoch=4, epochs=log, local_start=local_start, end_offset=end, stable=0
    )
    found = step(core, seen)
    assert (found.offset if isinstance(found, Cut) else found) == cut
    if isinstance(found, Cut):
        core.dropped(found, TiersDropped(TierBounds(0, found.offset, 9, 1), 1, 9, False), NOW_MS)
        assert core.tiered_offset == found.offset
        assert step(core, seen) is None


def test_retention_looks_at_size_and_age_now_and_then() -> None:
    bounds = TierBounds(0, 30, 300, 3, ((0, 0),))
    policy = POLICY._replace(retention_bytes=450)
    assert step(knowing(bounds), look(30, 40), policy) == Copy(closed(30, 40)[0], 30)
    policy = POLICY._replace(retention_bytes=300, copies=False)
    core = knowing(bounds)
    found = step(core, look(30, 40), policy)
    assert found == Retain(None, 150)
    assert isinstance(found, Retain)
    core.dropped(found, TiersDropped(bounds, 0, 0, True), NOW_MS)
    assert step(core, look(30, 40), policy) == found
    core.dropped(found, TiersDropped(bounds, 0, 0, False), NOW_MS)
    assert step(core, look(30, 40), policy) is None
    assert step(core, look(30, 40), policy, NOW_MS + 1000) == found
    old = POLICY._replace(retention_ms=600_000, copies=False)
    assert step(knowing(bounds), look(30, 40), old) == Retain(400_000, None)
    assert step(knowing(bounds), look(30, 40), old._replace(expires=False)) is None
    assert step(knowing(TierBounds(30, 30, 0, 0)), look(30, 40), old) is None


def test_an_old_open_segment_is_closed_so_that_it_may_expire() -> None:
    policy = POLICY._replace(retention_ms=1000)
    core = knowing(None)
    assert step(core, look(open_timestamp=NOW_MS - 1001), policy) == Roll()
    assert step(core, look(open_timestamp=NOW_MS - 1000), policy) is None
    assert step(core, look(open_timestamp=-1), policy) is None
    assert step(core, look(open_timestamp=0), policy._replace(retention_ms=-1)) is None


def test_copies_and_deletions_update_the_epochs() -> None:
    core = knowing(None)
    for number, epoch in enumerate((0, 0, 2)):
        segment = TierSegment(
            number * 10, number * 10 + 10, epoch, 1, 1, "s", 100, 0, 0, 34 * (number == 1), 0
        )
        core.copied(TierBounds(0, segment.next_offset, 100, 1), segment)
    assert core.bounds == TierBounds(0, 30, 100, 1, ((0, 0), (2, 20)), 10)
    core.trimmed(TiersDropped(TierBounds(15, 30, 100, 1), 1, 100, False))
    assert core.bounds == TierBounds(15, 30, 100, 1, ((0, 15), (2, 20)), 10)
    core.trimmed(None)
    assert core.bounds is None


def test_a_lag_grows_when_more_waits_at_the_end_of_several_looks_and_something_at_each() -> None:
    def grows(*segments: int) -> bool:
        core = knowing(TierBounds(0, 0, 0, 0, ()))
        for number, count in enumerate(segments):
            now_ms = NOW_MS + number * POLICY.interval_ms
            for again in range(3):  # one look has several steps
                step(core, look(*range(0, 10 * count + 1, 10)), now_ms=now_ms + again)
        return core.lag_grows

    assert not knowing(None).measured
    assert grows(1, 1, 2, 2, 3, 3, 4, 4)
    assert not grows(1, 2, 3, 4, 5, 6, 7), "not seen for long enough"
    assert not grows(4, 4, 4, 4, 4, 4, 4, 4)
    assert not grows(1, 2, 0, 1, 2, 3, 4, 5)
    assert grows(0, 9, 1, 2, 3, 4, 5, 6, 7, 8)
