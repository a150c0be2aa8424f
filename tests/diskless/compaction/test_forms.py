"""Compaction over SQLite and a directory, and over PostgreSQL and S3 by two brokers at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from penstock.control import DisklessPlane, SqliteControlPlane
from penstock.control.postgres import PostgresControlPlane
from penstock.objects import DirectoryStore, ObjectStore, open_store
from tests.diskless.compaction.ledger import DELETE_RETENTION_MS, Ledger, compactor
from tests.diskless.consolidation.bed import KEY, Bed
from tests.diskless.consolidation.conftest import furnished
from tests.s3 import S3Server
from tests.storage.batches import FakeClock


async def compacted(planes: list[DisklessPlane], stores: list[ObjectStore]) -> int:
    """Rounds of brokers at once, over what one of them writes; how many passes there were."""
    clock, random = FakeClock(), Random(2)
    ledger = Ledger(Bed(planes[0], stores[0]), clock)
    jobs = [
        compactor(ledger.bed, clock, plane=plane, store=store, seed=seed)
        for seed, (plane, store) in enumerate(zip(planes, stores, strict=True))
    ]
    for _ in range(4):
        await ledger.send_some(random, keys=8, batches=6)
        await asyncio.gather(*[job.compact() for job in jobs])
        await ledger.verified()
        clock.ms += DELETE_RETENTION_MS
    await jobs[0].compact()
    left = await ledger.verified()
    assert await planes[0].clean_offset(*KEY) == len(ledger.sent)
    assert set(left) <= set(ledger.newest().values())
    return sum(job.counters.passes for job in jobs)


async def test_sqlite_and_a_directory(tmp_path: Path) -> None:
    plane = SqliteControlPlane(tmp_path / "metadata.sqlite")
    await plane.start()
    try:
        assert (
            await compacted([await furnished(plane)], [DirectoryStore(tmp_path / "objects")]) == 4
        )
    finally:
        await plane.close()


async def test_two_brokers_on_postgresql_and_s3(postgres_url: str, s3: S3Server) -> None:
    planes = [PostgresControlPlane(postgres_url) for _ in range(2)]
    url = s3.fresh_url()
    stores = [open_store(url, options=s3.options()) for _ in range(2)]
    try:
        for plane in planes:
            await plane.start()
        await furnished(planes[0])
        assert await compacted([*planes], [*stores]) >= 4
    finally:
        for store in stores:
            await store.close()
        for plane in planes:
            await plane.close()
