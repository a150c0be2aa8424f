"""Hostile requests to the registry: each gets a refusal, and others are served."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.registry.http import BODY_BYTES_MAX
from tests.registry.conftest import Served, record

HEAD = b"POST /subjects/s/versions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
LARGE = 100 << 20
"""Body of 100 MB, of which a refusal must not read everything."""
SLOW_SECONDS = 5.0


@pytest.fixture(autouse=True)
async def others_are_served(served: Served) -> AsyncIterator[None]:
    """Check after each test that the registry still answers, and has no trace of it."""
    await served.register("innocent", record("a"))
    yield
    assert await served.get("/subjects") == ["innocent"]
    assert (await served.register("innocent", record("a", "b")))["version"] == 2


async def send(served: Served, head: bytes, pieces: int, piece: bytes) -> tuple[int, int]:
    """Send a request in pieces until the response; return its status and the bytes sent.

    The status is 0 if the connection was reset, as it may be while the client still sends.
    """
    reader, writer = await asyncio.open_connection(*served.address)
    sent = 0
    answered = asyncio.create_task(reader.readline())
    try:
        writer.write(head)
        for _ in range(pieces):
            if answered.done():
                break
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
    except ConnectionError:
        pass
    try:
        async with asyncio.timeout(SLOW_SECONDS):
            line = await answered
    except ConnectionError:
        return 0, sent
    finally:
        writer.close()
    return int(line.split()[1]), sent


async def test_a_declared_body_of_100_mb_is_rejected(served: Served) -> None:
    head = HEAD + b"content-length: %d\r\n\r\n" % LARGE
    status, sent = await send(served, head, LARGE >> 16, b"x" * (1 << 16))
    assert status in (413, 0)
    assert sent < LARGE / 2


async def test_a_chunked_body_of_100_mb_is_rejected(served: Served) -> None:
    head = HEAD + b"transfer-encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b"x" * (1 << 16) + b"\r\n"
    status, sent = await send(served, head, LARGE >> 16, chunk)
    assert status in (413, 0)
    assert sent < LARGE / 2


async def test_a_body_over_the_limit_is_rejected(served: Served) -> None:
    body = json.dumps({"schema": "x" * BODY_BYTES_MAX}).encode()
    found = await served.ask("POST", "/subjects/s/versions", body)
    assert found.refusal == (413, 413)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"nul", b"\xff\xfe{\x00}\x00", b'{"schema": "\xff"}', b"[" * 100_000,
        b'{"a":' * 50_000, b'"text"', b"[]", b"-1", b"null", b'{"schema": 1}',
        b'{"schema": "\\"int\\"", "references": 1}', b'{"schema": "\\"int\\"", "id": "1"}',
        b'{"schema": "\\"int\\"", "references": [{"name": 1}]}',
        b'{"schema": "\\"int\\"", "metadata": []}', b'{"schema": "\\ud800"}',
        b'{"schema": "\\"int\\"", "id": 1e99}',
        b'{"schema": "\\"int\\"", "metadata": ' + b'{"a":' * 40 + b"1" + b"}" * 41,
    ],
)  # fmt: skip
async def test_malformed_bodies_are_rejected(served: Served, body: bytes) -> None:
    for path in ("/subjects/s/versions", "/subjects/s", "/compatibility/subjects/s/versions"):
        found = await served.ask("POST", path, body)
        assert found.status in (400, 404, 422), found.body
        assert len(found.body) < 4_096


@pytest.mark.parametrize("path", ["/config", "/config/s", "/mode", "/mode/s", "/associations"])
@pytest.mark.parametrize("body", [b"[" * 10_000, b"1", b'{"compatibility": 1, "mode": []}', b"{"])
async def test_malformed_settings_are_rejected(served: Served, path: str, body: bytes) -> None:
    assert (await served.ask("PUT", path, body)).status in (400, 422)


@pytest.mark.parametrize(
    "schema",
    [
        "[" * 100_000,
        '{"type":"array","items":' * 5_000 + '"int"' + "}" * 5_000,
        json.dumps([{"type": "fixed", "name": f"f{n}", "size": n + 1} for n in range(100_000)])[
            : 1 << 20
        ],
        json.dumps({"type": "record", "name": "R", "fields": [{"name": "r", "type": "Missing"}]}),
        json.dumps({"type": "fixed", "name": "F", "size": 1 << 70}),
        json.dumps({"type": "enum", "name": "E", "symbols": ["A"] * 50_000}),
        '"int" ' + " " * 1_100_000,
    ],
    ids=["brackets", "nested", "union", "missing", "size", "symbols", "long"],
)
async def test_hostile_schemas_are_rejected_in_bounded_time(served: Served, schema: str) -> None:
    began = time.perf_counter()
    found = await served.ask("POST", "/subjects/s/versions", {"schema": schema})
    assert found.refusal == (422, 42201)
    assert time.perf_counter() - began < SLOW_SECONDS
    assert len(found.body) < 8_192


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/subjects/a/b/c/d/e/f", 404),
        ("GET", "//", 200),
        ("GET", "/" + "a/" * 2_000, 404),
        ("GET", "/schemas/ids/x", 404),
        ("GET", "/schemas/ids/99999999999999999999", 404),
        ("GET", "/schemas/ids/-1", 404),
        ("GET", "/schemas/guids/x", 404),
        ("GET", "/subjects/innocent/versions/1e3", 422),
        ("GET", "/subjects/innocent/versions/99999999999", 422),
        ("GET", "/subjects/%zz/versions", 404),
        ("GET", "/subjects/%ff%fe/versions", 404),
        ("GET", "/subjects/%00/versions", 422),
        ("GET", "/subjects/%ed%a0%80/versions", 404),
        ("GET", "/subjects?offset=1e400", 422),
        ("GET", "/subjects?limit=" + "9" * 200, 200),
        ("GET", "/schemas/ids/1?subject=%00", 422),
        ("GET", "/contexts/x", 200),
        ("PATCH", "/subjects", 405),
        ("POST", "/subjects", 405),
        ("PUT", "/schemas/ids/1", 405),
        ("DELETE", "/schemas", 405),
        ("DELETE", "/", 422),
        ("OPTIONS", "/subjects", 405),
    ],
)
async def test_odd_paths_and_methods_get_an_answer(
    served: Served, method: str, path: str, status: int
) -> None:
    found = await served.ask(method, path)
    assert found.status == status, found.body
    if status != 200:
        assert set(found.value) == {"error_code", "message"}


async def test_two_lengths_are_rejected(served: Served) -> None:
    head = HEAD + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n"
    status, _ = await send(served, head, 1, b"0\r\n\r\n")
    assert status == 400


async def test_clients_that_leave_do_no_harm(served: Served) -> None:
    for _ in range(20):
        _, writer = await asyncio.open_connection(*served.address)
        writer.write(HEAD + b"content-length: 1000\r\n\r\n{")
        await writer.drain()
        writer.transport.abort()


async def test_chains_and_fans_of_references_are_bounded(served: Served) -> None:
    """Each schema refers to the one before; the limit is that of all indirect references."""
    body: dict[str, Any] = {"schema": '"int"', "references": []}
    body["references"] = [
        {"name": f"n{number}", "subject": "innocent", "version": 1} for number in range(501)
    ]
    found = await served.ask("POST", "/subjects/s/versions", body)
    assert found.refusal == (422, 42201)
    assert "500" in found.value["message"]
