"""The list of tables is what the databases have."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Literal

import asyncpg
import pytest

from penstock.control import SqliteControlPlane
from penstock.control.postgres import PostgresControlPlane
from penstock.control.schema import TABLES, Table

Tables = dict[str, tuple[list[str], set[str]]]
"""By a table's name: the columns of its key, in order, and all others."""


def listed(database: Literal["SQLite", "PostgreSQL"]) -> Tables:
    left_out = database == "SQLite"
    return {
        table.name: (
            list(table.key),
            set(table.value).difference(table.of_postgres if left_out else ()),
        )
        for table in TABLES
        if table.only in ("", database)
    }


def found(columns: Iterable[tuple[str, str, int | None]]) -> Tables:
    """Tables of rows of (table, column, place in the key, counted from 1, or nothing)."""
    keys: dict[str, dict[int, str]] = {}
    others: dict[str, set[str]] = {}
    for table, column, place in columns:
        key, rest = keys.setdefault(table, {}), others.setdefault(table, set())
        if place:
            key[place] = column
        else:
            rest.add(column)
    return {
        table: ([key[place] for place in sorted(key)], others[table]) for table, key in keys.items()
    }


async def test_the_tables_of_sqlite(tmp_path: Path) -> None:
    plane = SqliteControlPlane(tmp_path / "metadata.sqlite")
    await plane.start()
    columns = await plane._writer.run(
        lambda connection: connection.execute(
            "SELECT t.name, c.name, c.pk FROM pragma_table_list t"
            " JOIN pragma_table_info(t.name, t.schema) c"
            " WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%'"
        ).fetchall()
    )
    await plane.close()
    assert found(columns) == listed("SQLite")


async def test_the_tables_of_postgres(postgres_url: str) -> None:
    plane = PostgresControlPlane(postgres_url)
    await plane.start()
    await plane.close()
    connection = await asyncpg.connect(postgres_url)
    columns = await connection.fetch(
        "SELECT t.relname, a.attname, array_position(i.indkey::int2[], a.attnum) + 1"
        " FROM pg_class t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0"
        " AND NOT a.attisdropped LEFT JOIN pg_index i ON i.indrelid = t.oid AND i.indisprimary"
        " WHERE t.relnamespace = current_schema()::regnamespace AND t.relkind = 'r'"
    )
    await connection.close()
    assert found((table, column, place) for table, column, place in columns) == listed("PostgreSQL")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_table_is_written_where_the_list_says(table: Table) -> None:
    writer = resources.files("penstock.control").joinpath(*table.writer.split("/"))
    assert table.name in writer.read_text()
