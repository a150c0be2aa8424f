"""Forks, ends of the interpreter, and producers that are killed in the middle of a ring."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zlib

import pytest

from penstock.host import HostClient
from penstock.host.errors import ClientClosed
from penstock.host.sinks.memory import MemorySink, StoredFrame
from penstock.wire.frames import ACCEPTED
from tests.host.client.agents import CONNECT_MS, GateSink, PlayedAgent, ThreadAgent, wait_for


def in_child(work: str) -> int:
    """Exit status of a Python process."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(work)], timeout=90, check=False
    ).returncode


# Forks


def test_a_forked_child_must_not_use_the_parents_client(path: str) -> None:
    with ThreadAgent(path, GateSink(open_=False)) as agent, HostClient(path) as client:
        client.wait_started()
        held = client.publish(b"held")
        assert isinstance(agent.sink, GateSink)
        sink = agent.sink
        wait_for(lambda: sink.held_bytes == 4)
        child = os.fork()
        if child == 0:  # pragma: no cover
            signal.alarm(60)
            status = 1
            try:
                for attempt in (lambda: client.publish(b"child"), lambda: held.result(5)):
                    with pytest.raises(ClientClosed, match="forked"):
                        attempt()
                client.close()
                with HostClient(path) as own:
                    future = own.publish(b"own")
                    status = 0 if not future.done() and future._engine is not held._engine else 3
                    own.wait_started()
                    own.close(timeout=0)
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert not held.done()
        agent.call(sink.release)
        held.result(20)
        client.send(b"parent", timeout=20)
        chunks = {frame.chunks for frame in agent.frames()}
    assert chunks >= {(b"held",), (b"parent",)}
    assert (b"child",) not in chunks


def test_forks_while_threads_publish(path: str) -> None:
    """The child always finds its copy in order, whatever the parent's threads were doing."""
    with ThreadAgent(path), HostClient(path) as client:
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                client.send(b"x", timeout=20)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(15):
                child = os.fork()
                if child == 0:  # pragma: no cover
                    signal.alarm(60)
                    try:
                        client.publish(b"x")
                    except ClientClosed:
                        os._exit(0)
                    os._exit(1)
                _, status = os.waitpid(child, 0)
                assert os.waitstatus_to_exitcode(status) == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join(20)
        client.send(b"x", timeout=20)


# The end of the interpreter


def test_what_was_not_flushed_is_delivered_at_exit(path: str) -> None:
    with ThreadAgent(path) as agent:
        status = in_child(
            f"""
            from penstock.host import HostClient
            client = HostClient({path!r}, exit_timeout_ms=60_000)
            for number in range(300):
                client.publish(b"%d" % number)
            """
        )
        assert status == 0
        assert [int(frame.chunks[0]) for frame in agent.frames()] == list(range(300))


def test_exit_does_not_wait_for_ever(path: str) -> None:
    started = time.monotonic()
    status = in_child(
        f"""
        from penstock.host import HostClient
        client = HostClient({path!r}, exit_timeout_ms=300)
        client.publish(b"no one receives it")
        """
    )
    assert status == 0
    assert time.monotonic() - started > 0.3


def interrupt_the_receiver() -> None:
    """SIGINT for the main thread, as soon as it waits for bytes."""
    main = threading.main_thread().ident
    assert main is not None
    wait_for(lambda: sys._current_frames()[main].f_code.co_name == "receive_from")
    signal.pthread_kill(main, signal.SIGINT)


def test_an_interrupt_while_waiting_leaves_the_client_usable(path: str) -> None:
    with ThreadAgent(path, GateSink(open_=False)) as agent, HostClient(path) as client:
        client.wait_started()
        sink = agent.sink
        assert isinstance(sink, GateSink)
        first = client.publish(b"x")
        interrupter = threading.Thread(target=interrupt_the_receiver)
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)

        def wait() -> None:
            interrupter.start()
            first.result(60)

        try:
            with pytest.raises(KeyboardInterrupt):
                wait()
            interrupter.join()
        finally:
            signal.signal(signal.SIGINT, handler)
        agent.call(sink.release)
        first.result(20)
        client.send(b"y", timeout=20)


# The ring


@pytest.mark.parametrize("sizes", [(655, 100), (10_485, 100), (300_000, 3)])
def test_payloads_through_the_ring_are_what_they_were(path: str, sizes: tuple[int, int]) -> None:
    size, count = sizes
    batches = [[os.urandom(size) for _ in range(count)] for _ in range(4)]
    with (
        ThreadAgent(path) as agent,
        HostClient(path, ring_bytes=4 << 20, ring_payload_bytes_min=1, checksum=True) as client,
    ):
        for _ in range(10):
            for future in [client.publish_batch(batch) for batch in batches]:
                future.result(20)
        received = [frame.chunks for frame in agent.frames()]
    assert received == [tuple(batch) for batch in batches] * 10


def test_what_finds_no_room_waits_for_it_unless_it_never_will(
    path: str,
) -> None:
    payload = os.urandom(100_000)
    with (
        PlayedAgent(path) as agent,
        HostClient(path, ring_bytes=300_000, connect_timeout_ms=CONNECT_MS) as client,
    ):
        hello = agent.welcome(ring_size_bytes=300_000)
        assert hello.ring_size_bytes == 300_000
        client.wait_started()
        futures = [client.publish(data) for data in [payload] * 4 + [b"small", payload * 4]]
        received = [agent.receive_data() for _ in range(3)]
        assert [header.ring_bytes for header in received] == [100_000] * 3
        agent.send(type=ACCEPTED, ranges=[received[0].first_sequence, 1])
        received.append(agent.receive_data())
        assert (received[3].ring_position, received[3].ring_bytes) == (0, 100_000)
        for expected in (b"small", payload * 4):
            frame = agent.receive()
            assert frame is not None
            assert (frame.header.ring_bytes, bytes(frame.payload)) == (0, expected)
        agent.send(type=ACCEPTED, ranges=[received[1].first_sequence, 5])
        for future in futures:
            future.result(20)


def test_an_agent_without_a_ring(path: str) -> None:
    payload = os.urandom(200_000)
    with (
        ThreadAgent(path, host_ring_max_bytes=0) as agent,
        HostClient(path, ring_bytes=1 << 20) as client,
    ):
        client.send(payload, timeout=20)
        frames = agent.frames()
    assert frames[0].chunks == (payload,)


def test_every_connection_has_a_ring_of_its_own(path: str) -> None:
    """An agent that was cut off may still be reading the ring that it was given."""
    with (
        PlayedAgent(path) as agent,
        HostClient(path, ring_bytes=1 << 20, connect_timeout_ms=CONNECT_MS) as client,
    ):
        rings = []
        for _ in range(2):
            agent.welcome(ring_size_bytes=1 << 20)
            wait_for(lambda: client.state == "started")
            engine = client._engine
            assert engine is not None
            ring = engine.line._ring
            assert ring is not None
            rings.append(os.fstat(ring.fd).st_ino)
            agent.hang_up()
            wait_for(lambda: client.state != "started")
        assert rings[0] != rings[1]


KILLED = """
import os, signal, sys, zlib
sys.setswitchinterval(1e-5)
from penstock.host import HostClient
from penstock.host.ring import Ring

path, where, frames = sys.argv[1], sys.argv[2], int(sys.argv[3])
write, written = Ring.write, 0

def dies(self, position, pieces, size):
    global written
    written += 1
    if written < frames:
        return write(self, position, pieces, size)
    if where == "halfway":
        half = pieces[: len(pieces) // 2]
        write(self, position, half, sum(map(len, half)))
    else:
        write(self, position, pieces, size)
    os.kill(os.getpid(), signal.SIGKILL)

Ring.write = dies
client = HostClient(
    path, ring_bytes=1 << 20, ring_payload_bytes_min=1, connect_timeout_ms=60_000
)
client.wait_started()
while True:
    body = os.urandom(4092)
    chunk = zlib.crc32(body).to_bytes(4, "big") + body
    future = client.publish_batch([chunk] * 64)
    if where != "never":
        future.result()
"""


def intact(frame: StoredFrame) -> bool:
    """Whether every chunk has the checksum that it begins with."""
    return all(int.from_bytes(c[:4], "big") == zlib.crc32(c[4:]) for c in frame.chunks)


@pytest.mark.parametrize("where", ["halfway", "before the head"])
@pytest.mark.parametrize("frames", [1, 2, 50])
def test_a_producer_killed_in_the_ring_hands_over_no_torn_frame(
    path: str, where: str, frames: int
) -> None:
    with ThreadAgent(path) as agent:
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, path, where, str(frames)], timeout=60, check=False
        )
        assert killed.returncode == -signal.SIGKILL
        wait_for(lambda: not agent.agent.connections)
        received = agent.frames()
    assert len(received) == frames - 1
    for frame in received:
        assert len(frame.chunks) == 64
        assert intact(frame)


def test_producers_killed_at_any_moment_hand_over_no_torn_frame(path: str) -> None:
    code = KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "os._exit(9)")
    received = []
    sink = MemorySink(bytes_max=64 << 20)
    with ThreadAgent(path, sink) as agent:
        for delay in (0.004, 0.011, 0.023):
            process = subprocess.Popen([sys.executable, "-c", code, path, "never", str(10**9)])
            with process:
                wait_for(lambda: sink.held_bytes > 0, 60)
                time.sleep(delay)  # the moment is what is tried
                process.kill()
                process.wait(20)
            wait_for(lambda: not agent.agent.connections)
            received += agent.frames()
    assert received
    assert all(intact(frame) for frame in received)


def test_a_host_without_memory_for_a_ring(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take, ring_bytes = os.posix_fallocate, 1_234_567

    def none_left(fd: int, offset: int, size: int) -> None:
        if size != ring_bytes:  # a file's, in another thread
            return take(fd, offset, size)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", none_left)
    with ThreadAgent(path) as agent, HostClient(path, ring_bytes=ring_bytes) as client:
        client.send(bytes(200_000), timeout=20)
        assert len(agent.frames()) == 1
