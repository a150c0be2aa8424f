"""A TCP proxy before PostgreSQL that loses answers: a commit whose outcome nobody was told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Literal

Cut = Literal["", "before", "after"]
_COMMIT = b"COMMIT\x00"


class Proxy:
    """Passes bytes on; `cut` says what becomes of the next COMMIT, and is empty again then.

    `before`: the connection ends before the server has it. `after`: the server has answered it,
    and the connection ends before the client has the answer.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.cut: Cut = ""
        self.cuts = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_server, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        silent = asyncio.Event()
        answers = asyncio.create_task(self._answers(to_server, writer, silent))
        try:
            while data := await reader.read(1 << 16):
                if self.cut and _COMMIT in data:
                    cut, self.cut = self.cut, ""
                    self.cuts += 1
                    if cut == "after":
                        silent.set()
                        server_writer.write(data)
                        await answers
                    break
                server_writer.write(data)
        finally:
            answers.cancel()
            for one in (writer, server_writer):
                one.close()
                with suppress(OSError):
                    await one.wait_closed()

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
