"""A TCP proxy in front of PostgreSQL that loses answers, such as those of a COMMIT."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Literal

Cut = Literal["", "before", "after", "late"]
_COMMIT = b"COMMIT\x00"
_BEGIN = b"BEGIN"
_SENT_BYTES: Final = 64 << 10

LATE_SECONDS: Final = 2.5
"""Longer than PostgreSQL lets a transaction of ours idle."""


class Proxy:
    """Passes bytes on; `cut` says what becomes of the next COMMIT, and is empty again then.

    `before`: the connection ends before the server has it. `after`: the server has answered it,
    and the connection ends before the client has the answer. `late`: it comes when the server has
    given the transaction up.

    With `only` the next COMMIT of a transaction in which the client has sent this is meant. With
    `leaves` the cut is the beginning of an absence, which `come_back` ends: all connections are
    lost, and new ones too, of which `refused` were tried.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.cut: Cut = ""
        self.cuts = 0
        self.only = b""
        self.leaves = False
        self.refused = 0
        self.port = 0
        self._away = False
        self._writers: set[asyncio.StreamWriter] = set()

    def come_back(self) -> None:
        """End an absence."""
        self._away = self.leaves = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._away:
            self.refused += 1
            writer.close()
            return
        to_server, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.add(writer)
        silent = asyncio.Event()
        answers = asyncio.create_task(self._answers(to_server, writer, silent))
        sent = b""
        try:
            while data := await reader.read(1 << 16):
                sent = data if _BEGIN in data[:16] else (sent + data)[-_SENT_BYTES:]
                if self.cut and _COMMIT in data and self.only in sent:
                    cut, self.cut = self.cut, ""
                    self.cuts += 1
                    if cut == "after":
                        silent.set()
                        server_writer.write(data)
                        await answers
                    if cut != "late":
                        self._leave()
                        break
                    await asyncio.sleep(LATE_SECONDS)
                server_writer.write(data)
        finally:
            self._writers.discard(writer)
            answers.cancel()
            for stream in (writer, server_writer):
                stream.close()
                with suppress(OSError):
                    await stream.wait_closed()

    def _leave(self) -> None:
        self._away = self.leaves
        for writer in list(self._writers) if self._away else ():
            writer.transport.abort()

    async def _answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silent: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if silent.is_set():
                    return
                writer.write(data)
        writer.close()


@asynccontextmanager
async def proxy_to(port: int) -> AsyncIterator[Proxy]:
    """A proxy before a loopback port."""
    proxy = Proxy(port)
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            handlers.add(task)
            task.add_done_callback(handlers.discard)
        with suppress(OSError):
            await proxy.serve(reader, writer)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for task in list(handlers):
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
