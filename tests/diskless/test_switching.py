"""Copying the log of a local topic: passes, objects, what overtakes a copy, what has no place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest

from penstock.base.ids import TopicPartition
from penstock.control import MigratedPartition, MigrationRefused
from penstock.control.rules.migrations import check_partitions
from penstock.diskless.settings import DisklessSettings
from penstock.diskless.topics import migration
from penstock.diskless.topics.migration import TopicCopy
from penstock.records import split_batches
from penstock.records.header import TRANSACTIONAL_FLAG
from penstock.records.transactions import UNGUARDED, AbortedTransaction, Marker
from penstock.storage import LogConfig, LogStore, PartitionLog, StorageSettings
from tests.diskless.world import World
from tests.storage.batches import FakeClock, batch, stamped

TOPIC = UUID(int=5)


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[LogStore]:
    config = LogConfig(segment_bytes=1 << 14, retention_bytes=1 << 14)
    settings = StorageSettings(log_retention_check_interval_ms=1)
    store = LogStore.open(tmp_path, settings, clock=FakeClock(), config_of=lambda topic: config)
    yield store
    store.close()


def log_of(logs: LogStore, count: int = 0) -> PartitionLog:
    log = logs.create(TopicPartition("t", 0), topic_id=TOPIC, leader_epoch=0)
    append(logs, log, count)
    return log


def append(logs: LogStore, log: PartitionLog, count: int, size: int = 1000) -> None:
    """So many durable batches of two records."""
    for n in range(count):
        log.append(batch(2, size=size, fill=n), now_ms=1_000)
    logs.commit_pending()
    assert log.durable_offset == log.log_end_offset


class Copied(NamedTuple):
    """A log whose durable records are all committed."""

    log: PartitionLog

    @property
    def high_watermark(self) -> int:
        return self.log.durable_offset


def copy_of(world: World, *logs: PartitionLog, **settings: int) -> TopicCopy:
    return TopicCopy(
        TOPIC,
        [Copied(log) for log in logs],
        DisklessSettings(**settings),
        plane=world.plane,
        store=world.store,
        clock=world.clock,
    )


def whole(copy: TopicCopy) -> MigratedPartition:
    """The copy of the one partition, which must add up."""
    [part] = copy.partitions()
    check_partitions(TOPIC, [part])
    return part


async def stored(world: World, part: MigratedPartition) -> list[int]:
    """The base offsets of all batches, read by the extents."""
    found = []
    for extent in part.extents:
        data = await world.store.get(extent.key, extent.byte_offset, extent.size_bytes)
        found += [header.base_offset for header in split_batches(data)]
    return found


async def test_a_pass_continues_where_the_last_one_ended(
    logs: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "OBJECT_BYTES", 10_000)
    monkeypatch.setattr(migration, "CHUNK_BYTES", 3_000)
    world, log = World(), log_of(logs, 40)
    copy = copy_of(world, log)
    first = await copy.catch_up()
    assert first == log.size_bytes == copy.copied_bytes
    append(logs, log, 1)
    second = await copy.catch_up(at_once=True)
    assert 0 < second < first
    assert await copy.catch_up() == 0
    part = whole(copy)
    assert len(part.objects) == 5
    assert max(written.size_bytes for written in part.objects) < 13_000
    assert await stored(world, part) == list(range(0, 82, 2))
    assert (part.log_start_offset, part.high_watermark) == (0, 82)


async def test_a_copy_that_the_log_start_overtakes_restarts(logs: LogStore) -> None:
    world, log = World(), log_of(logs, 10)
    copy = copy_of(world, log)
    await copy.catch_up()
    append(logs, log, 10)
    log.delete_records(31)
    await copy.catch_up()
    part = whole(copy)
    assert (part.log_start_offset, part.high_watermark) == (31, 40)
    assert await stored(world, part) == [30, 32, 34, 36, 38]
    assert len(part.objects) == 1
    log.delete_records(-1)
    append(logs, log, 1)
    log.delete_records(-1)
    await copy.catch_up()
    assert (whole(copy).extents, whole(copy).log_start_offset) == ((), 42)


async def test_log_start_that_moves_while_an_object_is_made(
    logs: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "CHUNK_BYTES", 3_000)
    world, log = World(), log_of(logs, 10)
    waited: list[float] = []

    async def overtake(seconds: float) -> None:
        if not waited:
            log.delete_records(16)
        waited.append(seconds)

    copy = copy_of(world, log, switch_bytes_per_second=1)
    monkeypatch.setattr(copy, "_pause", overtake)
    await copy.catch_up()
    part = whole(copy)
    assert await stored(world, part) == [16, 18]
    assert part.log_start_offset == 16
    assert min(waited) > 0


async def test_holes_of_a_compacted_log_become_batches_without_records(logs: LogStore) -> None:
    world, log = World(), log_of(logs, 1)
    far = 2**32
    for offset in (4, 8, far):
        log.replica.append(stamped(2, offset, 0), now_ms=1)
    logs.commit_pending()
    log.replica.truncate(far, floor=0)
    logs.commit_pending()
    assert log.durable_offset == log.log_end_offset == far
    copy = copy_of(world, log)
    await copy.catch_up()
    part = whole(copy)
    step = 2**31 - 1
    assert await stored(world, part) == [0, 2, 4, 6, 8, 10, 10 + step]
    assert (part.high_watermark, part.extents[-1].next_offset) == (far, far)


async def test_transactions_go_along(logs: LogStore) -> None:
    """Transactions are aborted, committed and open; another producer's marker raises its epoch."""
    world, log = World(), log_of(logs, 3)
    for producer_id in (4, 5, 6):
        sent = batch(producer_id=producer_id, epoch=0, sequence=0, attributes=TRANSACTIONAL_FLAG)
        log.append(sent, now_ms=1_000, guard=UNGUARDED)
    for producer_id, commit in ((4, False), (5, True), (7, True)):
        log.transactions.append_marker(Marker(producer_id, 1, 9, commit, 2), now_ms=1_000)
    logs.commit_pending()
    copy = copy_of(world, log)
    await copy.catch_up()
    [part] = copy.partitions()
    assert part.high_watermark == log.log_end_offset == 12
    assert part.aborted == (AbortedTransaction(4, 6, 9, 7),)
    assert {key: producer.txn_first_offset for key, producer in part.producers.items()} == {
        4: -1, 5: -1, 6: 8, 7: -1
    }  # fmt: skip
    assert (part.producers[7].epoch, part.producers[7].coordinator_epoch) == (1, 9)


async def test_leases_are_renewed_while_the_copy_lasts(logs: LogStore) -> None:
    world, log = World(), log_of(logs, 2)
    copy = copy_of(world, log)
    await copy.catch_up()
    grace_ms = DisklessSettings().sweep_pending_grace_ms
    for _ in range(3):
        world.clock.ms += grace_ms // 2
        append(logs, log, 1)
        await copy.catch_up()
        swept = await world.plane.mark_for_deletion(
            pending_grace_ms=grace_ms, unreferenced_grace_ms=grace_ms, limit=99
        )
        assert swept == []
    assert await stored(world, whole(copy)) == [0, 2, 4, 6, 8]


async def test_fenced_log_takes_nothing_and_is_read(logs: LogStore) -> None:
    log = log_of(logs, 3)
    log.state.fence = MigrationRefused("not now")
    with pytest.raises(MigrationRefused, match="not now"):
        append(logs, log, 1)
    with pytest.raises(MigrationRefused, match="not now"):
        log.delete_records(2)
    assert log.read(0, max_bytes=1 << 20, end_offset=6).next_offset == 6
    log.state.fence = None
    append(logs, log, 1)
    assert log.delete_records(2) == 2


async def test_retention_waits_for_the_fence(logs: LogStore) -> None:
    log = log_of(logs, 60)
    now_ms = FakeClock().now_ms()
    log.state.fence = MigrationRefused("not now")
    for n in range(1, 5):
        logs.housekeeping(now_ms + n * 10)
    assert log.log_start_offset == 0
    log.state.fence = None
    for n in range(5, 9):
        logs.housekeeping(now_ms + n * 10)
    assert log.log_start_offset > 0
