"""HTTP listeners stay open to probes and to other addresses, however much one address sends."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.http_listener import PROBES_AT_ONCE, HttpListener, _bounded
from penstock.base.http_protocol import CONNECTIONS_PER_REQUEST, Connection, Connections

REQUESTS_MAX = 4
CONNECTIONS_MAX = CONNECTIONS_PER_REQUEST * REQUESTS_MAX


class App:
    """An application that answers probes, and others once it is `open`."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.waiting = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/wait":
            self.waiting += 1
            await self.open.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
async def app() -> App:
    return App()


@pytest.fixture
async def listener(app: App) -> AsyncIterator[HttpListener]:
    listener = HttpListener()
    await listener.start(app, ("127.0.0.1", 0), connections_max=REQUESTS_MAX)
    yield listener
    app.open.set()
    await listener.stop()


async def status(listener: HttpListener, path: str) -> bytes:
    """The status of a request on a connection of its own; empty where it is closed."""
    reader, writer = await asyncio.open_connection(*listener.address)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    try:
        return (await reader.read()).partition(b"\r\n")[0]
    finally:
        writer.close()


async def test_silent_connections_of_one_address_shut_out_no_others(
    listener: HttpListener,
) -> None:
    with ExitStack() as stack:
        for _ in range(3 * CONNECTIONS_MAX):
            silent = socket.create_connection(listener.address, source_address=("127.0.0.2", 0))
            stack.enter_context(silent)
            await asyncio.sleep(0)
        for path in ("/livez", "/readyz", "/other"):
            assert await status(listener, path) == b"HTTP/1.1 200 OK"


async def test_probes_are_answered_beside_as_many_requests_as_there_may_be(
    app: App, listener: HttpListener
) -> None:
    waiting = [asyncio.ensure_future(status(listener, "/wait")) for _ in range(REQUESTS_MAX)]
    while app.waiting < REQUESTS_MAX:
        await asyncio.sleep(0)
    assert (await status(listener, "/other")).startswith(b"HTTP/1.1 503 ")
    for path in ("/health", "/livez", "/readyz"):
        assert await status(listener, path) == b"HTTP/1.1 200 OK"
    app.open.set()
    assert set(await asyncio.gather(*waiting)) == {b"HTTP/1.1 200 OK"}
    assert await status(listener, "/other") == b"HTTP/1.1 200 OK"


async def test_one_address_has_a_part_of_the_requests() -> None:
    app, statuses = App(), list[int]()
    bounded = _bounded(app, REQUESTS_MAX)

    async def send(message: dict[str, Any]) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    def asked(address: str, path: str = "/wait") -> asyncio.Task[None]:
        scope = {"type": "http", "path": path, "client": (address, 1)}
        return asyncio.ensure_future(bounded(scope, None, send))

    tasks = [asked("192.0.2.1") for _ in range(REQUESTS_MAX)] + [asked("192.0.2.2")]
    tasks += [asked("192.0.2.1", "/livez") for _ in range(PROBES_AT_ONCE)]
    while len(statuses) < PROBES_AT_ONCE + 1:
        await asyncio.sleep(0)
    app.open.set()
    await asyncio.gather(*tasks)
    assert Counter(statuses) == {503: 1, 200: REQUESTS_MAX + PROBES_AT_ONCE}


class Opened:
    """A connection as `Connections` sees it; its own transport."""

    def __init__(self, *, silent: bool) -> None:
        self.silent = silent
        self.aborted = False
        self.transport = self

    def abort(self) -> None:
        self.aborted = True


@given(
    most=st.integers(1, 5),
    arrivals=st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30),
)
def test_a_new_connection_replaces_a_silent_one_of_the_address_that_has_most(
    most: int, arrivals: list[tuple[str, bool]]
) -> None:
    connections = Connections(most)
    there: list[tuple[Opened, str]] = []
    for address, silent in arrivals:
        new = Opened(silent=silent)
        counts = Counter(place for _, place in there)
        entered = connections.enter(cast("Connection", new), address)
        full = len(there) == most
        assert entered == (not full or any(one.silent for one, _ in there))
        gone = [(one, place) for one, place in there if one.aborted]
        assert len(gone) == (full and entered)
        for one, place in gone:
            assert one.silent
            others = [counts[other] for item, other in there if item.silent]
            assert counts[place] == max(others)
            there.remove((one, place))
        there += [(new, address)] if entered else []
