"""PostgreSQL that goes away: restarts and crashes under load, lost connections, lost answers."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from penstock.control import (
    CommittedOffset,
    ControlPlane,
    ControlUnavailable,
    FindRequest,
    TopicExists,
)
from penstock.control.drivers import postgres_connections
from penstock.control.postgres import PostgresControlPlane
from tests.control.diskless import TOPIC, bases, entry, furnish, lease, plain, put, written
from tests.control.postgres_proxy import Cut, Proxy, proxy_to
from tests.postgres import PostgresServer, postgres_server

A = UUID(int=1)


@pytest.fixture(scope="module")
def mortal() -> Iterator[PostgresServer]:
    """A server that tests may stop."""
    with postgres_server() as server:
        yield server


@pytest.fixture
async def plane(mortal: PostgresServer) -> AsyncIterator[PostgresControlPlane]:
    plane = PostgresControlPlane(mortal.schema())
    await plane.start()
    yield plane
    await plane.close()


@pytest.fixture
async def proxied(
    postgres: PostgresServer, postgres_url: str
) -> AsyncIterator[tuple[PostgresControlPlane, Proxy]]:
    """A plane that reaches its database through a proxy."""
    async with proxy_to(postgres.port) as proxy:
        url = postgres_url.replace(f":{postgres.port}/", f":{proxy.port}/")
        plane = PostgresControlPlane(url)
        await plane.start()
        await furnish(plane)
        yield plane, proxy
        await plane.close()


async def eventually(call: Callable[[], Awaitable[Any]]) -> Any:
    """Call until the plane is there, as its callers do."""
    async with asyncio.timeout(60):
        while True:
            with suppress(ControlUnavailable):
                return await call()
            await asyncio.sleep(0.01)


async def refused(call: Callable[[], Awaitable[Any]]) -> None:
    """Call until the plane says that it cannot connect."""
    async with asyncio.timeout(60):
        while True:
            try:
                await call()
            except ControlUnavailable as error:
                if "cannot connect to the PostgreSQL database" in str(error):
                    return


class Load:
    """Commits offsets one after the other; `answered` is the last one that was answered."""

    def __init__(self, plane: PostgresControlPlane) -> None:
        self.answered = 0
        self._plane = plane
        self._over = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        for number in itertools.count(1):
            if self._over:
                return
            offset = CommittedOffset(topic_id=A, topic="t", partition=0, offset=number)
            try:
                await self._plane.commit_offsets(group_id="g", offsets=[offset])
                self.answered = number
            except ControlUnavailable:
                await asyncio.sleep(0.01)

    async def goes_on(self) -> None:
        """Wait until one more has been answered."""
        before = self.answered
        async with asyncio.timeout(60):
            while self.answered == before:
                await asyncio.sleep(0.001)

    async def end(self) -> None:
        """Stop, and look for what was answered."""
        self._over = True
        await self._task
        (found,) = await self._plane.committed_offsets("g", None)
        assert found.offset >= self.answered > 0


@pytest.mark.parametrize("crash", [False, True])
async def test_a_restart_loses_nothing_that_was_answered(
    mortal: PostgresServer, plane: PostgresControlPlane, crash: bool
) -> None:
    load = Load(plane)
    for _ in range(2):
        await load.goes_on()
        await asyncio.to_thread(mortal.stop, crash=crash)
        await asyncio.sleep(0.05)
        await asyncio.to_thread(mortal.start)
    await load.goes_on()
    await load.end()


async def test_a_short_absence_costs_time_and_no_error(
    mortal: PostgresServer, plane: PostgresControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short for a plane that is patient enough for the machine that runs this test."""
    connections = "penstock.control.drivers.postgres_connections"
    monkeypatch.setattr(f"{connections}.OPERATION_TIMEOUT_SECONDS", 60)
    monkeypatch.setattr(f"{connections}.OPERATION_ATTEMPTS_MAX", 100)
    await asyncio.to_thread(mortal.stop)
    calls = [asyncio.create_task(plane.allocate_producer_ids(1)) for _ in range(40)]
    images = [asyncio.create_task(plane.image()) for _ in range(5)]
    await asyncio.sleep(0.2)
    await asyncio.to_thread(mortal.start)
    blocks = await asyncio.gather(*calls)
    assert len({block.start for block in blocks}) == 40
    assert {image.version for image in await asyncio.gather(*images)} == {0}


async def test_a_long_outage_is_logged_and_ends(
    mortal: PostgresServer, plane: PostgresControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_connections, "OPERATION_TIMEOUT_SECONDS", 0.2)
    await asyncio.to_thread(mortal.stop)
    await refused(lambda: plane.allocate_producer_ids(1))
    results = await asyncio.gather(
        *(plane.allocate_producer_ids(1) for _ in range(30)), return_exceptions=True
    )
    assert {type(result) for result in results} == {ControlUnavailable}
    assert len({id(result) for result in results}) == 30
    assert "cannot connect to the PostgreSQL database" in str(results[0])
    await asyncio.to_thread(mortal.start)
    await eventually(lambda: plane.allocate_producer_ids(1))


async def test_a_server_that_takes_no_writes_is_left_until_one_does(
    mortal: PostgresServer, plane: PostgresControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fail-over turns the former primary into a standby."""
    monkeypatch.setattr(postgres_connections, "OPERATION_TIMEOUT_SECONDS", 0.3)
    await plane.allocate_producer_ids(1)
    mortal.execute("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")

    await refused(lambda: plane.allocate_producer_ids(1))
    mortal.execute(
        "SET default_transaction_read_only = off",
        "ALTER SYSTEM RESET default_transaction_read_only",
        "SELECT pg_reload_conf()",
    )
    await eventually(lambda: plane.allocate_producer_ids(1))


async def test_of_several_hosts_the_one_that_answers_is_taken(postgres: PostgresServer) -> None:
    url = postgres.schema()
    here = f"127.0.0.1:{postgres.port}"
    with socket.socket() as unused:  # it is bound and does not listen
        unused.bind(("127.0.0.1", 0))
        away = f"127.0.0.1:{unused.getsockname()[1]}"
        plane = PostgresControlPlane(url.replace(here, f"{away},{here}"))
        await plane.start()
        assert (await plane.image()).version == 0
        await plane.close()


async def test_killed_connections_are_replaced(postgres_url: str) -> None:
    plane = PostgresControlPlane(postgres_url)
    await plane.start()
    killer = await asyncpg.connect(postgres_url, server_settings={"application_name": "killer"})
    load = Load(plane)
    for _ in range(5):
        await load.goes_on()
        await killer.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'penstock'"
        )
    await load.goes_on()
    await load.end()
    await killer.close()
    await plane.close()


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_change_of_unknown_outcome_is_reported_as_such(
    proxied: tuple[PostgresControlPlane, Proxy], cut: Cut
) -> None:
    plane, proxy = proxied
    before = await plane.image()

    async def create() -> None:
        await plane.create_topic(name="t", topic_id=A, partitions=[[1]], configs={})

    proxy.cut = cut
    with pytest.raises(ControlUnavailable, match="is not known"):
        await create()
    after = await plane.image()
    assert ("t" in after.topics) is (cut == "after")
    assert (after is before) is (cut == "before")
    if cut == "after":
        with pytest.raises(TopicExists):
            await create()
    else:
        await create()
    assert "t" in (await plane.image()).topics


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_commit_of_unknown_outcome_is_answered_when_repeated(
    proxied: tuple[PostgresControlPlane, Proxy], cut: Cut
) -> None:
    plane, proxy = proxied
    await put(plane, entry(0))
    [key] = await lease(plane)
    commit = written(key, [entry(0), entry(1)])
    proxy.cut = cut
    with pytest.raises(ControlUnavailable, match="is not known"):
        await plane.commit_object(commit)
    assert proxy.cuts == 1
    reached = [
        watermark.high_watermark for watermark in await plane.watermarks([(TOPIC, 0), (TOPIC, 1)])
    ]
    assert reached == ([10, 5] if cut == "after" else [5, 0])
    await put(plane, entry(1))
    answer = await plane.commit_object(commit)
    assert answer.placed == (plain(5), plain(0 if cut == "after" else 5))
    assert await plane.commit_object(commit) == answer
    [found] = await plane.find([FindRequest(TOPIC, 1, 0, 10_000)])
    assert [extent.next_offset for extent in found.extents] == [5, 10]


async def test_commits_continue_across_a_restart(
    mortal: PostgresServer, plane: PostgresControlPlane
) -> None:
    """Every object is committed once, however often its commit is repeated."""
    await furnish(plane)
    keys = await lease(plane, 40)
    commits = [written(key, [entry(0), entry(1)]) for key in keys]

    async def commit_all() -> list[int]:
        placed = []
        for commit in commits:
            answer = await eventually(partial(plane.commit_object, commit))
            placed.append(bases(answer)[0])
        return placed

    committing = asyncio.create_task(commit_all())
    await asyncio.sleep(0.05)
    await asyncio.to_thread(mortal.stop, crash=True)
    await asyncio.to_thread(mortal.start)
    assert await committing == list(range(0, 200, 5))
    both: ControlPlane = plane
    assert (await both.image()).topics
    assert [watermark.high_watermark for watermark in await plane.watermarks([(TOPIC, 0)])] == [200]
