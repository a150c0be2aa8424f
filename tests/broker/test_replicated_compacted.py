"""Replicas of compacted logs agree although each was compacted differently and one is lost."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from penstock.base.ids import TopicPartition
from penstock.records import BatchHeader, split_batches
from penstock.storage import StorageSettings
from tests.broker.test_replicated import Cluster, has, until
from tests.records.reference import Batch, Record, encode, read
from tests.storage.compacted import compact

pytestmark = pytest.mark.timeout(300)
WHERE = TopicPartition("t", 0)
SENT_MS = 1_700_000_000_000


def held(data: bytes) -> dict[int, bytes]:
    """The batches with records, by their base offsets."""
    found, at = {}, 0
    for header in split_batches(data):
        if not header.is_filler:
            found[header.base_offset] = data[at + 21 : at + header.size_bytes]
        at += header.size_bytes
    return found


async def write(cluster: Cluster, count: int) -> int:
    """So many records, one a batch; the end of the log once all of the brokers that run have it."""
    for number in range(count):
        end = await cluster.produce(b"%d" % number) + 1
    for node_id in cluster.brokers:
        await until(partial(has, cluster.log(node_id), end))
    return end


async def test_copies_that_were_compacted_another_way_agree(
    tmp_path: Path, postgres_url: str
) -> None:
    cluster = Cluster(tmp_path, postgres_url)
    ends = []
    async with cluster.running(1, 2, 3):
        await cluster.create()
        for _ in range(3):  # epochs, of which one loses all of its records
            ends.append(await write(cluster, 8))
            leader = cluster.leader()
            await cluster.stop(leader)
            await cluster.led()
            await cluster.start(leader)
            await cluster.whole("t")
        before = held(await cluster.values(await cluster.led()))
    end = ends[-1]
    assert len(before) == end == 24

    def keep(step: int, header: BatchHeader, batch: bytes) -> bytes | None:
        at = header.base_offset
        stays = at == end - 1 or (at % step == 0 and not ends[0] <= at < ends[1])
        return batch if stays else None

    for node_id, step in ((1, 2), (2, 6)):
        compact(tmp_path / str(node_id), WHERE, partial(keep, step))
    shutil.rmtree(tmp_path / "3")

    needed = {offset for offset in before if offset % 6 == 0 and not ends[0] <= offset < ends[1]}
    async with cluster.running(1, 2, 3):
        await cluster.led()
        await cluster.whole("t")
        assert await write(cluster, 3) == end + 3
        for node_id in (1, 2, 3):
            left = held(await cluster.values(node_id))
            assert needed | set(range(end - 1, end + 3)) <= left.keys()
            assert all(left[offset] == before[offset] for offset in left if offset < end)
            row = await cluster.clients[node_id].fetch("t", ends[0] + 1)
            assert cluster.leader() != node_id or split_batches(row.records)[0].base_offset >= 16
        for _ in range(2):  # each of them may lead, after the others' logs
            leader = cluster.leader()
            await cluster.stop(leader)
            await cluster.led()
            end = await write(cluster, 1)
            await cluster.start(leader)
            await cluster.whole("t")
        copies = [cluster.log(node_id) for node_id in (1, 2, 3)]
        for copy in copies:
            await until(partial(has, copy, end))
        assert {copy.log.log_end_offset for copy in copies} == {end}
        chains = [dict(copy.log.state.epochs.entries) for copy in copies]
        for chain in chains:
            assert all(
                chain[epoch] == start for epoch, start in chains[0].items() if epoch in chain
            )


KEYS = 4
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "segment.bytes": "1048576",
}


async def test_a_wiped_copy_of_a_compacted_topic_gets_the_newest_of_every_key(
    tmp_path: Path, postgres_url: str
) -> None:
    cluster = Cluster(tmp_path, postgres_url)
    cluster.storage = StorageSettings(
        log_cleaner_backoff_ms=10,
        log_checkpoint_interval_ms=100,
        log_retention_check_interval_ms=20,
    )
    newest: dict[bytes | None, tuple[int, bytes | None]] = {}

    async def put(count: int) -> int:
        for number in range(count):
            key, value = b"k%d" % (number % KEYS), b"%d" % number + bytes(150_000)
            offset = await cluster.send(encode(Batch(0, (Record(0, SENT_MS, key, value),))))
            newest[key] = offset, value
        for node_id in cluster.brokers:
            await until(partial(has, cluster.log(node_id), offset + 1))
        return offset + 1

    def compacted(node_id: int) -> bool:
        return cluster.log(node_id).log.size_bytes < (KEYS + 9) * 150_000

    async def check(node_id: int) -> None:
        there = read(await cluster.values(node_id))
        assert {record.key: (record.offset, record.value) for record in there} == newest

    async with cluster.running(1, 2, 3):
        await cluster.create(more=COMPACTED)
        await put(40)
        for node_id in (1, 2, 3):
            await until(partial(compacted, node_id))
            assert cluster.log(node_id).log.state.has_holes
        gone = next(node_id for node_id in (1, 2, 3) if node_id != cluster.leader())
        await cluster.stop(gone)
        shutil.rmtree(tmp_path / str(gone))
        await cluster.start(gone)
        await cluster.whole("t")
        end = await put(1)
        assert cluster.log(gone).log.size_bytes < (KEYS + 9) * 150_000
        for _ in range(2):
            for node_id in cluster.brokers:
                await check(node_id)
            leader = cluster.leader()
            await cluster.stop(leader)
            await cluster.led()
            assert await put(1) == end + 1
            end += 1
            await cluster.start(leader)
            await cluster.whole("t")
            await until(partial(has, cluster.log(leader), end))
        assert {cluster.log(node_id).copy.trouble for node_id in (1, 2, 3)} == {""}
