"""HTTP page of a process whose main thread is blocked, such as by Spark's calls.

The listener runs on an event loop in its own thread.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.base.errors import InvalidError, UnavailableError
from penstock.base.http_listener import HttpListener

if TYPE_CHECKING:
    from starlette.applications import Starlette

CONNECTIONS_MAX: Final = 32
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 15.0


class PageUnavailable(InvalidError):
    """Failure of a page to listen on its address."""

    code: ClassVar[str] = "invalid_config"


class HttpPage:
    """HTTP listener with an event loop in its own thread."""

    def __init__(self, app: Starlette, address: tuple[str, int]) -> None:
        self._app = app
        self._asked = address
        self._thread = threading.Thread(target=self._run, name="http page", daemon=True)
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._address: tuple[str, int] | None = None
        self._error: OSError | None = None

    def start(self) -> tuple[str, int]:
        """Start the thread and listen; return the bound address with its actual port.

        Raises:
            PageUnavailable: the address cannot be bound.
            UnavailableError: the thread did not start within `START_SECONDS`.
        """
        self._thread.start()
        self._started.wait(START_SECONDS)
        if self._error is not None:
            host, port = self._asked
            raise PageUnavailable(
                f"cannot listen on {host}:{port}: {self._error.strerror or self._error}; "
                "choose another with --listen HOST:PORT (port 0: any)"
            )
        if self._address is None:
            raise UnavailableError(f"the HTTP page did not start in {START_SECONDS:.0f} s")
        return self._address

    def stop(self) -> None:
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        listener = HttpListener()
        self._address = await listener.start(
            self._app, self._asked, connections_max=CONNECTIONS_MAX
        )
        # Set only now: if listening fails, the loop is closed and accepts no calls.
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._started.set()
        await self._stop.wait()
        await listener.stop()
