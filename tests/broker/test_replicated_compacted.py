"""Replicas of compacted logs: each was compacted another way, one is gone, and they agree."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from penstock.base.ids import TopicPartition
from penstock.records import BatchHeader, split_batches
from tests.broker.test_replicated import Cluster, has, until
from tests.storage.compacted import compact

pytestmark = pytest.mark.timeout(300)
WHERE = TopicPartition("t", 0)


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
        chains = [dict(copy.log.epochs.entries) for copy in copies]
        for one in chains:
            assert all(one[epoch] == start for epoch, start in chains[0].items() if epoch in one)
