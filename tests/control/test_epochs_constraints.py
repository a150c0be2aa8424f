"""Rows of epochs that both databases reject by constraints."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from penstock.control import SqliteControlPlane
from penstock.control.postgres import PostgresControlPlane

ID = {"sqlite": "zeroblob(16)", "postgres": "'00000000-0000-0000-0000-000000000000'"}
SOUND = {
    "number": "0", "epoch": "3", "start_offset": "5", "end_offset": "NULL",
    "replicas": "'[1, 2, 3]'", "ack_quorum": "2", "leader": "1",
}  # fmt: skip
Execute = Callable[[str], Awaitable[None]]
REFUSED = (sqlite3.IntegrityError, asyncpg.IntegrityConstraintViolationError)


@pytest.fixture(params=["sqlite", "postgres"])
async def execute(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Executes a text on a migrated database, in which `{id}` is a topic's."""
    topic_id = ID[request.param]
    if request.param == "sqlite":
        path = tmp_path / "metadata.sqlite"
        plane = SqliteControlPlane(path)
        await plane.start()
        await plane.close()
        connection = sqlite3.connect(path)

        async def on_sqlite(text: str) -> None:
            connection.execute(text.format(id=topic_id))

        yield on_sqlite
        connection.close()
        return
    url = request.getfixturevalue("postgres_url")
    plane_of_postgres = PostgresControlPlane(url)
    await plane_of_postgres.start()
    await plane_of_postgres.close()
    session = await asyncpg.connect(url)

    async def on_postgres(text: str) -> None:
        await session.execute(text.format(id=topic_id))

    yield on_postgres
    await session.close()


def insert(**changes: str) -> str:
    row = SOUND | changes
    return (
        f"INSERT INTO partition_epochs (topic_id, {', '.join(row)})"
        f" VALUES ({{id}}, {', '.join(row.values())})"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"end_offset": "5"},
        {"replicas": "'[4, 9]'", "ack_quorum": "2"},
        {"replicas": "'[4]'", "ack_quorum": "1"},
        {"replicas": "'[1, 2, 3, 4, 5]'", "ack_quorum": "3"},
        {"ack_quorum": "3"},
    ],
)
async def test_sound_epochs_are_stored(execute: Execute, changes: dict[str, str]) -> None:
    await execute(insert(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"ack_quorum": "0"},
        {"ack_quorum": "-2"},
        {"ack_quorum": "1"},
        {"ack_quorum": "4"},
        {"replicas": "'[1, 2]'", "ack_quorum": "1"},
        {"replicas": "'[1, 2, 3, 4]'", "ack_quorum": "2"},
        {"replicas": "'[1, 2, 3, 4, 5]'", "ack_quorum": "2"},
        {"replicas": "'[]'", "ack_quorum": "0"},
        {"replicas": "'[]'", "ack_quorum": "1"},
        {"end_offset": "4"},
        {"start_offset": "-1"},
        {"epoch": "-1"},
        {"number": "-1"},
        {"ack_quorum": "NULL"},
        {"replicas": "NULL"},
        {"start_offset": "NULL"},
    ],
)
async def test_what_is_unsafe_is_refused(execute: Execute, changes: dict[str, str]) -> None:
    with pytest.raises(REFUSED):
        await execute(insert(**changes))


async def test_a_quorum_is_not_lowered_either(execute: Execute) -> None:
    await execute(insert())
    with pytest.raises(REFUSED):
        await execute("UPDATE partition_epochs SET ack_quorum = 1")
    with pytest.raises(REFUSED):
        await execute("UPDATE partition_epochs SET replicas = '[1, 2, 3, 4]'")


async def test_one_epoch_of_a_partition_is_open(execute: Execute) -> None:
    await execute(insert(epoch="3", end_offset="9"))
    await execute(insert(epoch="4"))
    with pytest.raises(REFUSED):
        await execute(insert(epoch="5"))
    with pytest.raises(REFUSED):
        await execute("UPDATE partition_epochs SET end_offset = NULL WHERE epoch = 3")
    with pytest.raises(REFUSED):
        await execute(insert(epoch="4", end_offset="9"))
    await execute(insert(epoch="4", number="1"))


async def test_reservations_are_of_sound_numbers(execute: Execute) -> None:
    text = "INSERT INTO replicated_partitions VALUES ({{id}}, {}, {}, 1, NULL)"
    await execute(text.format(0, 0))
    for number, reserved in ((0, 1), (-1, 0), (1, -1), (1, "NULL")):
        with pytest.raises(REFUSED):
            await execute(text.format(number, reserved))
