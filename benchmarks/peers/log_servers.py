"""Redis, NATS and RabbitMQ as peers: Debian's programs, on loopback, each in an empty directory.

    with RedisServer("everysec") as redis:
        print(redis.port, redis.pid, redis.start_seconds)

The packages are unpacked into the cache, and nothing is installed. Settings are the programs' own
defaults, except for directories, ports, and the durability that a caller chooses.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal, Self

from compat.daemons import Daemon
from compat.parts import debian
from tests.ports import free_port

START_SECONDS = 60
PROBE_SECONDS = 0.001


class LogServer(ABC):
    """Server with a directory of its own; as a context manager, it runs."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.directory = Path(
            self._stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-"))
        )
        self.port = free_port()
        self.start_seconds = 0.0
        """From the start of the process until its port accepts connections."""
        self.pid = 0

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the program and its arguments."""

    def environment(self) -> Mapping[str, str]:
        """Return the variables that the program needs besides the machine's."""
        return {}

    def __enter__(self) -> Self:
        """Start the program, and wait until its port accepts connections."""
        command = self.command()
        daemon = Daemon(command, self.directory / "output", environment=self.environment())
        begun = time.perf_counter()
        self.pid = self._stack.enter_context(daemon).pid
        while not self._accepts():
            if time.perf_counter() > begun + START_SECONDS or not daemon.alive:
                output = daemon.log()
                self.__exit__()
                raise RuntimeError(f"{command[0]} does not start:\n{output}")
            time.sleep(PROBE_SECONDS)
        self.start_seconds = time.perf_counter() - begun
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the program, and remove its files."""
        self._stack.close()

    def _accepts(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True
        return False


class RedisServer(LogServer):
    """Redis with its append-only file, which `appendfsync` syncs each second or before answers."""

    def __init__(self, appendfsync: Literal["everysec", "always"]) -> None:
        super().__init__()
        self._appendfsync = appendfsync

    def command(self) -> Sequence[str]:
        """Return the program with an append-only file and without snapshots."""
        return [
            *(str(debian("redis-server") / "usr" / "bin" / "redis-server"), "--save", ""),
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)),
            *("--appendonly", "yes", "--appendfsync", self._appendfsync),
        ]

    def environment(self) -> Mapping[str, str]:
        """Return the path of the libraries from the package."""
        libraries = debian("redis-server").glob("usr/lib/*-linux-gnu*")
        return {"LD_LIBRARY_PATH": ":".join(map(str, libraries))}


class NatsServer(LogServer):
    """NATS with JetStream in files, which it syncs each two minutes by default."""

    def command(self) -> Sequence[str]:
        """Return the program with JetStream in the directory."""
        program = debian("nats-server") / "usr" / "sbin" / "nats-server"
        address = ("--addr", "127.0.0.1", "--port", str(self.port))
        return [str(program), *address, "--jetstream", "--store_dir", str(self.directory)]


class RabbitServer(LogServer):
    """RabbitMQ with its plugin of streams, whose port `port` is."""

    def __init__(self) -> None:
        super().__init__()
        self._root = debian("rabbitmq-server") / "usr" / "lib"
        self._erlang = self._root / "erlang"
        [self._version] = (self._root / "rabbitmq" / "lib").glob("rabbitmq_server-*")
        [runtime] = self._erlang.glob("erts-*")
        self._programs = runtime / "bin"
        self._names_port = free_port()

    def __enter__(self) -> Self:
        """Start Erlang's name server and the broker."""
        own = self.directory / "bin" / "erl"
        own.parent.mkdir()
        own.write_text(f'#!/bin/sh\nexec "{self._programs}/erlexec" "$@"\n')
        own.chmod(0o755)
        (self.directory / "plugins").write_text("[rabbitmq_stream].\n")
        (self.directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{free_port()}\n"
            f"stream.listeners.tcp.1 = 127.0.0.1:{self.port}\n"
        )
        names = [str(self._programs / "epmd"), "-address", "127.0.0.1"]
        names += ["-port", str(self._names_port)]
        self._stack.enter_context(Daemon(names, self.directory / "names"))
        return super().__enter__()

    def command(self) -> Sequence[str]:
        """Return the broker's script, which becomes Erlang's virtual machine."""
        return [str(self._version / "sbin" / "rabbitmq-server")]

    def environment(self) -> Mapping[str, str]:
        """Return the places of Erlang and of the broker's files."""
        place = self.directory
        return {
            "PATH": f"{place / 'bin'}:{self._programs}:{os.environ.get('PATH', '')}",
            "ROOTDIR": str(self._erlang),
            "BINDIR": str(self._programs),
            "EMU": "beam",
            "PROGNAME": "erl",
            "HOME": str(place),
            "ERL_EPMD_PORT": str(self._names_port),
            "RUNNING_UNDER_SYSTEMD": "1",  # the script is replaced by the virtual machine
            "RABBITMQ_NODENAME": "penstock@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(place / "data"),
            "RABBITMQ_LOG_BASE": str(place / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(place / "rabbitmq.conf"),
        }
