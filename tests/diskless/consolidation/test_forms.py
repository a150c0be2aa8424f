"""Consolidation over SQLite and a directory, and over PostgreSQL and S3 by two brokers at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypeVar

from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
from penstock.control import DisklessPlane, SqliteControlPlane
from penstock.control.postgres import PostgresControlPlane
from penstock.diskless.consolidation import Consolidator
from penstock.diskless.gc import Collection
from penstock.diskless.settings import RUN_EXTENTS_MAX, DisklessSettings
from penstock.diskless.topics.verification import Verifier
from penstock.objects import DirectoryStore, ObjectStore, open_store
from tests.diskless.consolidation.bed import START_MS, TOPIC, Bed, Sent, produced
from tests.diskless.consolidation.conftest import furnished
from tests.diskless.world import guard_of
from tests.s3 import S3Server

SETTINGS = DisklessSettings(consolidation_min_extents=2, sweep_unreferenced_grace_ms=0)
PARTITIONS = 3


def job_over(plane: DisklessPlane, store: ObjectStore) -> Consolidator:
    return Consolidator(
        SETTINGS, plane=plane, store=store, clock=SYSTEM_CLOCK, randomness=SYSTEM_RANDOMNESS
    )


async def swept(plane: DisklessPlane, store: ObjectStore) -> int:
    collection = Collection(
        SETTINGS, plane=plane, store=store, guard=guard_of(plane, store),
        clock=SYSTEM_CLOCK, targets=list, on_watermarks=lambda key, watermarks: None,
    )  # fmt: skip
    return await collection.sweeper.sweep()


async def filled(bed: Bed, objects: int, *, first: int = 0) -> list[bytes]:
    for number in range(first, first + objects):
        value = b"%d" % number * 50
        await bed.write(
            Sent(produced(value, value, codec=number % 5), 0),
            Sent(produced(value, producer=(4, 0, number)), 1, append_time=True),
            Sent(produced(value), 2),
            now_ms=START_MS + number,
        )
    return [await bed.consumed(number) for number in range(PARTITIONS)]


async def check(bed: Bed, before: list[bytes]) -> None:
    assert [await bed.consumed(number) for number in range(PARTITIONS)] == before
    verifier = Verifier(plane=bed.plane, store=bed.store, checksums=True)
    await verifier.verify([(f"orders-{n}", (TOPIC, n)) for n in range(PARTITIONS)])
    assert verifier.findings == []
    for number in range(PARTITIONS):
        assert {extent.kind for extent in await bed.extents(number)} == {"segment"}


async def test_sqlite_and_a_directory(tmp_path: Path) -> None:
    plane = await _started(SqliteControlPlane(tmp_path / "control.sqlite"))
    store = DirectoryStore(tmp_path / "objects")
    bed = Bed(await furnished(plane), store)
    before = await filled(bed, 20)
    job = job_over(plane, store)
    assert await job.consolidate() == 3
    await check(bed, before)
    assert await swept(plane, store) == 20
    await check(bed, before)
    files = sorted(path for path in (tmp_path / "objects").rglob("*.log"))
    assert [path.parent.name for path in files] == ["0", "1", "2"]
    assert [path.read_bytes() for path in files] == before
    assert files[0].parent.parent == tmp_path / "objects" / "archive" / str(TOPIC)
    assert files[0].name.startswith(f"{0:020d}-0-")
    await plane.close()
    reopened = await _started(SqliteControlPlane(tmp_path / "control.sqlite"))
    await check(Bed(reopened, store), before)
    await reopened.close()
    await store.close()


async def test_postgres_and_s3_with_two_brokers(postgres_url: str, s3: S3Server) -> None:
    url = s3.fresh_url()
    planes = [await _started(PostgresControlPlane(postgres_url)) for _ in range(2)]
    stores = [open_store(url, options=s3.options()) for _ in range(2)]
    bed = Bed(await furnished(planes[0]), stores[0])
    before = await filled(bed, 20)
    jobs = [job_over(plane, store) for plane, store in zip(planes, stores, strict=True)]
    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(job.consolidate())
    for job in jobs:
        await job.consolidate()
    await check(bed, before)
    counters = [job.counters for job in jobs]
    assert sum(counter.segments for counter in counters) == 3
    assert sum(counter.failures + counter.passes_failed for counter in counters) == 0
    assert await swept(planes[1], stores[1]) >= 20
    await check(bed, before)
    again = await filled(bed, 3, first=20)
    await planes[0].delete_records(TOPIC, 0, 41)
    assert await jobs[1].consolidate() == 3
    await check(bed, [await bed.consumed(0), *again[1:]])
    assert again[0].endswith(await bed.consumed(0))
    for store in stores:
        await store.close()
    for plane in planes:
        await plane.close()


async def test_the_longest_run_is_swapped_at_once(postgres_url: str, tmp_path: Path) -> None:
    """In PostgreSQL, with a store that is quick: rows of a thousand extents in one transaction."""
    plane = await _started(PostgresControlPlane(postgres_url))
    store = DirectoryStore(tmp_path / "objects")
    bed = Bed(await furnished(plane), store)
    repeated = Sent(produced(b"once", producer=(4, 0, 0)))
    await bed.write(repeated)
    # What is not accepted ends an extent.
    several = [Sent(produced(b"x")), repeated] * 50
    for _ in range(RUN_EXTENTS_MAX // 50 + 1):
        await bed.write(*several)
    assert len(await bed.extents()) == RUN_EXTENTS_MAX + 51
    before = await bed.consumed()
    job = job_over(plane, store)
    assert await job.consolidate([(TOPIC, 0)]) == 2
    assert [extent.kind for extent in await bed.extents()] == ["segment"] * 2
    assert await bed.consumed() == before
    await store.close()
    await plane.close()


Database = TypeVar("Database", SqliteControlPlane, PostgresControlPlane)


async def _started(plane: Database) -> Database:
    await plane.start()
    return plane
