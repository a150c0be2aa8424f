"""Operations and statements, on both databases: texts, answers, statements over sets."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import pytest

from penstock.control.drivers import postgres_connections, sqlite_writer
from penstock.control.drivers.statements import (
    Each,
    Operation,
    Together,
    changed,
    row,
    rows,
    uuid_of,
    value,
)
from tests.postgres import PostgresServer

T = TypeVar("T")
Run = Callable[[Operation[T]], Awaitable[T]]
A, B = UUID(int=1), UUID(int=2)

create = rows(
    "CREATE TABLE things (id uuid PRIMARY KEY, name text NOT NULL, size integer NOT NULL)",
    "CREATE TABLE things (id BLOB PRIMARY KEY, name TEXT NOT NULL, size INTEGER NOT NULL)",
)
insert = Each(
    "changed",
    "INSERT INTO things SELECT n.id, $3, n.size FROM unnest($1::uuid[], $2::int[]) AS n (id, size)",
    sqlite="INSERT INTO things VALUES ($1, $3, $2)",
)
sizes = Each(
    "rows",
    "SELECT t.id, t.size FROM things t JOIN unnest($1::uuid[]) AS k (id) ON t.id = k.id",
    sqlite="SELECT id, size FROM things WHERE id = $1",
)
lock = row("SELECT name, size FROM things WHERE id = $1 FOR UPDATE OF things SKIP LOCKED")
names = rows("SELECT DISTINCT name FROM things WHERE size > $2 OR name = $1")
grow = value(
    "UPDATE things SET size = size + $2 WHERE id = $1 RETURNING size",
    ("UPDATE things SET size = size + $2 WHERE id = $1", "SELECT size FROM things WHERE id = $1"),
)
delete = changed("DELETE FROM things")


resize = Each(
    "changed",
    "UPDATE things SET size = n.size FROM unnest($1::uuid[], $2::int[]) AS n (id, size)"
    " WHERE things.id = n.id",
    sqlite="UPDATE things SET size = $2 WHERE id = $1",
)
note = Each(
    "changed",
    "INSERT INTO notes SELECT * FROM unnest($1::text[])",
    sqlite="INSERT INTO notes VALUES ($1)",
)
both = Together(note, resize)


@pytest.fixture(params=["sqlite", "postgres"])
async def run(request: pytest.FixtureRequest, postgres: PostgresServer) -> Any:
    if request.param == "sqlite":
        connection = sqlite3.connect(":memory:")

        async def over_sqlite(operation: Operation[T]) -> T:
            return sqlite_writer.run(connection, operation)

        yield over_sqlite
        connection.close()
        return
    session = await asyncpg.connect(postgres.schema())

    async def over_postgres(operation: Operation[T]) -> T:
        return await postgres_connections.run(session, operation)

    yield over_postgres
    await session.close()


async def test_an_operation_gives_the_same_answers_on_both(run: Run[Any]) -> None:
    def grown(by: int) -> Operation[int]:
        found: int = yield grow(A, by)
        return found

    def operation() -> Operation[list[Any]]:
        yield create()
        answers: list[Any] = [(yield insert([(A, 1), (B, 2)], "n"))]
        answers.append({uuid_of(found_id): size for found_id, size in (yield sizes([(A,), (B,)]))})
        answers.append(tuple((yield lock(A))))
        answers.append((yield lock(UUID(int=9))))
        answers.append([name for (name,) in (yield names("m", 0))])
        answers.append((yield from grown(6)))
        answers.append((yield grow(UUID(int=9), 1)))
        answers.append((yield delete()))
        return answers

    assert await run(operation()) == [2, {A: 1, B: 2}, ("n", 1), None, ["n"], 7, None, 2]


async def test_a_statement_over_no_rows_is_not_executed(run: Run[Any]) -> None:
    def operation() -> Operation[tuple[Any, Any]]:
        return (yield insert([], "n")), (yield sizes([]))  # the table is not there

    assert await run(operation()) == (0, [])


async def test_several_statements_over_sets_are_one(run: Run[Any]) -> None:
    def operation() -> Operation[list[Any]]:
        yield create()
        yield rows("CREATE TABLE notes (text text)")()
        yield insert([(A, 1), (B, 2)], "n")
        answers: list[Any] = [(yield both([("x",), ("y",)], [(A, 5), (B, 6), (UUID(int=9), 7)]))]
        answers.append((yield both([], [(A, 7)])))
        answers.append((yield both([("z",)], [])))
        answers.append({uuid_of(found_id): size for found_id, size in (yield sizes([(A,), (B,)]))})
        answers.append([text for (text,) in (yield rows("SELECT text FROM notes ORDER BY 1")())])
        return answers

    assert await run(operation()) == [2, 1, 0, {A: 7, B: 6}, ["x", "y", "z"]]
