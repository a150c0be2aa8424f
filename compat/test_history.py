"""Each thing that the history finds, planted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compat.history import NUMBERS_PER_PRODUCER, STALE_SECONDS, History

SENT = 6  # records 0 to 5 of producer 0, on two partitions in turn
LOG = {0: [(0, 0), (1, 2), (2, 4)], 1: [(0, 1), (1, 3), (2, 5)]}
Log = dict[int, list[tuple[int, int]]]


def told() -> History:
    """What is true: all is acknowledged and read, by a reader that once is assigned anew."""
    history = History(2)
    for partition, records in LOG.items():
        for offset, record in records:
            history.acks(partition, offset, record)
        for offset, record in records[:2]:
            history.reads("reader", partition, offset, record)
        history.assigned("reader", partition)
        for offset, record in records[1:]:
            history.reads("reader", partition, offset, record)
        history.ends(partition, history.floor(partition), 3, epoch=1, now=0)
    return history


def without(log: Log, partition: int, offset: int) -> Log:
    return {**log, partition: log[partition][:offset]}


def test_nothing_is_found_where_all_is_true() -> None:
    history = told()
    history.check(LOG, {0: SENT})
    assert history.violations == []
    assert history.acknowledged == [3, 3]
    assert history.read_counts == {"reader": 6}


def _lost(history: History) -> Log:
    return without(LOG, 1, 2)


def _never_acknowledged_and_lost(history: History) -> Log:
    history.check({**LOG, 0: [*LOG[0], (3, 6)]}, {0: SENT + 2})
    return LOG


def _uncommitted(history: History) -> Log:
    history.reads("reader", 0, 3, 6)
    return LOG


def _two_records_at_one_offset(history: History) -> Log:
    history.reads("other", 0, 0, 0)
    history.reads("other", 0, 1, 4)
    return LOG


def _other_than_acknowledged(history: History) -> Log:
    return {**LOG, 0: [(0, 0), (1, 4), (2, 2)]}


def _of_nobody(history: History) -> Log:
    return {**LOG, 0: [*LOG[0], (3, NUMBERS_PER_PRODUCER)]}


def _doubled(history: History) -> Log:
    return {**LOG, 0: [*LOG[0], (3, 2)]}


def _order(history: History) -> Log:
    return {**LOG, 0: [*LOG[0], (3, 8), (4, 6)]}


def _backwards(history: History) -> Log:
    history.reads("reader", 0, 1, 2)
    return LOG


def _skipped(history: History) -> Log:
    history.reads("other", 0, 0, 0)
    history.reads("other", 0, 2, 4)
    return LOG


def _skipped_by_a_new_assignment(history: History) -> Log:
    history.reads("other", 0, 0, 0)
    history.assigned("other", 0)
    history.reads("other", 0, 2, 4)
    return LOG


def _hole(history: History) -> Log:
    return {**LOG, 0: [(0, 0), (2, 4)]}


def _end_below_an_ack(history: History) -> Log:
    history.ends(0, history.floor(0), 2, epoch=2, now=0)
    return LOG


def _end_below_another(history: History) -> Log:
    history.ends(0, 3, 7, epoch=2, now=0)
    history.ends(0, 3, 6, epoch=2, now=0)
    return LOG


def _end_below_an_ack_for_too_long(history: History) -> Log:
    history.ends(0, history.floor(0), 2, epoch=2, now=0)
    history.ends(0, history.floor(0), 3, epoch=3, now=STALE_SECONDS + 1)
    return LOG


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (_lost, "lost write"),
        (_never_acknowledged_and_lost, "lost write"),
        (_uncommitted, "uncommitted read"),
        (_two_records_at_one_offset, "other record"),
        (_other_than_acknowledged, "other record"),
        (_of_nobody, "other record"),
        (_doubled, "doubled"),
        (_order, "order"),
        (_backwards, "went back"),
        (_skipped, "skipped"),
        (_skipped_by_a_new_assignment, "skipped"),
        (_hole, "skipped"),
        (_end_below_an_ack, "end went back"),
        (_end_below_another, "end went back"),
        (_end_below_an_ack_for_too_long, "end went back"),
    ],
)
def test_what_is_planted_is_found(plant: Callable[[History], Log], kind: str) -> None:
    history = told()
    history.check(plant(history), {0: 10 if plant is _order else SENT})
    assert kind in {violation.kind for violation in history.violations}


def test_what_a_producer_gave_up_may_be_there_or_not() -> None:
    for log in (LOG, {**LOG, 0: [*LOG[0], (3, 6)]}):
        history = told()
        history.check(log, {0: SENT + 2}, refused=frozenset({0}))
        assert history.violations == []


def test_a_deposed_leader_may_return_an_older_end_for_a_while() -> None:
    history = told()
    history.ends(0, history.floor(0), 2, epoch=2, now=0)
    history.ends(0, history.floor(0), 3, epoch=3, now=1)
    history.ends(0, history.floor(0), 2, epoch=2, now=2)  # by another client's connection
    history.check(LOG, {0: SENT})
    assert history.violations == []
