"""Broker for tests that starts in a fraction of a second and leaves no files.

By default it runs in a thread of this process, with its own event loop. With `process=True` it is
`python -m penstock serve` in a child process, which can be killed. The system chooses the ports, so
any number of brokers can run side by side. A restart keeps the ports, and on Linux no other process
gets them before the context ends.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Final

from penstock.apps.process.configuration import Given, configure
from penstock.apps.process.wiring import address
from penstock.apps.serve.running import started
from penstock.base.errors import UnavailableError
from penstock.testing.loop_thread import END_TIMEOUT_SECONDS, START_TIMEOUT_SECONDS, End, LoopThread

if TYPE_CHECKING:
    from penstock.broker.server import BrokerServer
    from penstock.client import Client, TopicMetadata

_READY = re.compile(r"penstock ready kafka=(\S+) admin=(\S+)(?: registry=(\S+))?")
_LOOPBACK: Final = "127.0.0.1:0"


class Broker:
    """Running broker, as a context manager.

    Args:
        settings: settings of broker and storage by their dotted names; `listeners` are additional
            to the plaintext listener, whose address is `bootstrap`.
        directory: the data directory; by default a temporary one, which is removed at the end.
        process: whether the broker runs in a child process.
        admin: whether the admin HTTP interface is started too.
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        directory: Path | str | None = None,
        process: bool = False,
        admin: bool = True,
    ) -> None:
        self._settings = {
            "group.initial.rebalance.delay.ms": 0,
            "shutdown.timeout.ms": 2000,
            **(settings or {}),
        }
        self._owned = directory is None
        self.directory = Path(directory or tempfile.mkdtemp(prefix="penstock-broker-"))
        self._in_process = not process
        self._held = ExitStack()
        weakref.finalize(self, self._held.close)  # also if the caller drops it
        self._listener = _held_address(self._held)
        self._admin_listener = _held_address(self._held) if admin else ""
        self._thread: _BrokerThread | None = None
        self._process: _BrokerProcess | None = None
        self.bootstrap = ""
        self.admin_url = ""
        self.registry_address = ""
        """Host and port of the schema registry, if `registry.enable` is true."""

    def __enter__(self) -> Broker:
        try:
            return self.start()
        except BaseException:
            self._discard()
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
            self._discard()

    def start(self) -> Broker:
        """Start the broker, on its earlier ports if it has run before.

        Raises:
            PenstockError: the broker cannot start.
        """
        flags = {name: Given(value, "settings") for name, value in self._settings.items()}
        flags["log.dirs"] = Given(str(self.directory), "directory")
        more = self._settings.get("listeners")
        listeners = [f"PLAINTEXT://{self._listener}", *([str(more)] if more else [])]
        flags["listeners"] = Given(",".join(listeners), "listener")
        flags["admin.listener"] = Given(self._admin_listener, "listener")
        if self._in_process:
            self._thread = _BrokerThread(flags)
            kafka, admin, schemas = self._thread.start()
        else:
            self._process = _BrokerProcess(flags, self.directory)
            kafka, admin, schemas = self._process.start()
        self.bootstrap = self._listener = kafka
        if admin != "-":
            self._admin_listener = admin
            encrypted = self._settings.get("admin.security.protocol") == "SSL"
            self.admin_url = f"{'https' if encrypted else 'http'}://{admin}"
        self.registry_address = schemas
        return self

    def stop(self) -> None:
        """Stop the broker gracefully; its data stays until the context ends."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.stop()
        if self._process is not None:
            process, self._process = self._process, None
            process.stop()

    def restart(self) -> Broker:
        self.stop()
        return self.start()

    def kill(self) -> None:
        """Kill the broker's process with SIGKILL; `start` starts a new one.

        Raises:
            UnavailableError: the broker does not run in a child process.
        """
        if self._process is None:
            raise UnavailableError("only a running Broker(process=True) can be killed")
        process, self._process = self._process, None
        process.kill()

    @property
    def pid(self) -> int | None:
        """Id of the broker's process; None if the broker runs in this process."""
        return None if self._process is None else self._process.pid

    @property
    def server(self) -> BrokerServer | None:
        """Server object of a broker in this process, for use in its own thread only; else None."""
        return None if self._thread is None else self._thread.server

    def client(self, **options: Any) -> Client:
        """Return a new client of this broker; the caller closes it."""
        from penstock.client import Client

        return Client(self.bootstrap, **options)

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> TopicMetadata:
        with self.client() as client:
            return client.create_topic(name, partitions, configs)

    def _discard(self) -> None:
        self._held.close()
        if self._owned:
            shutil.rmtree(self.directory, ignore_errors=True)


class _BrokerThread:
    def __init__(self, flags: Mapping[str, Given]) -> None:
        self._flags = flags
        self._thread = LoopThread("broker", self._begin)
        self.server: BrokerServer | None = None

    def start(self) -> tuple[str, str, str]:
        return self._thread.start()

    def stop(self) -> None:
        self._thread.stop()

    async def _begin(self) -> tuple[tuple[str, str, str], End]:
        configuration = configure(file=None, environment={}, flags=self._flags)
        self.server, registry, ready = await started(configuration)
        server = self.server

        async def stop() -> None:
            if registry is not None:
                await registry.stop()
            await server.stop()

        schemas = "" if ready.schemas is None else address(ready.schemas)
        return (address(ready.kafka), address(ready.admin), schemas), stop


class _BrokerProcess:
    def __init__(self, flags: Mapping[str, Given], directory: Path) -> None:
        self._command = [sys.executable, "-m", "penstock", "serve"]
        for name, given in flags.items():
            self._command += ["-X", f"{name}={_text(given.value)}"]
        self._log_path = directory / "broker.log"
        self._log: IO[bytes] | None = None
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise UnavailableError("the broker's process has not been started")
        return self._process.pid

    def start(self) -> tuple[str, str, str]:
        self._log = self._log_path.open("ab")
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        timer = threading.Timer(START_TIMEOUT_SECONDS, self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            line = self._process.stdout.readline() if self._process.stdout else ""
        finally:
            timer.cancel()
        found = _READY.search(line)
        if found is None:
            self.kill()
            last_lines = self._log_path.read_text(errors="replace").strip().splitlines()[-5:]
            raise UnavailableError("the broker's process did not start: " + " / ".join(last_lines))
        return found.group(1), found.group(2), found.group(3) or ""

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(END_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._finish()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._finish()

    def _finish(self) -> None:
        if self._process is not None:
            self._process.wait(END_TIMEOUT_SECONDS)
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None


def _held_address(held: ExitStack) -> str:
    """Return an address of 127.0.0.1 whose port stays reserved until `held` is closed.

    On Linux a socket is bound to it without listening. A server can then listen on the address, and
    no other process gets the port as a free one. Connections are refused while no server listens.
    On other systems such a socket would block the server; there the port is 0.
    """
    if sys.platform != "linux":
        return _LOOPBACK
    holder = held.enter_context(socket.socket())
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    host, port = holder.getsockname()
    return f"{host}:{port}"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, (list, tuple)) else str(value)
