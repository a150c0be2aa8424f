"""Every form of the control plane, under one contract suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from penstock.control import ControlPlane, MemoryControlPlane, SqliteControlPlane
from penstock.control.drivers.notices import Inbox, SocketNotices, new_inbox
from penstock.control.postgres import PostgresControlPlane
from penstock.control.sqlite import SharedSqliteControlPlane, prepare
from tests.control.diskless import Plane, furnish
from tests.postgres import PostgresServer

START_MS = 1_700_000_000_000


class ManualClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.ms = START_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


@pytest.fixture
def clock() -> ManualClock:
    """The clock of the forms that have no other."""
    return ManualClock()


EMPTY = """
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = current_schema()
        AND tablename NOT IN ('penstock_schema', 'counters') LOOP
        EXECUTE format('DELETE FROM %I', name);
    END LOOP;
    FOR name IN SELECT sequencename FROM pg_sequences WHERE schemaname = current_schema() LOOP
        EXECUTE format('ALTER SEQUENCE %I RESTART', name);
    END LOOP;
    UPDATE counters SET value = 0;
END $$
"""
"""Makes a migrated schema one in which nothing has happened yet."""


@pytest.fixture(scope="session")
def contract_url(postgres: PostgresServer) -> str:
    """The schema of the contract suite: emptied after each test, as a new one costs more."""
    return postgres.schema()


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    """Return an inbox without senders."""
    ends = new_inbox()
    yield ends
    ends.close()


@pytest.fixture(params=["sqlite inline", "sqlite thread", "sqlite shared", "postgres"])
async def control(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[ControlPlane]:
    plane: ControlPlane
    if request.param == "sqlite inline":
        plane = MemoryControlPlane(clock=clock)
    elif request.param == "sqlite thread":
        plane = SqliteControlPlane(tmp_path / "metadata.sqlite", clock=clock)
    elif request.param == "sqlite shared":
        await prepare(tmp_path / "metadata.sqlite")
        notices = SocketNotices(request.getfixturevalue("inbox"), [])
        plane = SharedSqliteControlPlane(tmp_path / "metadata.sqlite", notices=notices, clock=clock)
    else:
        plane = PostgresControlPlane(request.getfixturevalue("contract_url"))
    await plane.start()
    yield plane
    await plane.close()
    if isinstance(plane, PostgresControlPlane):
        await execute(request.getfixturevalue("contract_url"), EMPTY)


async def execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


AGED = (
    ("brokers", "renewed_ms"),
    ("diskless_objects", "changed_ms"),
    ("diskless_answers", "committed_ms"),
    ("diskless_producers", "seen_ms"),
)
"""The columns of PostgreSQL's tables by which ages are measured."""


@pytest.fixture
def elapse(
    request: pytest.FixtureRequest, control: ControlPlane, clock: ManualClock
) -> Callable[[int], Awaitable[None]]:
    """Let milliseconds pass for the plane: by its clock, or by making the rows so much older."""

    async def pass_ms(ms: int) -> None:
        clock.ms += ms
        if isinstance(control, PostgresControlPlane):
            aged = [f"UPDATE {table} SET {column} = {column} - {ms}" for table, column in AGED]
            await execute(request.getfixturevalue("contract_url"), *aged)

    return pass_ms


@pytest.fixture
async def plane(control: ControlPlane) -> Plane:
    """The same form, with a broker and topics, two of which are diskless."""
    await furnish(control)
    return control
