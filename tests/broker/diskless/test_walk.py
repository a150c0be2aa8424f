"""Files that a produce request to a diskless topic goes through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.broker.test_walks import walk
from tests.broker.wire_client import WireClient, batch

FILES_MAX = 28


async def test_produce(client: WireClient, create: Callable[..., Awaitable[Any]]) -> None:
    await create("t", partitions=1)
    files = await walk(lambda: client.produce("t", batch(b"v")))
    assert len(files) <= FILES_MAX, "\n".join(sorted(files))
