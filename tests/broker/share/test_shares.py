"""Share partitions of several brokers over one control plane: saved state and its order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import pytest

from penstock.base.ids import TopicPartition
from penstock.base.system import SYSTEM_CLOCK
from penstock.broker.share.shares import Shares, place_of, share_key
from penstock.broker.share.stored import ShareStateLost, StoredShare
from penstock.broker.share.values import (
    Acknowledge,
    Acknowledged,
    Acquired,
    Batch,
    InvalidRecordState,
    ShareSettings,
)
from penstock.control import ControlUnavailable, MemoryControlPlane, RecordChange, SavedRecords
from penstock.records.extents import EARLIEST

LOG = [Batch(0, 4), Batch(5, 9)]


class Plane(MemoryControlPlane):
    """A control plane that counts transactions, and can fail before or after one."""

    def __init__(self) -> None:
        super().__init__()
        self.transactions: list[Sequence[RecordChange]] = []
        self.fails_before = self.fails_after = False

    async def save_records(
        self, changes: Sequence[RecordChange], *, cluster_epoch: int | None = None
    ) -> SavedRecords:
        self.transactions.append(changes)
        if self.fails_before:
            raise ControlUnavailable("away")
        saved = await super().save_records(changes, cluster_epoch=cluster_epoch)
        if self.fails_after:
            raise ControlUnavailable("away")
        return saved


class Log:
    """A partition as share partitions read it."""

    look_up = None
    leader_epoch = 0
    log_start_offset = 0
    high_watermark = log_end_offset = 10
    topic_id = UUID(int=7)

    def __init__(self, index: int = 0) -> None:
        self.topic_partition = TopicPartition("t", index)


@pytest.fixture
async def plane() -> AsyncIterator[Plane]:
    plane = Plane()
    await plane.start()
    yield plane
    await plane.close()


class Brokers:
    """Several brokers, each of which acts as the leader."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.made: list[Shares] = []
        self.changed: list[object] = []
        self.archiving: list[StoredShare] = []

    def __call__(self) -> Shares:
        settings = ShareSettings(begins_at=EARLIEST)
        shares = Shares(
            control=self.plane,
            clock=SYSTEM_CLOCK,
            settings_of=lambda _: settings,
            changed=self.changed.extend,
            archiving=self.archiving.append,
        )
        self.made.append(shares)
        return shares


@pytest.fixture
async def broker(plane: Plane) -> AsyncIterator[Brokers]:
    brokers = Brokers(plane)
    yield brokers
    for shares in brokers.made:
        await shares.stop()


async def opened(shares: Shares, index: int = 0) -> StoredShare:
    source: Any = Log(index)
    return await shares.open("g", source)


def acquire(shares: Shares, stored: StoredShare, member: str, most: int = 5) -> list[Acquired]:
    begin = stored.share.next_offset()
    assert begin is not None
    found = [batch for batch in LOG if batch.last >= begin]
    return stored.share.acquire(
        member, found, begin=begin, records_max=most, exact=False, now_ms=shares.now_ms()
    )


def accept(shares: Shares, stored: StoredShare, member: str, first: int, last: int) -> None:
    acknowledgements = [Acknowledged(first, last, Acknowledge.ACCEPT)]
    stored.share.acknowledge(member, acknowledgements, now_ms=shares.now_ms())


def test_keys_name_group_topic_and_partition() -> None:
    place = ("a/b c/", UUID(int=3), 12)
    assert place_of(share_key(*place)) == place


async def test_locks_and_acknowledgements_outlive_a_broker(broker: Brokers) -> None:
    first = broker()
    stored = await opened(first)
    assert acquire(first, stored, "a") == [Acquired(0, 4, 1)]
    accept(first, stored, "a", 0, 1)
    await stored.store()
    second = broker()
    found = await opened(second)
    assert acquire(second, found, "b") == [Acquired(5, 9, 1)], "a is alive, and has the others"
    accept(second, found, "a", 2, 4)
    await found.store()
    assert found.share.start == 5


async def test_of_two_leaders_one_acquires(broker: Brokers) -> None:
    one, two = broker(), broker()
    first, second = await opened(one), await opened(two)
    acquire(one, first, "a"), acquire(two, second, "b")
    outcomes = await asyncio.gather(first.store(), second.store(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes if outcome] == [ShareStateLost]
    loser, member = (one, "a") if isinstance(outcomes[0], ShareStateLost) else (two, "b")
    assert len(loser) == 0, "what it had in memory is not true"
    again = await opened(loser)
    with pytest.raises(InvalidRecordState):
        accept(loser, again, member, 0, 4)
    assert acquire(loser, again, member) == [Acquired(5, 9, 1)]
    await again.store()


async def test_what_one_turn_decides_is_one_transaction(broker: Brokers, plane: Plane) -> None:
    shares = broker()
    found = await asyncio.gather(*(opened(shares, index) for index in range(20)))
    assert len(plane.transactions) <= 2, "they begin together, too"
    plane.transactions.clear()
    saves = []
    for stored in found:
        acquire(shares, stored, "a", most=1)
        saves.append(stored.store())
        accept(shares, stored, "a", 0, 2)
        saves.append(stored.store())
    await asyncio.gather(*saves)
    assert [len(changes) for changes in plane.transactions] == [20]


async def test_while_a_save_is_on_its_way_the_next_gathers(broker: Brokers, plane: Plane) -> None:
    shares = broker()
    stored = await opened(shares)
    plane.transactions.clear()
    acquire(shares, stored, "a")
    first = stored.store()
    while not plane.transactions:
        await asyncio.sleep(0)
    accept(shares, stored, "a", 0, 1)
    second = stored.store()
    accept(shares, stored, "a", 2, 4)
    assert stored.store() is second is not first
    await asyncio.gather(first, second)
    assert len(plane.transactions) == 2
    assert (await opened(broker())).share.start == 5


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_failed_save_is_reported_and_the_row_is_read_again(
    broker: Brokers, plane: Plane, when: str
) -> None:
    shares = broker()
    stored = await opened(shares)
    acquire(shares, stored, "a")
    await stored.store()
    setattr(plane, f"fails_{when}", True)
    broker.changed.clear()
    accept(shares, stored, "a", 0, 4)
    if when == "before":
        with pytest.raises(ShareStateLost):
            await stored.store()
        assert broker.changed == [stored.key]
        with pytest.raises(ShareStateLost):
            await stored.store()
    else:
        await stored.store()
    setattr(plane, f"fails_{when}", False)
    again = await opened(shares)
    assert again.share.start == (0 if when == "before" else 5)


async def test_what_cannot_be_read_is_tried_again(broker: Brokers, plane: Plane) -> None:
    shares = broker()
    plane.fails_before = True
    with pytest.raises(ShareStateLost):
        await opened(shares)
    plane.fails_before = False
    assert (await opened(shares)).share.start == 0


async def test_another_epoch_of_the_leader_reads_again(broker: Brokers) -> None:
    shares, other = broker(), broker()
    stored = await opened(shares)
    there = await opened(other)
    acquire(other, there, "b")
    await there.store()
    source: Any = Log()
    assert shares.held("g", source) is stored
    source.leader_epoch = 2
    assert shares.held("g", source) is None
    again = await shares.open("g", source)
    assert acquire(shares, again, "a") == [Acquired(5, 9, 1)]
