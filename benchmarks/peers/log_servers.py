"""Redis, NATS and RabbitMQ as peers: Debian's programs, on loopback, each in an empty directory.

    with RedisServer("everysec") as redis:
        print(redis.port, redis.pid, redis.start_seconds)

The packages are unpacked into the cache, and nothing is installed. Settings are the programs' own
defaults, except for directories, ports, and the durability that a caller chooses.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal, Self

from compat.parts import debian
from tests.ports import free_port

START_SECONDS = 60
STOP_SECONDS = 20
PROBE_SECONDS = 0.001


class LogServer:
    """Running server with a directory of its own."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.directory = Path(
            self._stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-"))
        )
        self.port = free_port()
        self.start_seconds = 0.0
        """From the start of the process until its port accepts connections."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    def command(self) -> Sequence[str]:
        """Return the program and its arguments."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Return the variables that the program needs besides the machine's."""
        return {}

    def __enter__(self) -> Self:
        """Start the program, and wait until its port accepts connections."""
        environment = {**os.environ, **self.environment()}
        command = self.command()
        log = self._stack.enter_context((self.directory / "output").open("wb"))
        begun = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            env=environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        while not self._accepts():
            late = time.perf_counter() > begun + START_SECONDS
            if late or self._process.poll() is not None:
                output = (self.directory / "output").read_text(errors="replace")
                self.__exit__()
                raise RuntimeError(f"{command[0]} does not start:\n{output[-2000:]}")
            time.sleep(PROBE_SECONDS)
        self.start_seconds = time.perf_counter() - begun
        return self

    def __exit__(self, *exception: object) -> None:
        """End the program, by force if it does not end in time, and remove its files."""
        if self._process is not None:
            _end(self._process)
            self._process = None
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
        process = subprocess.Popen([*names, "-port", str(self._names_port)])
        self._stack.callback(_end, process)
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


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
