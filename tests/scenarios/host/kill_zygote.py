"""Forks agents and producers that have everything imported already, so that thousands are cheap.

    python -m tests.scenarios.host.kill_zygote

reads a command a line on its standard input, as JSON, and answers `{"pid": …}`; when a child ends,
it says `{"exit": pid, "status": …}`, which is -9 for one that was killed. Children die with it.

The agents and producers are the real ones, on uvloop and with threads, over real sockets. The
agent's sink appends each payload to a file, and completes it in a later turn of the loop: accepted
payloads are in the file, however the process is killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import uvloop

from penstock.host.client.blocking import HostClient
from penstock.host.client.futures import PublishFuture
from penstock.host.port import (
    ACCEPTED,
    PENDING,
    ChunkFormat,
    Chunks,
    Completion,
    Introduction,
    Verdict,
)
from penstock.host.server.agent import HostAgent
from penstock.host.server.settings import HostSettings
from penstock.host.sinks.log import LogSink, LogSinkOptions

PR_SET_PDEATHSIG = 1
STOP = (signal.SIGTERM,)
TOPIC = "killed"
LENGTH_BYTES = 4
PATIENCE_SECONDS = 60.0


class FileSink:
    """Appends each chunk, with its length before it, to a file, then completes it."""

    name = "file"
    stands_on = ""
    frame_bytes_max = 4 << 20

    def __init__(self, path: str, fuse: Fuse | None = None) -> None:
        self._path = path
        self._fuse = fuse or Fuse(-1)
        self._pending: list[tuple[Chunks, Completion]] = []

    @property
    def retained_bytes(self) -> int:
        return sum(len(chunks.payload) for chunks, _ in self._pending)

    async def start(self) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    async def stop(self, deadline_seconds: float) -> None:
        self._complete()
        os.close(self._fd)

    async def check(self) -> None:
        pass

    async def introduce(self, producer_id: int, topics: Sequence[str]) -> Introduction:
        await asyncio.sleep(0)
        if producer_id < 0:
            producer_id = int.from_bytes(os.urandom(7))
        return Introduction(producer_id=producer_id, partitions=dict.fromkeys(topics, 1))

    def accept(self, chunks: Chunks, complete: Completion) -> Verdict:
        assert chunks.format is ChunkFormat.OPAQUE
        chunks.keep()
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._complete)
        self._pending.append((chunks, complete))
        return PENDING

    def _complete(self) -> None:
        pending, self._pending = self._pending, []
        for chunks, complete in pending:
            for at, size in zip(chunks.offsets.tolist(), chunks.lengths.tolist(), strict=True):
                record = size.to_bytes(LENGTH_BYTES) + bytes(chunks.payload[at : at + size])
                half = len(record) // 2
                for part in (record[:half], record[half:]):
                    self._fuse.step()
                    while part:
                        part = part[os.write(self._fd, part) :]
            self._fuse.step()
            chunks.release()
            complete(ACCEPTED)


class Fuse:
    """Kills this process at the step that it is set to; -1 is never."""

    def __init__(self, die_at: int) -> None:
        self._left = die_at

    def step(self) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    @property
    def last(self) -> bool:
        """Whether the next step is the one."""
        return self._left == 0


class FusedSocket(socket.socket):
    """A connection each of whose system calls has a step before it and one after it, and each
    send one in its middle."""

    fuse: Fuse

    def recv_into(self, *arguments: Any, **options: Any) -> int:
        self.fuse.step()
        received = super().recv_into(*arguments, **options)
        self.fuse.step()
        return received

    def recvmsg(self, *arguments: Any, **options: Any) -> Any:
        self.fuse.step()
        received = super().recvmsg(*arguments, **options)
        self.fuse.step()
        return received

    def send(self, data: Any, *arguments: Any) -> int:
        self.fuse.step()
        if self.fuse.last:
            super().send(memoryview(data)[: len(data) // 2], *arguments)
        self.fuse.step()
        sent = super().send(data, *arguments)
        self.fuse.step()
        return sent


class PatientAgent(HostAgent):
    """An agent that drains until its deadline: a producer that the relay holds up is not idle."""

    def _close_idle(self, now_ms: float) -> None:
        return


class FusedAgent(PatientAgent):
    """An agent whose connections and sink burn one fuse."""

    def __init__(self, settings: HostSettings, file: str, die_at: int) -> None:
        self.fuse = Fuse(die_at)
        super().__init__(settings, FileSink(file, self.fuse))

    def _welcome(self, accepted: socket.socket) -> None:
        fused = FusedSocket(fileno=accepted.detach())
        fused.fuse = self.fuse
        super()._welcome(fused)


def run_agent(path: str, file: str, die_at: int = -1) -> None:
    async def serve() -> None:
        settings = HostSettings(socket_path=path, drain_timeout_ms=30_000)
        fused = die_at >= 0
        await until_stopped(
            FusedAgent(settings, file, die_at) if fused else PatientAgent(settings, FileSink(file))
        )

    uvloop.run(serve())


def run_log_agent(path: str, bootstrap: str) -> None:
    async def serve() -> None:
        settings = HostSettings(socket_path=path, drain_timeout_ms=30_000)
        await until_stopped(HostAgent(settings, LogSink(LogSinkOptions(bootstrap=bootstrap))))

    uvloop.run(serve())


async def until_stopped(agent: HostAgent) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)
    await agent.start()
    await stop.wait()
    await agent.stop()


def run_producer(
    path: str, log: str, payloads: list[list[str]], size: int, together: bool, linger: bool
) -> None:
    """Publish frames of chunks, each padded to `size`, and log how each frame ends.

    With `together` all are published at once, otherwise each waits for the one before it. With
    `linger` it stays until it is killed.
    """
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def ended(number: int, future: PublishFuture) -> None:
        error = future.exception()
        words = "accepted" if error is None else f"{type(error).__name__}: {error}"
        os.write(fd, f"{number} {words}\n".encode())

    with HostClient(
        path, topics=(TOPIC,), client_name="killed", connect_timeout_ms=int(PATIENCE_SECONDS * 1000)
    ) as client:
        for number, names in enumerate(payloads):
            chunks = [name.encode().ljust(size, b".") for name in names]
            if len(chunks) == 1:
                future = client.publish(chunks[0], topic=TOPIC, partition=0)
            else:
                future = client.publish_batch(chunks, topic=TOPIC, partition=0)
            future.add_done_callback(lambda done, number=number: ended(number, done))  # type: ignore[misc]
            if not together:
                future.result(PATIENCE_SECONDS)
        client.flush(PATIENCE_SECONDS)
        if linger:
            signal.pause()


ROLES: dict[str, Callable[..., None]] = {
    "agent": run_agent,
    "log agent": run_log_agent,
    "producer": run_producer,
}


def fork(role: str, arguments: dict[str, Any]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)  # until the agent can handle it
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)
        return pid
    status = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(2, 1)
        ROLES[role](**arguments)
        status = 0
    except BaseException as error:
        print(f"{role}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        say({"exit": pid, "status": os.waitstatus_to_exitcode(status)})


def say(what: dict[str, int]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def main() -> None:
    assert threading.active_count() == 1
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    say({"ready": os.getpid()})
    lines = b""
    while True:
        readable, _, _ = select.select([0, woken], [], [])
        if woken in readable:
            os.read(woken, 4096)
            reap()
        if 0 in readable:
            data = os.read(0, 65_536)
            if not data:
                return
            lines += data
            while b"\n" in lines:
                line, lines = lines.split(b"\n", 1)
                command = json.loads(line)
                say({"pid": fork(command.pop("role"), command)})


if __name__ == "__main__":
    main()
