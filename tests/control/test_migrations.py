"""Databases of the form before this one are brought up to date, with all that they hold."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import asyncpg
import pytest

from penstock.control import MemoryControlPlane, SqliteControlPlane
from penstock.control.migrations.postgres.migrate import migrations as of_postgres
from penstock.control.migrations.sqlite.migrate import migrations as of_sqlite
from penstock.control.postgres import PostgresControlPlane
from tests.control.before.contents import GROUP, Contents, Dice, contents, fill

BEFORE = Path(__file__).parent / "before"
EPOCHS: Mapping[int, int] = {1: 1, 2: 1, 3: 1}
"""Of the brokers that are in the dumps; the last one is not registered any more."""


@pytest.fixture
async def expected() -> Contents:
    plane = MemoryControlPlane(randomness=Dice())
    await fill(plane)
    return await contents(plane)


@pytest.mark.parametrize("migrations", [of_sqlite, of_postgres])
def test_numbers_follow_each_other(migrations: Callable[[], Sequence[tuple[int, str]]]) -> None:
    numbers = [number for number, _ in migrations()]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_a_file_of_before(tmp_path: Path, expected: Contents) -> None:
    path = tmp_path / "metadata.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript((BEFORE / "sqlite.sql").read_text())
    connection.close()
    plane = SqliteControlPlane(path)
    await plane.start()
    assert await contents(plane) == expected
    assert await plane.records("group", await plane.record_keys("group")) == [GROUP]
    assert (await plane.image()).brokers == ()
    await assert_epochs_rise(plane)
    await plane.close()


async def test_a_schema_of_before(postgres_url: str, expected: Contents) -> None:
    [schema] = parse_qs(urlsplit(postgres_url).query)["search_path"]
    connection = await asyncpg.connect(postgres_url)
    text = (BEFORE / "postgres.sql").read_text()
    await connection.execute(text.replace("present.", f"{schema}."))
    await connection.close()
    plane = PostgresControlPlane(postgres_url)
    await plane.start()
    brokers = (await plane.image()).brokers
    assert [(broker.broker_id, broker.incarnation) for broker in brokers] == [
        (1, UUID(int=11)),
        (2, UUID(int=12)),
    ]
    assert await contents(plane) == expected
    assert await plane.records("group", await plane.record_keys("group")) == [GROUP]
    await assert_epochs_rise(plane)
    await plane.close()


async def assert_epochs_rise(plane: SqliteControlPlane | PostgresControlPlane) -> None:
    for broker_id, epoch in EPOCHS.items():
        registered = await plane.register_broker(
            broker_id=broker_id, host="h", port=9, rack=None, incarnation=UUID(int=60 + broker_id)
        )
        assert registered.epoch == epoch + 1
