"""The blocking client and agents that come and go, drain, refuse, or talk nonsense."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from penstock.host import HostClient
from penstock.host.client.engine import Engine
from penstock.host.client.options import client_options
from penstock.host.errors import (
    Draining,
    HandshakeRefused,
    LostOnDisconnect,
    NoCredit,
    NotConnected,
    ProducerFenced,
)
from penstock.wire.frames import (
    ACCEPTED,
    DRAIN,
    FAILED,
    PING,
    PONG,
    Header,
    encode,
)
from tests.host.client.agents import (
    CONNECT_MS,
    GateSink,
    PlayedAgent,
    ProcessAgent,
    ThreadAgent,
    wait_for,
)
from tests.host.client.keepers import cpu_seconds, keeper_of
from tests.host.clock import JumpingClock

# The agent comes and goes


def test_an_agent_that_comes_later(path: str) -> None:
    with HostClient(path) as client:
        future = client.publish(b"early")
        with pytest.raises(NotConnected, match="no agent runs"):
            client.wait_started(0.1)
        with pytest.raises(TimeoutError):
            future.result(0.05)
        assert client.state == "connecting"
        with ThreadAgent(path) as agent:
            future.result(20)
            assert client.state == "started"
            assert agent.frames()[0].chunks == (b"early",)


@pytest.mark.parametrize("resend", [True, False])
def test_an_agent_is_killed_while_threads_publish(path: str, resend: bool) -> None:
    """With resend everything is delivered; without, what was under way is known to be lost."""
    errors: list[BaseException | None] = []
    stop = threading.Event()

    def work(client: HostClient) -> None:
        while not stop.is_set():
            try:
                future = client.publish(b"x" * 500)
            except (NotConnected, NoCredit):
                time.sleep(0.001)
                continue
            errors.append(future.exception(40))

    agent = ProcessAgent(path, "null").start()
    try:
        with HostClient(path, resend=resend) as client:
            client.wait_started()
            threads = [threading.Thread(target=work, args=(client,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for _ in range(2):
                count = len(errors)
                wait_for(lambda count=count: len(errors) > count + 200)  # type: ignore[misc]
                agent.signal(signal.SIGSTOP)  # all have something under way when it dies
                wait_for(lambda: client.outstanding == len(threads))
                agent.kill()
                agent.start()
            count = len(errors)
            wait_for(lambda: len(errors) > count + 200)
            stop.set()
            for thread in threads:
                thread.join(30)
            assert client.outstanding == 0
    finally:
        stop.set()
        agent.stop()
    lost = [error for error in errors if error is not None]
    assert all(isinstance(error, LostOnDisconnect) for error in lost)
    assert bool(lost) != resend


def test_lost_on_disconnect_names_what_was_under_way(path: str) -> None:
    with (
        ThreadAgent(path, GateSink(open_=False)) as agent,
        HostClient(path, resend=False) as client,
    ):
        futures = [client.publish(b"%d" % n) for n in range(5)]
        sink = agent.sink
        assert isinstance(sink, GateSink)
        wait_for(lambda: sink.held_bytes == 5)
        agent.cut()
        for future in futures:
            with pytest.raises(LostOnDisconnect):
                future.result(20)
        agent.call(sink.release)
        client.wait_started()
        client.send(b"again", timeout=20)


def test_with_resend_the_same_frames_come_again(path: str) -> None:
    with ThreadAgent(path, GateSink(open_=False)) as agent, HostClient(path) as client:
        futures = [client.publish(b"%d" % n, topic="t", partition=0) for n in range(3)]
        futures += [client.publish(b"plain") for n in range(3)]
        sink = agent.sink
        assert isinstance(sink, GateSink)
        wait_for(lambda: sink.counts.accepted_frames == 4)  # a lane begins with one alone
        before = agent.frames()
        agent.cut()
        agent.call(sink.release)
        client.flush(20)
        assert all(future.exception(0) is None for future in futures)
        after = agent.frames()
    again = {frame.first_sequence: frame for frame in after}
    assert {frame.first_sequence for frame in before} <= set(again)
    assert all(again[frame.first_sequence] == frame for frame in before)
    assert [f.log_sequence for f in after if f.topic] == [0, 1, 2]


def test_draining_hands_over_to_the_next_agent(path: str) -> None:
    first = ThreadAgent(path, GateSink(open_=False)).start()
    with HostClient(path) as client:
        try:
            held = client.publish(b"held")
            sink = first.sink
            assert isinstance(sink, GateSink)
            wait_for(lambda: sink.held_bytes == 4)
            first.begin_stop()
            wait_for(lambda: client.state == "draining")
            waits = client.publish(b"waits")
            first.call(sink.release)
            held.result(20)
            assert [frame.chunks for frame in first.frames()] == [(b"held",)]
        finally:
            first.stop()
        with ThreadAgent(path) as second:
            waits.result(20)
            assert [frame.chunks for frame in second.frames()] == [(b"waits",)]


def test_without_resend_draining_is_said_at_once(path: str) -> None:
    with (
        PlayedAgent(path) as agent,
        HostClient(path, resend=False, connect_timeout_ms=CONNECT_MS) as client,
    ):
        agent.welcome()
        client.wait_started()
        held = client.publish(b"held")
        sequence = agent.receive_data().first_sequence
        agent.send(type=DRAIN, deadline_ms=10_000, reason="later")
        wait_for(lambda: client.state == "draining")
        with pytest.raises(Draining):
            client.publish(b"too late")
        agent.send(type=ACCEPTED, ranges=[sequence, 1])
        held.result(20)
        assert agent.receive() is None  # the client has closed
        agent.welcome()
        client.wait_started()


def test_a_drain_ends_at_its_deadline(path: str) -> None:
    with (
        PlayedAgent(path) as agent,
        HostClient(path, resend=False, connect_timeout_ms=CONNECT_MS) as client,
    ):
        agent.welcome()
        client.wait_started()
        held = client.publish(b"held")
        agent.receive_data()
        agent.send(type=DRAIN, deadline_ms=50, reason="soon")
        with pytest.raises(LostOnDisconnect):
            held.result(20)
        assert agent.receive() is None


@pytest.mark.parametrize(
    ("what", "reason"),
    [("missing", "does not exist"), ("file", "not a socket"), ("closed", "no agent listens on it")],
)
def test_why_there_is_no_connection(path: str, what: str, reason: str) -> None:
    if what == "file":
        Path(path).write_text("no socket")
    elif what == "closed":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(path)
    with HostClient(path, resend=False, connect_timeout_ms=50) as client:
        wait_for(lambda: client._core._attempts > 0)
        with pytest.raises(NotConnected, match=reason):
            client.publish(b"x")
        with pytest.raises(NotConnected, match=reason):
            client.wait_started()


def test_permission_denied(path: str) -> None:
    """Connect as another user, because root may connect to anything."""
    with ThreadAgent(path):
        os.chmod(path, 0o600)
        os.chmod(os.path.dirname(path), 0o755)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover
            try:
                os.setuid(65534)
                with HostClient(path) as client:
                    wait_for(lambda: client._core._attempts > 0)
                    client.wait_started(0.01)
            except NotConnected as error:
                os.write(write, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        said = os.read(read, 1000).decode()
        os.close(read)
    assert "permission denied" in said


def test_attempts_to_connect_are_spread_out(path: str) -> None:
    with HostClient(path) as client:
        core = client._core
        wait_for(lambda: core._attempts >= 4)
        assert core._attempts < 20
        with pytest.raises(NotConnected):
            client.wait_started(0.01)


def test_an_agent_that_does_not_answer_hello(path: str) -> None:
    with HostClient(path, connect_timeout_ms=100) as client:
        with PlayedAgent(path) as agent:
            agent.accept()
            assert agent.receive() is not None
            assert agent.receive() is None
            with pytest.raises(NotConnected, match="did not answer HELLO"):
                client.wait_started(0.01)
        with ThreadAgent(path):  # one that answers whatever has given up meanwhile
            client.wait_started(20)


def test_a_hello_that_is_answered_with_no(path: str) -> None:
    with PlayedAgent(path) as agent, HostClient(path, connect_timeout_ms=CONNECT_MS) as client:
        agent.welcome(accepted=False, reason="not now", retryable=True)
        wait_for(lambda: client._engine is not None and client._engine.line.refused)
        with pytest.raises(HandshakeRefused, match="not now"):
            client.wait_started(0.001)
        future = client.publish(b"x")
        agent.welcome(accepted=False, reason="never")
        with pytest.raises(HandshakeRefused, match="never"):
            future.result(20)
        with pytest.raises(HandshakeRefused, match="never"):
            client.wait_started(20)
        agent.welcome()
        wait_for(lambda: client.state == "started")


def test_a_fenced_producer_stops(path: str) -> None:
    with PlayedAgent(path) as agent, HostClient(path, connect_timeout_ms=CONNECT_MS) as client:
        agent.welcome()
        futures = [client.publish(b"x") for _ in range(3)]
        sequence = agent.receive_data().first_sequence
        agent.send(
            type=FAILED,
            first_sequence=sequence,
            count=1,
            reason="a newer epoch has written",
            fenced=True,
            chunk_slots=1,
            raw_events=1,
            payload_bytes=1,
        )
        for future in futures:
            with pytest.raises(ProducerFenced, match="newer epoch"):
                future.result(20)
        for attempt in (lambda: client.publish(b"x"), client.wait_started):
            with pytest.raises(ProducerFenced):
                attempt()
        assert client.state == "closed"
        while agent.receive() is not None:
            pass
        cpu = cpu_seconds(keeper_of(client))
        assert not wait([agent.listener], 0.3), "it came back"
        assert cpu_seconds(keeper_of(client)) - cpu < 0.1


@pytest.mark.parametrize("nonsense", [b"x" * 64, b"\0" * 16, b"\xff" * 16])
def test_an_agent_that_talks_nonsense_is_left(path: str, nonsense: bytes) -> None:
    with PlayedAgent(path) as agent, HostClient(path, connect_timeout_ms=CONNECT_MS) as client:
        agent.welcome()
        client.wait_started()
        future = client.publish(b"x")
        agent.receive_data()
        agent.peer.sendall(nonsense)
        assert agent.receive() is None
        agent.welcome()
        sequence = agent.receive_data().first_sequence
        agent.send(type=ACCEPTED, ranges=[sequence, 1])
        future.result(20)


def test_answers_cut_anywhere(path: str) -> None:
    with PlayedAgent(path) as agent, HostClient(path, connect_timeout_ms=CONNECT_MS) as client:
        agent.welcome()
        futures = [client.publish(b"%d" % n) for n in range(20)]
        answers = b""
        for _ in futures:
            sequence = agent.receive_data().first_sequence
            answers += encode(Header(type=ACCEPTED, ranges=[sequence, 1]))
        for at in range(len(answers)):
            agent.peer.sendall(answers[at : at + 1])
        for future in futures:
            future.result(20)


def test_a_quiet_agent_is_pinged_and_then_left(path: str) -> None:
    clock = JumpingClock()
    options = client_options(path, connect_timeout_ms=600_000)
    with PlayedAgent(path) as agent:
        engine = Engine(options, producer_id=-1, producer_epoch=0, clock=clock)
        try:
            agent.welcome(idle_timeout_ms=300_000)
            wait_for(lambda: engine.line.started)
            for _ in range(2):  # whose answers keep the connection
                clock.ahead += 200
                frame = agent.receive()
                assert frame is not None
                assert frame.header.type == PING
                agent.send(type=PONG, token=frame.header.token)
                heard_ms = clock.monotonic() * 1000 - 100_000
                wait_for(lambda: engine.line.core.machine._heard_ms > heard_ms)  # noqa: B023
            clock.ahead += 300
            while (frame := agent.receive()) is not None:
                assert frame.header.type == PING
            agent.welcome()
            wait_for(lambda: engine.line.started)
        finally:
            engine.close(0)
