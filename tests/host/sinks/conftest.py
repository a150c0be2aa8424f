"""A broker for the log sink, and senders for the outbox sink."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
import uvloop

from penstock.host.sinks.log import LogSink, LogSinkOptions
from penstock.testing import Broker


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that agents run on: unlike asyncio's it writes views without copying them."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def log_broker() -> Iterator[Broker]:
    with Broker(admin=False) as broker:
        yield broker


@pytest.fixture
def topic(log_broker: Broker) -> Callable[..., str]:
    """Creates topics with names of their own."""

    def create(partitions: int = 1, **configs: str) -> str:
        name = f"topic-{uuid4().hex[:8]}"
        named = {key.replace("_", "."): value for key, value in configs.items()}
        log_broker.create_topic(name, partitions, named)
        return name

    return create


@asynccontextmanager
async def log_sink(
    bootstrap: str, *, stop_seconds: float = 30, **options: Any
) -> AsyncIterator[LogSink]:
    """A running log sink."""
    sink = LogSink(LogSinkOptions(bootstrap=bootstrap, **options))
    await sink.start()
    try:
        yield sink
    finally:
        await sink.stop(stop_seconds)


class Sender:
    """An outbox in memory: a batch that is there already is found again, as in files."""

    def __init__(self) -> None:
        self.payloads: dict[tuple[str, str], bytes] = {}
        self.calls: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def send(self, payload: bytes, **fields: Any) -> object:
        self.calls.append(fields)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        key = (fields["partition_id"], fields["batch_id"])
        if self.payloads.setdefault(key, payload) != payload:
            raise ValueError("another payload of the same batch")
        return key
