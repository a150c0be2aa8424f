"""Files that a request goes through, from its frame on the socket to its response."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import penstock
from tests.broker.test_transactions import add, begin, completed, end
from tests.broker.wire_client import WireClient, batch

SOURCE = f"{Path(penstock.__file__).parent}{os.sep}"
TESTS = f"{Path(__file__).parent.parent}{os.sep}"
PRODUCE_FILES_MAX = 16
FETCH_FILES_MAX = 18
END_TRANSACTION_FILES_MAX = 30
ROUNDS = 5
"""Requests before the one that is traced, which fill caches."""


class Walk:
    """Files of the package that run on the broker's side."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(SOURCE):
            inside = name.removeprefix(SOURCE)
            if inside not in self.files and not inside.startswith("base/") and not _of_test(frame):
                self.files.add(inside)


def _of_test(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(TESTS):
            return True
        frame = frame.f_back
    return False


async def walk(
    request: Callable[[], Awaitable[Any]], before: Callable[[], Awaitable[Any]] | None = None
) -> set[str]:
    """Return the files of one request; `before` runs ahead of each, untraced."""
    found = Walk()
    for number in range(ROUNDS):
        if before is not None:
            await before()
        traced = number == ROUNDS - 1
        if traced:
            threading.setprofile(found)
            sys.setprofile(found)
        try:
            await request()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return found.files


async def test_produce(client: WireClient) -> None:
    await client.create("t")
    files = await walk(lambda: client.produce("t", batch(b"v")))
    assert len(files) <= PRODUCE_FILES_MAX, "\n".join(sorted(files))


async def test_fetch(client: WireClient) -> None:
    await client.create("t")
    await client.produce("t", batch(b"v"))
    files = await walk(lambda: client.fetch("t"))
    assert len(files) <= FETCH_FILES_MAX, "\n".join(sorted(files))


async def test_end_of_a_transaction(client: WireClient) -> None:
    await client.create("t")
    producer = await begin(client, "id", version=3)

    async def send() -> None:
        await add(client, "id", producer, [0])

    async def request() -> None:
        answer = await end(client, "id", producer, commit=True, version=3)
        assert answer.error_code == 0
        await completed(client, "id")

    files = await walk(request, send)
    assert len(files) <= END_TRANSACTION_FILES_MAX, "\n".join(sorted(files))
