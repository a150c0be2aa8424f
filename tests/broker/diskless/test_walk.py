"""Number of files that a produce request to a diskless topic goes through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.broker.walks import walk_of
from tests.broker.wire_client import WireClient, batch

FILES_MAX = 34


async def test_a_produce_request_goes_through_few_files(
    client: WireClient, create: Callable[..., Awaitable[Any]]
) -> None:
    await create("t")
    walk = await walk_of(lambda: client.produce("t", batch(b"v")))
    assert "diskless/writing/writer.py" in walk
    assert len(walk) <= FILES_MAX, walk
