"""Contract of partitions, run over every kind on a broker that has both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from penstock.base.errors import PenstockError
from penstock.base.system import SYSTEM_CLOCK
from penstock.partitions import Partition, look_up_watermarks
from penstock.records import (
    Codec,
    CorruptBatch,
    OffsetOutOfRange,
    OutOfOrderSequence,
    split_batches,
)
from penstock.records.appends import AppendResult, Outcome
from penstock.records.extents import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from penstock.records.header import TRANSACTIONAL_FLAG
from penstock.records.idempotence import ProducerState
from penstock.records.transactions import AbortedTransaction, Marker
from penstock.storage.files.values import Later, OffsetAndTimestamp
from tests.broker.diskless.conftest import Cluster
from tests.storage.batches import batch
from tests.storage.test_times import encoded

SECONDS = 60.0


@pytest.fixture(params=["local", "diskless"])
async def partition(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Partition]:
    cluster = Cluster(tmp_path)
    try:
        broker = await cluster.start()
        client = await cluster.connect(broker)
        diskless = "true" if request.param == "diskless" else "false"
        topic = {
            "name": "t",
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [
                {"name": "diskless.enable", "value": diskless},
                {"name": "min.insync.replicas", "value": "2"},  # the only replica is enough
            ],
        }
        await client.call("CreateTopics", 7, {"topics": [topic], "timeout": 5000})
        yield broker.partitions.partition("t", 0)
    finally:
        await cluster.stop()


async def append(partition: Partition, data: memoryview, *, acks: int = -1) -> AppendResult:
    """Append and wait; `done` must not be called before `append` has returned."""
    outcomes: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    now_ms = SYSTEM_CLOCK.now_ms()
    # `set_result` fails the second time: `done` is called once.
    partition.append(data, now_ms=now_ms, acks=acks, lease=None, done=outcomes.set_result)
    assert not outcomes.done()
    outcome = await asyncio.wait_for(outcomes, SECONDS)
    if isinstance(outcome, PenstockError):
        raise outcome
    return outcome


async def read(partition: Partition, offset: int, *, max_bytes: int = 1 << 20) -> bytes:
    """Read everything from an offset, loading it where necessary."""
    async with asyncio.timeout(SECONDS):
        while True:
            found = partition.read(
                offset,
                max_bytes=max_bytes,
                end_offset=partition.high_watermark,
                at_least_one=True,
            )
            if not isinstance(found, Later):
                return b"".join(found.buffers)
            found.load([found.want], max_bytes)
            await asyncio.sleep(0)


async def test_an_append_is_done_when_consumers_can_have_it(partition: Partition) -> None:
    assert (partition.log_start_offset, partition.high_watermark) == (0, 0)
    assert await append(partition, batch(3)) == AppendResult(0, -1, 0)
    assert partition.high_watermark == partition.last_stable_offset == 3
    assert await append(partition, batch(2), acks=1) == AppendResult(3, -1, 0)
    assert partition.log_end_offset == partition.high_watermark == 5
    headers = split_batches(await read(partition, 0))
    assert [(header.base_offset, header.next_offset) for header in headers] == [(0, 3), (3, 5)]
    assert partition.size_bytes == sum(header.size_bytes for header in headers)


async def test_a_read_gives_whole_batches_from_the_one_that_holds_the_offset(
    partition: Partition,
) -> None:
    for _ in range(3):
        await append(partition, batch(2))
    assert split_batches(await read(partition, 3, max_bytes=1))[0].base_offset == 2
    assert await read(partition, 6) == b""
    with pytest.raises(OffsetOutOfRange, match=r"offset 7 is not within \[0, 6\]"):
        await read(partition, 7)


async def test_rejected_appends_change_nothing(partition: Partition) -> None:
    broken = batch()
    broken[70] ^= 1
    with pytest.raises(CorruptBatch):
        await append(partition, broken)
    assert partition.high_watermark == 0
    assert (await append(partition, batch())).base_offset == 0


async def test_a_producer_is_remembered(partition: Partition) -> None:
    sent = {"producer_id": 9, "epoch": 0}
    first = bytes(batch(2, sequence=0, **sent))
    await append(partition, memoryview(bytearray(first)))
    await append(partition, batch(1, sequence=2, **sent))
    again = await append(partition, memoryview(bytearray(first)))
    assert (again.base_offset, again.duplicate) == (0, True)
    (known,) = await partition.producers()
    assert known == ProducerState(9, 0, 2, known.last_timestamp, 2)
    try:
        skipped = await append(partition, batch(1, sequence=7, **sent))
    except OutOfOrderSequence:
        pass  # a log knows at once
    else:
        assert skipped.error == OutOfOrderSequence.code
    assert partition.high_watermark == 3


async def test_records_are_deleted_up_to_an_offset(partition: Partition) -> None:
    for _ in range(3):
        await append(partition, batch(2))
    assert await partition.delete_records(3) == partition.log_start_offset == 3
    with pytest.raises(OffsetOutOfRange, match=r"offset 2 is not within \[3, 6\]"):
        await read(partition, 2)
    with pytest.raises(PenstockError) as refused:
        await partition.delete_records(7)
    assert refused.value.code == OffsetOutOfRange.code
    assert await partition.delete_records(-1) == 6
    assert await read(partition, 6) == b""


async def test_the_epoch_ends_where_the_log_does(partition: Partition) -> None:
    await append(partition, batch(4))
    epoch = partition.leader_epoch
    assert partition.end_offset_for_epoch(epoch) == (epoch, 4)
    assert partition.end_offset_for_epoch(-1) == (-1, -1)


async def position(partition: Partition, spec: int) -> OffsetAndTimestamp | None:
    found = partition.position(spec, committed=True)
    return await found if isinstance(found, Awaitable) else found


async def test_positions_are_found_by_time(partition: Partition) -> None:
    epoch = partition.leader_epoch
    assert await position(partition, MAX_TIMESTAMP) is None
    assert await position(partition, 0) is None
    then = SYSTEM_CLOCK.now_ms() - 5000
    for times in ([then, then + 100], [then + 900, then + 800], [then + 400, then + 500]):
        await append(partition, encoded(times, Codec.NONE))
    assert await position(partition, LATEST) == (6, -1, epoch)
    for spec in (EARLIEST, EARLIEST_LOCAL):
        assert await position(partition, spec) == (0, -1, epoch)
    for spec in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        assert await position(partition, spec) is None
    assert await position(partition, MAX_TIMESTAMP) == (2, then + 900, epoch)
    assert await position(partition, 0) == (0, then, epoch)
    assert await position(partition, then + 200) == (2, then + 900, epoch)
    assert await position(partition, then + 901) is None
    await partition.delete_records(3)
    assert await position(partition, EARLIEST) == (3, -1, epoch)
    assert await position(partition, 0) == (3, then + 800, epoch)
    assert await position(partition, MAX_TIMESTAMP) == (3, then + 800, epoch)


async def test_a_look_up_loses_nothing(partition: Partition) -> None:
    await append(partition, batch(2))
    await look_up_watermarks([None, partition, partition])
    assert (partition.log_start_offset, partition.high_watermark) == (0, 2)


async def test_extents_name_the_bytes_of_a_range(partition: Partition) -> None:
    for _ in range(3):
        await append(partition, batch(2))
    assert not await partition.extents(2, 2, limit=10)
    extents = await partition.extents(3, 5, limit=10)
    assert extents[0].base_offset == 2
    assert extents[-1].next_offset == 6
    assert {extent.kind == "file" for extent in extents} == {not partition.store_url}
    size_bytes = sum(extent.size_bytes for extent in extents)
    assert size_bytes == len(await read(partition, 3))
    assert {partition.epoch_at(extent.base_offset) for extent in extents} == {0}


async def test_a_transaction_is_taken_and_ended(partition: Partition) -> None:
    sent = batch(producer_id=9, epoch=0, sequence=0, attributes=TRANSACTIONAL_FLAG)
    marker = Marker(9, 0, 0, commit=False)
    outcomes: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    now_ms, done = SYSTEM_CLOCK.now_ms(), outcomes.set_result
    guard = partition.begin_verification(9, 0, 0, now_ms=now_ms)
    assert guard is not None
    partition.append(sent, now_ms=now_ms, acks=-1, lease=None, done=done, guard=guard)
    assert await asyncio.wait_for(outcomes, SECONDS) == AppendResult(0, -1, 0)
    assert (partition.high_watermark, partition.last_stable_offset) == (1, 0)
    goes_on = partition.begin_verification(9, 0, 1, now_ms=now_ms)
    assert (goes_on is None) != partition.everywhere, "others may have ended it"
    decided: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    partition.write_marker(marker, now_ms=now_ms, done=decided.set_result)
    assert await asyncio.wait_for(decided, SECONDS) == AppendResult(1, -1, 0)
    assert partition.last_stable_offset == 2
    aborted = [AbortedTransaction(9, 0, 1, 2)]
    assert await partition.all_aborted(0, 2) == aborted
    async with asyncio.timeout(SECONDS):
        while isinstance(found := partition.aborted(0, 2), Later):
            found.load([found.want], 1)
            await asyncio.sleep(0.001)
    assert found == aborted
    assert not partition.aborted(2, 2)
