"""Brokers under measurement: a temporary one in a child process, or a running one.

A temporary broker is `penstock serve` with default settings, on a free port of 127.0.0.1, in a
temporary directory. Environment variables that set settings of brokers are not passed to it. Its
own settings may contain secrets, such as options of an object store. They are therefore in a file
that only its owner may read, and not on its command line.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.apps.loads.figures import cpu_seconds
from penstock.apps.process.configuration import ENVIRONMENT_PREFIXES, dotted, known_names
from penstock.apps.process.daemon import deferred
from penstock.base.errors import PenstockError, UnavailableError
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS

if TYPE_CHECKING:
    from penstock.client import Client

START_TIMEOUT_SECONDS: Final = 30.0
STOP_TIMEOUT_SECONDS: Final = 10.0
STDERR_BYTES_SHOWN: Final = 500
_READY: Final = re.compile(rb"penstock ready kafka=(\S+) admin=(\S+)")
_LISTENING: Final = "0A"


class OwnBroker:
    """Temporary broker: `penstock serve` as a child process, which `stop` ends.

    Its admin interface is off, unless the settings have `admin.listener`.
    """

    def __init__(self, directory: Path, settings: Mapping[str, object]) -> None:
        self._said = directory / "stderr"
        told = directory / "broker.toml"
        told_all = {"admin.listener": "", **settings}
        lines = [f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in told_all.items()]
        told.touch(mode=0o600)
        told.write_text("".join(lines))
        command = [sys.executable, "-m", "penstock", "serve", "--config", str(told)]
        command += ["--data-dir", str(directory / "broker"), "--listener", "127.0.0.1:0"]
        self.admin_url = ""
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                command,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                process_group=0,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self) -> str:
        """Wait until clients can connect, set `admin_url`, and return the address for Kafka
        clients.

        Raises:
            UnavailableError: the process ended, or was not ready within `START_TIMEOUT_SECONDS`.
        """
        if self._process.stdout is None:
            raise UnavailableError("the broker's output cannot be read")
        line, deadline = b"", SYSTEM_CLOCK.monotonic() + START_TIMEOUT_SECONDS
        while not line.endswith(b"\n"):
            left = max(0.0, deadline - SYSTEM_CLOCK.monotonic())
            if not wait([self._process.stdout.fileno()], left):
                raise UnavailableError(
                    f"the temporary broker did not start within {START_TIMEOUT_SECONDS:g} s"
                )
            piece = os.read(self._process.stdout.fileno(), 4096)
            if not piece:
                self._process.wait(STOP_TIMEOUT_SECONDS)
                raise UnavailableError(f"the temporary broker did not start: {self.failure()}")
            line += piece
        found = _READY.search(line)
        if found is None:
            raise UnavailableError(
                f"the temporary broker did not start: unexpected output {line[:100]!r}"
            )
        self.admin_url = f"http://{found[2].decode()}"
        return found[1].decode()

    def failure(self) -> str:
        """Return the exit status and the last line of stderr; empty while the process runs."""
        status = self._process.poll()
        if status is None:
            return ""
        said = self._said.read_text(errors="replace").strip()[-STDERR_BYTES_SHOWN:]
        last = said.splitlines()[-1:] or ["it printed no error"]
        return f"it ended with status {status}: {last[0].removeprefix('penstock: ')}"

    def stop(self) -> None:
        """Stop the process with SIGTERM, or kill it after `STOP_TIMEOUT_SECONDS`."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()


@contextmanager
def own_broker(directory: Path, settings: Mapping[str, object]) -> Iterator[tuple[OwnBroker, str]]:
    """Run a temporary broker during a context; yield it with its address for Kafka clients.

    Raises:
        UnavailableError: the broker does not start, or ends during the context.
    """
    broker = None
    try:
        with deferred():
            broker = OwnBroker(directory, settings)
        yield broker, broker.ready()
    except PenstockError as error:
        failure = "" if broker is None else broker.failure()
        if not failure or failure in str(error):
            raise
        raise UnavailableError(
            f"the temporary broker ended during the measurement: {failure}"
        ) from error
    finally:
        if broker is not None:
            broker.stop()


def _environment() -> dict[str, str]:
    """Return this process's environment without variables that set settings of brokers."""
    names = known_names()

    def is_setting(variable: str) -> bool:
        prefixes = [prefix for prefix in ENVIRONMENT_PREFIXES if variable.startswith(prefix)]
        return any([dotted(variable.removeprefix(prefix)) in names for prefix in prefixes])

    return {name: value for name, value in os.environ.items() if not is_setting(name)}


@dataclass(slots=True)
class Bed:
    """Broker under measurement, with a client and temporary topics.

    `connect` creates further clients. `pid` is the broker's process, None if this process cannot
    see it. `timeout_ms` limits each wait for the broker. Names of topics begin with `prefix`.
    """

    bootstrap: str
    client: Client
    connect: Callable[[], Client]
    pid: int | None
    timeout_ms: int
    prefix: str = field(
        default_factory=lambda: f"penstock-bench-{SYSTEM_RANDOMNESS.uuid().hex[:8]}"
    )
    _count: int = 0
    _topics: set[str] = field(default_factory=set)

    def delete_topics(self) -> None:
        """Delete the temporary topics that still exist because a signal interrupted `topic`.

        Raises:
            PenstockError: a topic cannot be deleted.
        """
        for name in sorted(self._topics):
            self._delete(name)

    @contextmanager
    def topic(self, partitions: int = 1, configs: Mapping[str, str] | None = None) -> Iterator[str]:
        """Create a topic, yield its name, and delete it at the end of the context.

        Raises:
            PenstockError: the topic cannot be created or deleted.
        """
        self._count += 1
        name = f"{self.prefix}-{self._count}"
        self._topics.add(name)
        try:
            with deferred():  # an interrupted creation could take effect after the deletion
                self.client.create_topic(name, partitions, configs)
            yield name
        finally:
            self._delete(name)

    def _delete(self, name: str) -> None:
        from penstock.client import UnknownTopic

        if name not in self._topics:
            return
        try:
            with deferred(), suppress(UnknownTopic):
                self._topics.remove(name)
                self.client.delete_topic(name)
        except PenstockError as error:
            error.add_note(
                f"topic {name} may remain; delete it with `penstock topic delete {name}`"
            )
            raise

    def cpu_seconds(self) -> float | None:
        """Return the broker's CPU time so far, in seconds; None if its process is not visible."""
        return None if self.pid is None else cpu_seconds(self.pid)


@dataclass(frozen=True, slots=True)
class Seen:
    """Result of the search for a running broker's process, whose CPU time is measured.

    `here` is true if the broker runs on this host. `pid` is the id of its process, None if this
    process cannot see it; `why_not` then has the reason.
    """

    here: bool
    pid: int | None
    why_not: str = ""


def look_for(client: Client) -> Seen:
    nodes = list(client.metadata([]).nodes.values())
    if len(nodes) != 1:
        return Seen(False, None, f"the cluster has {len(nodes)} brokers")
    node = nodes[0]
    if not _is_of_this_host(node.host):
        return Seen(False, None, f"the broker is at {node.address}, not on this host")
    pid = _listener(node.port)
    if pid is None:
        return Seen(
            True, None, "this user cannot see the process that listens on the broker's port"
        )
    if pid == os.getpid():
        return Seen(True, None, "the broker runs in the process that measures it")
    return Seen(True, pid)


def _is_of_this_host(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        with suppress(OSError), closing(socket.socket(family, kind, protocol)) as probe:
            probe.bind(address)
            return True
    return False


def _listener(port: int) -> int | None:
    """Return the id of the Penstock process that listens on a TCP port of this host, if visible."""
    inodes = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*") if inodes else ():
        with suppress(OSError):
            if b"penstock" in (process / "cmdline").read_bytes() or process.name == str(
                os.getpid()
            ):
                for file in (process / "fd").iterdir():
                    with suppress(OSError):
                        if os.readlink(file) in inodes:
                            return int(process.name)
    return None
