"""Segments on their way to the archive: by real logs and stores, with crashes at every step."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.base.crc import crc32c
from penstock.control import MemoryControlPlane
from penstock.control.values.tiers import TierSegment
from penstock.objects import DirectoryStore, MemoryStore, ObjectStore, StoreUnavailable, open_store
from penstock.objects.port import Buffer
from penstock.partitions import GroupCommits, LocalPartition
from penstock.partitions.tiering import Copier
from penstock.partitions.tiers.part import TieredPart
from penstock.partitions.tiers.settings import TierCounters, TierSettings
from penstock.records import split_batches
from penstock.storage import LogConfig
from tests.diskless.faults import Crash, CrashingPlane, Steps
from tests.s3 import S3Server
from tests.storage.batches import TOPIC_ID, Harness, batch, read_all

KEY = (TOPIC_ID, 0)
CONFIG = LogConfig(
    segment_bytes=1000,
    index_interval_bytes=100,
    retention_ms=-1,
    remote_storage_enable=True,
    local_retention_bytes=1500,
)


class World:
    """Durable parts: a log's directory, a plane and a store; and a broker over them, which can
    be restarted."""

    def __init__(self, root: Path, store: ObjectStore) -> None:
        self.harness = Harness(root / "log", config=CONFIG)
        self.plane = MemoryControlPlane(clock=self.harness.clock)
        self.store = store
        self.counters = TierCounters()

    async def begin(self, appends: int = 40) -> bytes:
        """Make the topic and its records; what the log has."""
        await self.plane.create_topic(
            name="orders",
            topic_id=TOPIC_ID,
            partitions=[[1]],
            configs={"remote.storage.enable": "true"},
        )
        for number in range(appends):
            self.harness.put(batch(3, size=90, fill=number, timestamp=1000 + number))
        return read_all(self.harness.log(), max_bytes=1 << 20)

    def open(self) -> tuple[LocalPartition, TieredPart]:
        log = self.harness.log()
        partition = LocalPartition(log, GroupCommits(self.harness.store))
        shared: Any = None  # nothing is read here
        part = partition.tiers = TieredPart(shared, log, TOPIC_ID, partition.log_moved)
        return partition, part

    async def copy(self, *, plane: Any = None, store: Any = None) -> TieredPart:
        """Run one turn of a broker that has just started."""

        async def opened() -> Any:
            return store or self.store

        copier = Copier(
            TierSettings(manager_task_interval_ms=10),
            plane=plane or self.plane,
            store=opened,
            clock=self.harness.clock,
            counters=self.counters,
        )
        partition, part = self.open()
        await copier.work(partition, part)
        return part

    async def tiers(self) -> list[TierSegment]:
        return await self.plane.tier_segments(KEY, 0)

    async def sweep(self) -> None:
        """Delete what is condemned: all that is pending, or refers to nothing."""
        marked = await self.plane.mark_for_deletion(
            pending_grace_ms=0, unreferenced_grace_ms=0, limit=999
        )
        await self.store.delete([item.key for item in marked])
        await self.plane.forget_objects([item.object_id for item in marked])

    async def check(self, whole: bytes) -> bytes:
        """Tiers adjoin and have the log's bytes, whatever they refer to is there; those bytes."""
        data = b""
        following = 0
        keys = set()
        for tier in await self.tiers():
            assert tier.base_offset == following
            following = tier.next_offset
            content = bytes(await self.store.get(tier.key, 0, tier.size_bytes))
            assert crc32c(content) == tier.checksum
            data += content
            for suffix, size in zip(
                (".log", ".index", ".timeindex", ".txnindex"), tier[6:10], strict=True
            ):
                if size:
                    keys.add(tier.stem + suffix)
                    assert (await self.store.head(tier.stem + suffix)).size_bytes == size
        assert whole.startswith(data)
        headers = split_batches(data) if data else []
        assert (headers[-1].next_offset if headers else 0) == following
        await self.sweep()
        assert {info.key async for info in self.store.list("archive/")} == keys
        return data


@pytest.fixture(params=["memory", "directory", "s3"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    store: ObjectStore
    if request.param == "memory":
        store = MemoryStore()
    elif request.param == "directory":
        store = DirectoryStore(tmp_path / "objects")
    else:
        server: S3Server = request.getfixturevalue("s3")
        store = open_store(server.fresh_url(), options=server.options())
    made = World(tmp_path, store)
    yield made
    await store.close()
    made.harness.store.close()


@pytest.fixture
def memory(tmp_path: Path) -> World:
    return World(tmp_path, MemoryStore())


async def test_closed_segments_are_copied_as_they_are(world: World) -> None:
    whole = await world.begin()
    part = await world.copy()
    assert part.core.error == ""
    data = await world.check(whole)
    closed = world.harness.log().tiering.closed_segments(0)
    assert [(tier.base_offset, tier.next_offset) for tier in await world.tiers()] == [
        segment[1:3] for segment in closed
    ]
    assert len(data) == sum(segment.size_bytes for segment in closed)
    assert (part.tiered_end, part.core.lag_segments) == (closed[-1].next_offset, 0)
    assert world.counters.copied_bytes == len(data)
    again = await world.copy()
    assert again.core.bounds == part.core.bounds
    assert world.counters.copied_segments == len(closed)


@pytest.mark.parametrize("effect", [False, True], ids=["before", "after"])
async def test_a_crash_at_any_call_leaves_no_gap_and_no_duplicate(
    tmp_path: Path, effect: bool
) -> None:
    doomed = 0
    while True:
        doomed += 1
        steps = Steps(doomed, effect=effect)
        world = World(tmp_path / str(doomed), MemoryStore())
        whole = await world.begin(20)
        crashing = CrashingPlane(world.plane, steps), CrashingPlane(world.store, steps)
        try:
            await world.copy(plane=crashing[0], store=crashing[1])
        except Crash:
            world.harness.crash()
        over = steps.over
        await world.check(whole)
        part = await world.copy()
        assert part.core.error == ""
        data = await world.check(whole)
        assert len(data) == sum(
            closed_segment.size_bytes
            for closed_segment in world.harness.log().tiering.closed_segments(0)
        )
        world.harness.store.close()
        if not over:
            break
    assert doomed > 20


class BadStore(MemoryStore):
    """Says that it has written everything, and has not."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    async def upload(self, key: str, pieces: AsyncIterator[Buffer]) -> int:
        content = b"".join([bytes(piece) async for piece in pieces])
        if self.fault == "truncates":
            await self.put(key, [content[:-10]])
        elif self.fault == "damages":
            await self.put(key, [content[:-10], bytes(10)])
        else:
            raise StoreUnavailable("away")
        return len(content)


@pytest.mark.parametrize("fault", ["truncates", "damages", "refuses"])
async def test_missing_objects_are_never_committed(tmp_path: Path, fault: str) -> None:
    world = World(tmp_path, BadStore(fault))
    await world.begin()
    part = await world.copy()
    assert part.core.error
    assert await world.tiers() == []
    assert world.counters.copy_errors == 1
    assert part.log.state.tiered_offset == 0
    await world.sweep()
    assert [info async for info in world.store.list("archive/")] == []


async def test_damage_is_not_archived(memory: World) -> None:
    await memory.begin()
    memory.harness.reopen()
    segment = memory.harness.log().tiering.closed_segments(0)[1]
    with Path(segment.path).open("r+b") as file:
        file.seek(230)
        file.write(b"\xff")
    part = await memory.copy()
    assert Path(segment.path).name in part.core.error
    assert [tier.base_offset for tier in await memory.tiers()] == [0]
    assert part.tiered_end == segment.base_offset


async def test_a_new_leader_continues_within_its_own_segments(tmp_path: Path) -> None:
    world = World(tmp_path, MemoryStore())
    whole = await world.begin(20)
    await world.copy()
    first = await world.tiers()
    other = World(tmp_path / "other", world.store)
    other.plane = world.plane
    other.harness.config = LogConfig(segment_bytes=1700, index_interval_bytes=100, retention_ms=-1,
                                     remote_storage_enable=True)  # fmt: skip
    for number in range(60):
        other.harness.put(batch(3, size=90, fill=number, timestamp=1000 + number))
    longer = read_all(other.harness.log(), max_bytes=1 << 20)
    assert longer.startswith(whole)
    part = await other.copy()
    assert part.core.error == ""
    tiers = await other.tiers()
    assert tiers[: len(first)] == first
    assert len(tiers) > len(first)
    ends = {
        closed_segment.next_offset
        for closed_segment in other.harness.log().tiering.closed_segments(0)
    }
    assert first[-1].next_offset not in ends
    await other.check(longer)
    for item in (world, other):
        item.harness.store.close()


async def test_local_files_go_when_they_are_archived_and_not_before(memory: World) -> None:
    await memory.begin()
    harness = memory.harness
    harness.reopen()

    def upkeep() -> list[str]:
        for _ in range(5):
            harness.clock.ms += 400_000
            harness.store.housekeeping(harness.clock.ms)
        return sorted(n for n in os.listdir(harness.log().state.directory) if n.endswith(".log"))

    before = upkeep()
    assert len(before) > 3
    assert harness.log().log_start_offset == 0
    part = await memory.copy()
    after = upkeep()
    assert before[-2:] == after[-2:]
    assert len(after) < len(before)
    assert 0 < harness.log().log_start_offset <= part.tiered_end
    harness.reopen()
    assert harness.log().log_start_offset > 0


async def test_retention_of_the_whole_log_goes_over_the_archive(memory: World) -> None:
    whole = await memory.begin()
    await memory.copy()
    segments = await memory.tiers()
    memory.harness.config = LogConfig(
        segment_bytes=1000, index_interval_bytes=100, retention_ms=-1,
        retention_bytes=len(whole) // 2, remote_storage_enable=True,
    )  # fmt: skip
    part = await memory.copy()
    left = await memory.tiers()
    assert 0 < len(left) < len(segments)
    assert part.start_offset == left[0].base_offset
    assert part.log.log_start_offset == left[0].base_offset
    await memory.sweep()
    there = {info.key async for info in memory.store.list("archive/")}
    assert not any(key.startswith(segments[0].stem) for key in there)
    assert left[0].key in there
