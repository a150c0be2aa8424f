"""The object store's identity: stored once, in all implementations and migrated databases."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

from penstock.control import SqliteControlPlane, StoreIdentity
from penstock.control.postgres import PostgresControlPlane
from tests.control.diskless import Plane

ONE = StoreIdentity(UUID(int=1), "s3://bucket/one at http://127.0.0.1:9000")
OTHER = StoreIdentity(UUID(int=2), "file:///other")


async def test_the_first_store_stays(plane: Plane) -> None:
    assert await plane.store_identity() is None
    assert await plane.adopt_store(ONE) == ONE
    assert await plane.adopt_store(OTHER) == ONE
    assert await plane.adopt_store(ONE._replace(place="moved")) == ONE
    assert await plane.store_identity() == ONE


async def test_of_many_at_once_one_is_adopted(plane: Plane) -> None:
    offered = [StoreIdentity(UUID(int=number), "") for number in range(1, 9)]
    adopted = await asyncio.gather(*map(plane.adopt_store, offered))
    assert len(set(adopted)) == 1
    assert adopted[0] in offered
    assert await plane.store_identity() == adopted[0]


async def test_of_many_brokers_at_once_one_wins(postgres_url: str) -> None:
    planes = [PostgresControlPlane(postgres_url) for _ in range(4)]
    await asyncio.gather(*(plane.start() for plane in planes))
    try:
        adopted = await asyncio.gather(
            *(
                plane.adopt_store(StoreIdentity(UUID(int=number), "x"))
                for number, plane in enumerate(planes, 1)
            )
        )
        assert len(set(adopted)) == 1
        assert [await plane.store_identity() for plane in planes] == adopted
    finally:
        await asyncio.gather(*(plane.close() for plane in planes))


async def test_a_file_keeps_it(tmp_path: Path) -> None:
    for expected in (None, ONE):
        plane = SqliteControlPlane(tmp_path / "metadata.sqlite")
        await plane.start()
        assert await plane.store_identity() == expected
        assert await plane.adopt_store(ONE) == ONE
        await plane.close()


async def test_a_schema_keeps_it(postgres_url: str) -> None:
    for expected in (None, ONE):
        plane = PostgresControlPlane(postgres_url)
        await plane.start()
        assert await plane.store_identity() == expected
        assert await plane.adopt_store(ONE) == ONE
        await plane.close()
