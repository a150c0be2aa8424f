"""Writers on scripted files and topics that fail, reject or wait."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.base.crc import crc32c
from penstock.base.errors import (
    PenstockError,
)
from penstock.base.files import MACHINE_FILES, Files
from penstock.base.metrics import Sample
from penstock.outbox.pointer import OutboxRecord, decode_pointer
from penstock.outbox.settings import OutboxSettings
from penstock.outbox.writer.writer import OutboxWriter
from tests.faulty_files import FaultyFiles

AT_MS = 1_779_632_400_000
CONTENT = b"content " * 1000
WAIT_SECONDS = 10.0


class Topic:
    """Topic in memory that fails, rejects or waits as scripted, and checks pointers' files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records: list[OutboxRecord] = []
        self.error: PenstockError | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()
        self.started = self.stopped = False

    async def start(self) -> None:
        self.started = True

    async def stop(self, deadline_seconds: float | None = None) -> None:
        self.stopped = True

    async def publish(self, records: Sequence[OutboxRecord]) -> None:
        self.entered.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        for record in records:
            if record.headers[0][1] == b"pointer":
                pointer = decode_pointer(record.value)
                content = (self.root / pointer.file_path).read_bytes()
                assert crc32c(content) == pointer.crc32c, "published before it was there"
            self.records.append(record)

    def samples(self) -> Iterator[Sample]:
        yield from ()


class GatedFiles(FaultyFiles):
    """File calls that block every write to a file until its gate is opened."""

    def __init__(self) -> None:
        super().__init__(self._hold)
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.holding = 0

    def _hold(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "write":
            self.holding += 1
            self.entered.set()
            assert self.gate.wait(WAIT_SECONDS)


class FailingFiles(FaultyFiles):
    """File calls of which the first of a name fail, except the opening of the root."""

    def __init__(self, name: str, number: int, times: int) -> None:
        super().__init__(self._fail)
        self.failing = name
        self.number = number
        self.left = times
        self.created: list[str] = []

    def _fail(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "create":
            self.created.append(arguments[0])
        if number and name == self.failing and self.left:
            self.left -= 1
            if name == "close":  # Linux has closed, whatever it says.
                os.close(arguments[0])
            raise OSError(self.number, os.strerror(self.number))


@asynccontextmanager
async def running(
    root: Path, files: Files = MACHINE_FILES, topic: Topic | None = None, **settings: Any
) -> AsyncIterator[OutboxWriter]:
    chosen = {"backoff_first_ms": 1, "backoff_max_ms": 2, **settings}
    writer = OutboxWriter(OutboxSettings(root=str(root), **chosen), publisher=topic, files=files)
    await writer.start()
    try:
        yield writer
    finally:
        if isinstance(files, GatedFiles):
            files.gate.set()
        await writer.stop()
        counts = writer.counts.of("p")
        assert (counts.in_flight_bytes, counts.in_flight_operations, counts.pending) == (0, 0, 0)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not holds():
            await asyncio.sleep(0.001)


def data_files(root: Path) -> list[bytes]:
    assert not list(root.rglob("data.bin.tmp*"))
    return [path.read_bytes() for path in sorted(root.rglob("data.bin"))]
