"""Host agent for tests, with a socket file in a temporary directory and a choice of sinks.

The agent runs in a thread of this process, with its own event loop, and drains when its context
ends.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from penstock.apps.host.wiring import build_agent, configure_host
from penstock.apps.process.configuration import Given
from penstock.apps.process.wiring import address
from penstock.testing.loop_thread import End, LoopThread

if TYPE_CHECKING:
    from penstock.host import HostClient


class Agent:
    """Running agent, as a context manager.

    Args:
        bootstrap: the brokers of the log sink; without them the agent has the memory sink.
        settings: settings of the agent by their dotted names.
        http: whether the HTTP front is started too.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        http: bool = False,
    ) -> None:
        # Socket paths have a short limit: create the directory under the temporary directory.
        self.directory = Path(tempfile.mkdtemp(prefix="penstock-"))
        self.socket = self.directory / "host.sock"
        self.http_url = ""
        self._settings = {
            "host.sink": "memory" if bootstrap is None else "log",
            "bootstrap.servers": bootstrap or "127.0.0.1:9092",
            "host.drain.timeout.ms": 5_000,
            **({"host.http.listener": "127.0.0.1:0"} if http else {}),
            **(settings or {}),
            "host.socket.path": str(self.socket),
        }
        self._thread: LoopThread[str] | None = None

    def __enter__(self) -> Agent:
        try:
            return self.start()
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def start(self) -> Agent:
        """Start the agent on its socket file.

        Raises:
            PenstockError: the agent cannot start.
        """
        self._thread = LoopThread("agent", self._begin)
        http = self._thread.start()
        scheme = "https" if self._settings.get("host.http.security.protocol") == "SSL" else "http"
        self.http_url = "" if http == "-" else f"{scheme}://{http}"
        return self

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def client(self, **options: Any) -> HostClient:
        """Return a new producer of this agent; the caller closes it."""
        from penstock.host import HostClient

        return HostClient(self.socket, **options)

    async def _begin(self) -> tuple[str, End]:
        flags = {name: Given(value, "settings") for name, value in self._settings.items()}
        agent = build_agent(configure_host(environment={}, flags=flags))
        await agent.start()
        return address(agent.http.address if agent.http is not None else None), agent.stop
