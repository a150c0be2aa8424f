"""Records sent to a compacted partition, and checks of the remaining ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any, NamedTuple

from penstock.diskless.compaction import CompactionTarget, Compactor
from penstock.diskless.settings import DisklessSettings
from penstock.diskless.topics.verification import Verifier
from penstock.records import split_batches
from tests.diskless.consolidation.bed import KEY, TOPIC, Bed, Sent
from tests.diskless.world import SeededRandomness
from tests.records.reference import Batch, Record, encode, read
from tests.storage.batches import FakeClock

DELETE_RETENTION_MS = 10_000
TARGET = CompactionTarget(
    *KEY, min_lag_ms=0, max_lag_ms=2**63 - 1, dirty_ratio=0.0,
    delete_retention_ms=DELETE_RETENTION_MS,
)  # fmt: skip


async def _at_once(seconds: float) -> None:
    await asyncio.sleep(0)


def compactor(
    bed: Bed,
    clock: Any,
    *,
    plane: Any = None,
    store: Any = None,
    seed: int = 0,
    targets: Iterable[CompactionTarget] = (TARGET,),
    **changes: Any,
) -> Compactor:
    settings = DisklessSettings(
        **{
            "consolidation_min_age_ms": 0,
            "consolidation_bytes_per_second": 0,
            "sweep_unreferenced_grace_ms": 0,
            **changes,
        }
    )
    return Compactor(
        settings,
        plane=plane or bed.plane,
        store=store or bed.store,
        clock=clock,
        randomness=SeededRandomness(seed),
        targets=lambda: targets,
        pause=_at_once,
    )


class Put(NamedTuple):
    """A record as it was sent, and when."""

    key: bytes
    value: bytes | None
    timestamp: int


class Ledger:
    """Every record by its offset."""

    def __init__(self, bed: Bed, clock: FakeClock) -> None:
        self.bed = bed
        self.clock = clock
        self.sent: list[Put] = []

    async def send(self, *puts: tuple[bytes, bytes | None], codec: int = 0) -> None:
        now_ms = self.clock.ms
        rows = [Put(key, value, now_ms - 1) for key, value in puts]
        records = tuple(
            Record(place, row.timestamp, row.key, row.value) for place, row in enumerate(rows)
        )
        sent = Sent(encode(Batch(0, records, codec=codec)))
        [placed] = await self.bed.write(sent, now_ms=now_ms)
        assert (placed.error, placed.base_offset) == (None, len(self.sent))
        self.sent += rows

    async def send_some(self, random: Random, *, keys: int, batches: int) -> None:
        for _ in range(batches):
            puts = [
                (
                    b"k%d" % random.randrange(keys),
                    None if random.random() < 0.2 else random.randbytes(random.randint(0, 40)),
                )
                for _ in range(random.randint(1, 6))
            ]
            await self.send(*puts, codec=random.randrange(5))

    def newest(self, end: int | None = None) -> dict[bytes, int]:
        return {put.key: offset for offset, put in enumerate(self.sent[:end])}

    async def left(self) -> dict[int, Record]:
        """Return the consumed records by offset, after checking that no offset is missing."""
        data = await self.bed.consumed()
        due = 0
        for header in split_batches(data):
            assert header.base_offset == due
            due = header.next_offset
        assert due == len(self.sent)
        return {record.offset: record for record in read(data)}

    async def check(self) -> dict[int, Record]:
        """Check that remaining records are unchanged, and that only superseded ones are missing."""
        left = await self.left()
        self.judge(left, len(self.sent))
        clean = await self.bed.plane.clean_offset(*KEY)
        keys = [self.sent[offset].key for offset in left if offset < clean]
        assert len(keys) == len(set(keys)), "a key has two records below the clean offset"
        return left

    async def verified(self) -> dict[int, Record]:
        """Run `check`, and compare index and objects."""
        verifier = Verifier(plane=self.bed.plane, store=self.bed.store, checksums=True)
        await verifier.verify([("orders-0", (TOPIC, 0))])
        assert verifier.findings == []
        return await self.check()

    def judge(self, left: Mapping[int, Record], end: int) -> None:
        """Check the records that a reader of extents up to an old end sees."""
        for offset, record in left.items():
            assert Put(record.key or b"", record.value, record.timestamp) == self.sent[offset]
        there = {record.key for record in left.values()}
        for key, offset in self.newest(end).items():
            if offset in left:
                continue
            sent = self.sent[offset]
            assert sent.value is None, f"{key!r} has lost its newest record, at {offset}"
            assert sent.timestamp + DELETE_RETENTION_MS < self.clock.ms, f"{key!r}: too early"
            assert key not in there, f"{key!r} was deleted, and is back"
