"""Databases of release 0.1 open with all that they hold; a new one has the same schema."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import asyncpg
import pytest

from penstock.control import IncompatibleDatabase, MemoryControlPlane, SqliteControlPlane
from penstock.control.migrations import migrations
from penstock.control.postgres import PostgresControlPlane
from tests.control.before.contents import Contents, Dice, contents, fill

BEFORE = Path(__file__).parent / "before"
BROKERS = (1, 2, 3, 4)
"""Brokers in the dumps, each in epoch 1; the third is not registered any more."""


@pytest.fixture
async def expected() -> Contents:
    plane = MemoryControlPlane(randomness=Dice())
    await fill(plane)
    return await contents(plane)


@pytest.fixture
def file_of_before(tmp_path: Path) -> Path:
    path = tmp_path / "before.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript((BEFORE / "sqlite.sql").read_text())
    connection.close()
    return path


@pytest.fixture
async def schema_of_before(postgres_url: str) -> str:
    [schema] = parse_qs(urlsplit(postgres_url).query)["search_path"]
    connection = await asyncpg.connect(postgres_url)
    text = (BEFORE / "postgres.sql").read_text()
    await connection.execute(text.replace("present.", f"{schema}."))
    await connection.close()
    return postgres_url


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_numbers_follow_each_other(database: Literal["sqlite", "postgres"]) -> None:
    numbers = [number for number, _ in migrations(database)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_a_file_of_before(file_of_before: Path, expected: Contents) -> None:
    plane = SqliteControlPlane(file_of_before)
    await plane.start()
    assert await contents(plane) == expected
    assert (await plane.image()).brokers == ()
    await assert_epochs_rise(plane)
    await plane.close()


async def test_a_schema_of_before(schema_of_before: str, expected: Contents) -> None:
    plane = PostgresControlPlane(schema_of_before)
    await plane.start()
    brokers = (await plane.image()).brokers
    assert [(broker.broker_id, broker.incarnation) for broker in brokers] == [
        (1, UUID(int=11)),
        (2, UUID(int=12)),
        (4, UUID(int=14)),
    ]
    assert (brokers[-1].endpoints, brokers[-1].roles) == ((("inside", "i", 8),), ("persistence",))
    assert await contents(plane) == expected
    await assert_epochs_rise(plane)
    await plane.close()


async def assert_epochs_rise(plane: SqliteControlPlane | PostgresControlPlane) -> None:
    for broker_id in BROKERS:
        registered = await plane.register_broker(
            broker_id=broker_id, host="h", port=9, rack=None, incarnation=UUID(int=60 + broker_id)
        )
        assert registered.epoch == 2


@pytest.mark.parametrize("version", [1, 16])
async def test_a_file_before_release_0_1_is_refused(tmp_path: Path, version: int) -> None:
    path = tmp_path / "metadata.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with pytest.raises(IncompatibleDatabase, match=f"version {version}.* start Penstock 0.1 with"):
        await SqliteControlPlane(path).start()


async def test_a_schema_before_release_0_1_is_refused(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("CREATE TABLE penstock_schema (number integer PRIMARY KEY)")
    await connection.execute("INSERT INTO penstock_schema VALUES (14), (15)")
    await connection.close()
    with pytest.raises(IncompatibleDatabase, match=r"version 15.* start Penstock 0\.1 with"):
        await PostgresControlPlane(postgres_url).start()


async def test_a_new_file_has_the_schema_of_a_migrated_one(
    tmp_path: Path, file_of_before: Path
) -> None:
    path = tmp_path / "new.sqlite"
    for plane in (SqliteControlPlane(path), SqliteControlPlane(file_of_before)):
        await plane.start()
        await plane.close()
    assert sqlite_schema(path) == sqlite_schema(file_of_before)


def sqlite_schema(path: Path) -> tuple[object, ...]:
    """Return columns and indices in order, and the words of each table's text in any order.

    SQLite appends the text of an added column behind the table's constraints.
    """
    connection = sqlite3.connect(path)
    columns = connection.execute(
        "SELECT t.name, c.* FROM sqlite_master t JOIN pragma_table_xinfo(t.name) c"
        " WHERE t.type = 'table' ORDER BY t.name, c.cid"
    ).fetchall()
    texts = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
    version = connection.execute("PRAGMA user_version").fetchall()
    connection.close()
    words = [
        (kind, name, sorted(re.findall(r"\w+|[^\s\w\"]", text or ""))) for kind, name, text in texts
    ]
    return version, columns, words


async def test_a_new_schema_has_the_one_of_a_migrated_schema(
    postgres_url: str, schema_of_before: str
) -> None:
    migrated = PostgresControlPlane(schema_of_before)
    await migrated.start()
    await migrated.close()
    before = await postgres_schema(schema_of_before)
    connection = await asyncpg.connect(postgres_url)
    [schema] = parse_qs(urlsplit(postgres_url).query)["search_path"]
    await connection.execute(f"DROP SCHEMA {schema} CASCADE; CREATE SCHEMA {schema}")
    await connection.close()
    plane = PostgresControlPlane(postgres_url)
    await plane.start()
    await plane.close()
    assert await postgres_schema(postgres_url) == before


async def postgres_schema(url: str) -> list[list[tuple[object, ...]]]:
    """Return columns in order, constraints, indices, options, functions and sequences."""
    connection = await asyncpg.connect(url)
    found = [
        [tuple(row) for row in await connection.fetch(query)]
        for query in (
            "SELECT max(number) FROM penstock_schema",
            "SELECT a.attrelid::regclass::text, a.attname, format_type(a.atttypid, a.atttypmod),"
            " a.attnotnull, a.attidentity, a.attcollation, pg_get_expr(d.adbin, d.adrelid)"
            " FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
            " LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum"
            " WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'"
            " AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, a.attnum",
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid)"
            " FROM pg_constraint WHERE connamespace = current_schema()::regnamespace ORDER BY 1, 2",
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()"
            " ORDER BY 1",
            "SELECT relname, relkind, reloptions FROM pg_class"
            " WHERE relnamespace = current_schema()::regnamespace ORDER BY 1",
            "SELECT proname, provolatile, prosrc FROM pg_proc"
            " WHERE pronamespace = current_schema()::regnamespace ORDER BY 1",
            "SELECT sequencename, data_type::text, start_value, increment_by FROM pg_sequences"
            " WHERE schemaname = current_schema() ORDER BY 1",
        )
    ]
    await connection.close()
    return found
