"""Transactions in diskless partitions: one contract for all forms of the control plane."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest

from penstock.control import BatchEntry, CommitAnswer, FindRequest, InvalidCommit, SegmentSwap
from penstock.control.values.diskless import Watermarks
from penstock.records.extents import Extent
from penstock.records.transactions import AbortedTransaction, Marker
from tests.control.diskless import TOPIC, Plane, Sequenced, bases, entry, errors, put

KEY = (TOPIC, 0)
LATER = 2**62
"""Verified with a partition that ends there, as none does."""


def data(
    producer_id: int, sequence: int, epoch: int = 0, *, verified_from: int = LATER
) -> BatchEntry:
    """A batch of five records of a transaction."""
    return entry(by=Sequenced(producer_id, sequence, epoch))._replace(
        transactional=True, verified_from=verified_from
    )


def marker(
    producer_id: int,
    epoch: int,
    *,
    commit: bool = True,
    version: int = 2,
    coordinator: int = 1,
    made_at: int = LATER,
) -> BatchEntry:
    """The end of a producer's transaction."""
    made = Marker(producer_id, epoch, coordinator, commit, version)
    return entry(0, (78, 1))._replace(
        producer_id=producer_id,
        producer_epoch=epoch,
        transactional=True,
        verified_from=made_at,
        marker=made,
    )


async def marks(plane: Plane) -> Watermarks:
    [found] = await plane.watermarks([KEY])
    return found


async def stable(plane: Plane) -> int:
    return (await marks(plane)).last_stable_offset


async def aborted(
    plane: Plane, offset: int = 0, limit: int = 1000
) -> tuple[AbortedTransaction, ...]:
    return (await plane.aborted(*KEY, offset=offset, limit=limit)).transactions


async def test_a_marker_and_its_offset_are_one_commit(plane: Plane) -> None:
    first = await put(plane, data(7, 0))
    assert first.watermarks[KEY] == Watermarks(0, 5, 100, 0)
    assert await stable(plane) == 0
    answer = await put(plane, data(7, 5), marker(7, 1))
    assert bases(answer) == [5, 10]
    assert answer.watermarks[KEY] == Watermarks(0, 11, 278)
    assert await stable(plane) == 11
    [found] = await plane.find([FindRequest(*KEY, 0, 10**6)])
    assert found.watermarks == answer.watermarks[KEY]
    assert found.extents[-1].next_offset == 11
    assert await aborted(plane) == ()


async def test_the_last_stable_offset_is_the_first_of_an_open_transaction(plane: Plane) -> None:
    for producer_id in (1, 2, 3):
        await put(plane, data(producer_id, 0))
    await put(plane, entry())
    assert await stable(plane) == 0
    await put(plane, marker(2, 1))
    assert await stable(plane) == 0
    await put(plane, marker(1, 1, commit=False))
    assert await stable(plane) == 10
    await put(plane, marker(3, 1, commit=False))
    assert await stable(plane) == 23
    assert await aborted(plane) == (
        AbortedTransaction(1, 0, 21, 10), AbortedTransaction(3, 10, 22, 23),
    )  # fmt: skip
    assert (await marks(plane)).aborted_offset == 22


async def test_several_transactions_begin_and_end_in_one_object(plane: Plane) -> None:
    answer = await put(
        plane, data(1, 0), data(2, 0), marker(1, 1, commit=False), data(1, 0, 1), marker(2, 1)
    )
    assert errors(answer) == [None] * 5
    assert answer.watermarks[KEY][1:] == (17, 456, 11, 10)
    assert await aborted(plane) == (AbortedTransaction(1, 0, 10, 5),)


@pytest.mark.parametrize("version", [1, 2])
async def test_no_batch_lands_behind_its_marker(plane: Plane, version: int) -> None:
    """Another broker's object, gathered before the marker was written, is committed after it."""
    await put(plane, data(7, 0))
    ended = await put(plane, marker(7, version - 1, version=version, commit=False))
    late = await put(plane, data(7, 5, verified_from=5))
    assert errors(late) == ["not_enough_replicas" if version == 1 else "invalid_producer_epoch"]
    assert await marks(plane) == ended.watermarks[KEY]
    following = data(7, 5, verified_from=6) if version == 1 else data(7, 0, 1, verified_from=0)
    assert errors(await put(plane, following)) == [None]
    assert await stable(plane) == 6


@pytest.mark.parametrize("version", [1, 2])
async def test_nor_the_first_one_of_a_producer(plane: Plane, version: int) -> None:
    """The marker comes to a partition that has nothing of the transaction yet."""
    assert errors(await put(plane, marker(7, version - 1, version=version))) == [None]
    late = await put(plane, data(7, 0, verified_from=0))
    assert errors(late) == ["not_enough_replicas" if version == 1 else "invalid_producer_epoch"]
    assert await stable(plane) == 1


async def test_an_unverified_batch_begins_no_transaction(plane: Plane) -> None:
    assert errors(await put(plane, data(7, 0, verified_from=-1))) == ["invalid_txn_state"]
    await put(plane, data(7, 0))
    assert errors(await put(plane, data(7, 5, verified_from=-1))) == [None], "it goes on"


async def test_a_batch_outside_of_an_open_transaction_is_refused(plane: Plane) -> None:
    answer = await put(plane, data(7, 0), entry(by=Sequenced(7, 5)))
    assert errors(answer) == [None, "invalid_txn_state"]


async def test_a_batch_that_is_sent_again_is_known_behind_its_marker(plane: Plane) -> None:
    await put(plane, data(7, 0), marker(7, 0, version=1))
    again = await put(plane, data(7, 0, verified_from=0))
    assert bases(again) == [0]
    assert again.placed[0].duplicate


async def test_markers_are_idempotent_and_fenced(plane: Plane) -> None:
    first = await put(plane, data(7, 0), marker(7, 1, coordinator=5))
    again = await put(plane, marker(7, 1, coordinator=5), marker(7, 1, coordinator=6))
    assert [result.duplicate for result in again.placed] == [True, True]
    refused = await put(plane, marker(7, 0, coordinator=5), marker(7, 2, coordinator=4))
    assert errors(refused) == ["invalid_producer_epoch", "transaction_coordinator_fenced"]
    assert await marks(plane) == first.watermarks[KEY]


async def test_a_marker_of_version_1_that_ends_nothing_does_no_harm(plane: Plane) -> None:
    await put(plane, data(7, 0), marker(7, 0, version=1, commit=False))
    await put(plane, marker(7, 0, version=1, commit=True))
    assert await aborted(plane) == (AbortedTransaction(7, 0, 5, 6),)
    assert await stable(plane) == 7


async def test_a_late_marker_ends_no_later_transaction(plane: Plane) -> None:
    """The marker's commit takes effect after the producer has continued in the same epoch."""
    await put(plane, data(7, 0, verified_from=0))
    await put(plane, marker(7, 0, version=1, commit=False, made_at=5))
    following = await put(plane, data(7, 5, verified_from=6))
    late = await put(plane, marker(7, 0, version=1, commit=False, made_at=5))
    assert late.placed[0].duplicate
    assert await marks(plane) == following.watermarks[KEY]
    await put(plane, data(7, 10, verified_from=11))
    ended = await put(plane, marker(7, 0, version=1, made_at=16))
    assert bases(ended) == [16]
    assert await aborted(plane) == (AbortedTransaction(7, 0, 5, 6),)
    assert await stable(plane) == 17


async def test_a_marker_ends_what_was_verified_until_it_was_made(plane: Plane) -> None:
    await put(plane, data(7, 0, verified_from=0), marker(7, 0, version=1, made_at=0))
    assert await stable(plane) == 6


async def test_a_marker_is_what_it_says(plane: Plane) -> None:
    for wrong in (
        marker(7, 1)._replace(producer_id=8),
        entry(0, (78, 2))._replace(producer_id=7, marker=marker(7, 1).marker),
    ):
        with pytest.raises(InvalidCommit, match="marker"):
            await put(plane, wrong)


async def test_states_of_producers_are_returned(plane: Plane) -> None:
    await put(plane, data(7, 0), marker(7, 1, coordinator=4), data(7, 0, 1), data(8, 0))
    one, other = await plane.diskless_producers(*KEY)
    assert (one.producer_epoch, one.coordinator_epoch, one.txn_start_offset) == (1, 4, 6)
    assert (other.coordinator_epoch, other.txn_start_offset) == (-1, 11)
    await put(plane, marker(8, 1))
    _, other = await plane.diskless_producers(*KEY)
    assert (other.producer_epoch, other.last_sequence, other.txn_start_offset) == (1, -1, -1)


async def test_producers_with_open_transactions_do_not_expire(plane: Plane) -> None:
    await put(plane, data(7, 0), entry(by=Sequenced(8, 0)))
    assert await plane.forget_producers(idle_ms=-1, limit=10) == 1
    assert [
        diskless_producer.producer_id for diskless_producer in await plane.diskless_producers(*KEY)
    ] == [7]


async def test_aborted_transactions_come_in_pages(plane: Plane) -> None:
    await put(plane, data(9, 0))
    for producer_id in range(5):
        await put(plane, data(producer_id, 0), marker(producer_id, 1, commit=False))
    everything = await aborted(plane)
    assert [transaction.last_offset for transaction in everything] == [10, 16, 22, 28, 34]
    page = await plane.aborted(*KEY, offset=11, limit=2)
    assert (page.transactions, page.complete_to) == (everything[1:3], 0), "one was open all along"
    rest = await plane.aborted(*KEY, offset=23, limit=10)
    assert (rest.transactions, rest.complete_to) == (everything[3:], None)
    assert rest.watermarks == await marks(plane)
    assert (await plane.aborted(TOPIC, 2, offset=0, limit=10)).transactions == ()


async def test_retention_keeps_open_transactions_and_forgets_what_was_aborted(plane: Plane) -> None:
    await put(plane, data(1, 0))
    await put(plane, marker(1, 1, commit=False))
    await put(plane, data(2, 0))
    await put(plane, entry())
    kept = await plane.retain(*KEY, before_timestamp=None, max_bytes=0, limit=10)
    assert kept.watermarks[:2] == (6, 16)
    assert await aborted(plane) == ()
    await put(plane, marker(2, 1))
    gone = await plane.retain(*KEY, before_timestamp=None, max_bytes=0, limit=10)
    assert gone.watermarks[:2] == (17, 17)


async def test_deleted_records_do_not_hold_the_stable_offset_back(plane: Plane) -> None:
    await put(plane, data(1, 0), data(2, 0))
    moved = await plane.delete_records(*KEY, 8)
    assert moved.last_stable_offset == 8
    await put(plane, marker(1, 1, commit=False), marker(2, 1, commit=False))
    assert await stable(plane) == 12
    assert await aborted(plane, 8) == (
        AbortedTransaction(1, 0, 10, 5),
        AbortedTransaction(2, 5, 11, 12),
    )


async def test_a_segment_in_the_place_of_extents_changes_nothing_of_it(plane: Plane) -> None:
    await put(plane, data(1, 0))
    await put(plane, marker(1, 1, commit=False))
    await put(plane, data(2, 0))
    before, rows = await marks(plane), await aborted(plane)
    replaced = tuple(await plane.extents(*KEY, start=0, end=11, limit=10))
    key = await plane.lease_segment(*KEY, base_offset=0)
    layout = b"".join([extent.layout for extent in replaced])
    sealed = Extent(key.object_id, key.key, "segment", 0, 278, 0, 11, 500, -1, layout)
    await plane.swap_extents(
        SegmentSwap(
            topic_id=TOPIC, partition=0, object_id=key.object_id, size_bytes=278,
            replaced=replaced, extents=(sealed,),
        )
    )  # fmt: skip
    assert (await marks(plane), await aborted(plane)) == (before, rows)


async def test_all_of_it_goes_with_the_topic(plane: Plane) -> None:
    for producer_id in range(3):
        await put(plane, data(producer_id, 0), marker(producer_id, 1, commit=False))
    await plane.delete_topic(TOPIC)
    while await plane.forget_partitions(limit=2):
        pass
    assert await aborted(plane) == ()


async def test_the_time_of_a_marker_is_no_records(plane: Plane) -> None:
    await put(plane, data(7, 0)._replace(max_timestamp=500))
    await put(plane, marker(7, 1)._replace(max_timestamp=900))
    newest = await plane.extent_at_time(*KEY, None)
    assert newest is not None
    assert (newest.base_offset, newest.max_timestamp) == (0, 500)


class Written(NamedTuple):
    """A batch in the oracle's partition: its producer, and whether it ends a transaction."""

    producer_id: int
    offset: int
    end: bool | None = None


class Oracle:
    """The partition as a list, from which everything is found by looking through it."""

    def __init__(self) -> None:
        self.log: list[Written] = []
        self.end = 0

    def open(self) -> dict[int, int]:
        begun: dict[int, int] = {}
        for batch in self.log:
            if batch.end is None:
                begun.setdefault(batch.producer_id, batch.offset)
            else:
                begun.pop(batch.producer_id, None)
        return begun

    def stable(self) -> int:
        return min(self.open().values(), default=self.end)

    def aborted(self) -> set[tuple[int, int, int]]:
        found: set[tuple[int, int, int]] = set()
        begun: dict[int, int] = {}
        for batch in self.log:
            if batch.end is None:
                begun.setdefault(batch.producer_id, batch.offset)
            elif (first := begun.pop(batch.producer_id, None)) is not None and not batch.end:
                found.add((batch.producer_id, first, batch.offset))
        return found

    def last_marker(self, producer_id: int) -> int:
        own = [batch for batch in self.log if batch.producer_id == producer_id]
        return max([batch.offset for batch in own if batch.end is not None], default=-1)

    def take(self, asked: list[BatchEntry], answer: CommitAnswer) -> None:
        for asked_entry, placed in zip(asked, answer.placed, strict=True):
            if placed.error is None and not placed.duplicate:
                end = None if asked_entry.marker is None else asked_entry.marker.commit
                assert placed.base_offset == self.end
                if (
                    end is None
                    and asked_entry.producer_id not in self.open()
                    and asked_entry.producer_id % 2 == 0
                ):
                    assert asked_entry.verified_from > self.last_marker(asked_entry.producer_id)
                self.log.append(Written(asked_entry.producer_id, self.end, end))
                self.end += asked_entry.offset_count


@pytest.mark.parametrize("seed", range(2))
async def test_any_order_of_brokers_agrees_with_an_oracle(plane: Plane, seed: int) -> None:
    """Two brokers write for producers of both versions, and commit in another order.

    What lands late is refused or belongs to what is open; the last stable offset never falls.
    """
    dice, oracle = Random(seed), Oracle()
    sequences = dict.fromkeys(range(6), 0)
    epochs = dict.fromkeys(range(6), 0)
    waiting: list[list[BatchEntry]] = [[], []]
    last = 0
    for _ in range(120):
        producer_id, broker = dice.randrange(6), dice.randrange(2)
        version = 1 + producer_id % 2
        if dice.random() < 0.6:
            known = oracle.end if version == 1 else 0
            waiting[broker].append(
                data(producer_id, sequences[producer_id], epochs[producer_id], verified_from=known)
            )
        elif producer_id in oracle.open():
            epoch = epochs[producer_id] + (version == 2)
            commit = dice.random() < 0.5
            waiting[broker].append(marker(producer_id, epoch, commit=commit, version=version))
        if dice.random() < 0.5 and waiting[broker]:
            asked, waiting[broker] = waiting[broker], []
            oracle.take(asked, await put(plane, *asked))
            for state in await plane.diskless_producers(*KEY):
                epochs[state.producer_id] = state.producer_epoch
                sequences[state.producer_id] = state.last_sequence + 1
            found = await marks(plane)
            assert found.high_watermark == oracle.end
            assert found.last_stable_offset == oracle.stable() >= last
            last = found.last_stable_offset
            assert {transaction[:3] for transaction in await aborted(plane)} == oracle.aborted()
            for transaction in await aborted(plane):
                below = [
                    first for _, first, end in oracle.aborted() if end > transaction.last_offset
                ]
                assert all(first >= transaction.last_stable_offset for first in below)
