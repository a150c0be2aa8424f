"""A plane, a store, a writer and what clears away, for tests of how they go together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any
from uuid import UUID

from penstock.archive.wal import decode_footer, decode_header
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Randomness
from penstock.control.values.diskless import CommitAnswer, Watermarks
from penstock.diskless.gc import Collection, RetentionTarget
from penstock.diskless.identity import StoreGuard
from penstock.diskless.settings import DisklessSettings
from penstock.diskless.writing import ObjectWriter
from penstock.objects import MemoryStore, ObjectStore
from penstock.objects.port import Buffer
from penstock.records.extents import Extent
from tests.diskless.faults import FaultyPlane, FaultyStore
from tests.diskless.submissions import TOPIC, Sent
from tests.storage.batches import FakeClock

BROKER = 1
PARTITIONS = 4
QUICK: dict[str, Any] = {
    "commit_interval_ms": 1,
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 2,
    "put_timeout_ms": 30_000,
    "drain_timeout_ms": 30_000,
}


class SeededRandomness:
    """Dice that fall the same in every run."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)

    def bits(self, count: int) -> int:
        return self._random.getrandbits(count)

    def uniform(self) -> float:
        return self._random.random()


def guard_of(
    plane: Any,
    store: ObjectStore,
    *,
    cluster_id: str = "here",
    place: str = "",
    randomness: Randomness = SYSTEM_RANDOMNESS,
) -> StoreGuard:
    """Return the guard of a store."""
    return StoreGuard(
        plane=plane, store=store, cluster_id=cluster_id, randomness=randomness, place=place
    )


class World:
    """A durable control plane and store; `writer` and `collection` are recreated after a crash.

    The clock of plane and store stands still until a test moves it; the writer's runs.
    """

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        self.settings = DisklessSettings(**{**QUICK, **settings})
        self.randomness = SeededRandomness(seed)
        self.clock = FakeClock()
        self.plane = FaultyPlane(clock=self.clock, randomness=self.randomness)
        self.memory = MemoryStore(clock=self.clock)
        self.store = FaultyStore(self.memory)
        self.answers: list[CommitAnswer] = []
        self.kept: dict[str, bytes] = {}
        self.targets = [RetentionTarget(TOPIC, index, -1, -1) for index in range(PARTITIONS)]
        self.moved: list[tuple[int, Watermarks]] = []

    async def begin(self) -> None:
        """Register the broker, create the topic."""
        self.incarnation = self.randomness.uuid()
        await self.plane.register_broker(
            broker_id=BROKER, host="h", port=1, rack=None, incarnation=self.incarnation
        )
        await self.plane.create_topic(
            name="orders",
            topic_id=TOPIC,
            partitions=[[BROKER]] * PARTITIONS,
            configs={"diskless.enable": "true"},
        )

    def writer(self, *, plane: Any = None, store: Any = None) -> ObjectWriter:
        writer = ObjectWriter(
            self.settings,
            plane=plane or self.plane,
            store=store or self.store,
            broker_id=BROKER,
            incarnation=self.incarnation,
            clock=SYSTEM_CLOCK,
            randomness=self.randomness,
            on_commit=self.answers.append,
            keep=self._keep,
        )
        writer.attach(asyncio.get_running_loop())
        return writer

    def collection(self, *, plane: Any = None, store: Any = None) -> Collection:
        plane = plane or self.plane
        store = self.store if store is None else store  # an empty one is false
        return Collection(
            self.settings,
            plane=plane,
            store=store,
            guard=guard_of(plane, store, randomness=self.randomness),
            clock=self.clock,
            targets=lambda: self.targets,
            on_watermarks=lambda key, watermarks: self.moved.append((key[1], watermarks)),
        )

    def _keep(self, key: str, pieces: Sequence[Buffer]) -> None:
        self.kept[key] = b"".join(pieces)

    # What is there

    async def extents(self, partition: int) -> list[Extent]:
        (watermarks,) = await self.plane.watermarks([(TOPIC, partition)])
        return await self.plane.extents(
            TOPIC, partition, start=watermarks.log_start_offset, end=2**62, limit=100_000
        )

    async def log(self, partition: int) -> bytes:
        """The bytes of a partition, as producers sent them; every offset is there once."""
        (watermarks,) = await self.plane.watermarks([(TOPIC, partition)])
        parts: list[bytes] = []
        offset = watermarks.log_start_offset
        for extent in await self.extents(partition):
            assert extent.base_offset == offset
            offset = extent.next_offset
            content = await self.memory.get(extent.key, extent.byte_offset, extent.size_bytes)
            parts.append(bytes(content))
        assert offset == watermarks.high_watermark
        return b"".join(parts)

    async def keys(self) -> set[str]:
        return {info.key async for info in self.memory.list("wal/")}

    async def rows(self) -> dict[str, str]:
        """State by key."""
        rows = await self.plane.referenced_keys(after="", limit=1_000_000)
        return {lease.key: state for state, lease in rows}

    async def check_objects(self) -> None:
        """Every committed object is there, whole, and says what its row says."""
        for state, lease in await self.plane.referenced_keys(after="", limit=1_000_000):
            if state != "committed":
                continue
            info = await self.memory.head(lease.key)
            data = await self.memory.get(lease.key, 0, info.size_bytes)
            assert decode_footer(data).size_bytes == info.size_bytes
            assert decode_header(data).object_id == lease.object_id


async def answered(sent: Sequence[Sent], seconds: float = 60.0) -> None:
    """Wait until all have been answered."""
    async with asyncio.timeout(seconds):
        while not all(submitted.outcomes for submitted in sent):
            await asyncio.sleep(0.001)
