"""The blocking client: credit, full buffers, time that runs out, and the end."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import Future

import pytest

from penstock.host import HostClient
from penstock.host.errors import (
    ClientClosed,
    FrameRefused,
    NoCredit,
    PublishTimedOut,
)
from penstock.host.port import Failed
from penstock.wire.frames import (
    ACCEPTED,
    CREDIT_UPDATE,
)
from tests.host.client import descriptors
from tests.host.client.agents import (
    CONNECT_MS,
    GateSink,
    PlayedAgent,
    ProcessAgent,
    ThreadAgent,
    wait_for,
)
from tests.host.client.keepers import cpu_seconds, keeper_of

# Credit and time


def test_no_credit(path: str) -> None:
    with (
        PlayedAgent(path) as agent,
        HostClient(path, resend=False, connect_timeout_ms=CONNECT_MS) as client,
    ):
        agent.welcome(chunk_slots=2)
        client.wait_started()
        futures = [client.publish(b"1"), client.publish(b"2")]
        assert client.credit.slots == 0
        with pytest.raises(NoCredit):
            client.publish(b"3")
        sequence = agent.receive_data().first_sequence
        blocked: list[Future[None]] = []
        thread = threading.Thread(
            target=lambda: blocked.append(client.publish(b"3", block=True)), daemon=True
        )
        thread.start()
        agent.receive_data()
        agent.send(type=ACCEPTED, ranges=[sequence, 1])
        third = agent.receive_data()
        thread.join(20)
        agent.send(type=ACCEPTED, ranges=[sequence + 1, 1, third.first_sequence, 1])
        for future in (*futures, *blocked):
            future.result(20)
        agent.send(type=CREDIT_UPDATE, chunk_slots=5, retry_after_ms=600_000)
        wait_for(lambda: client.credit.slots == 7)
        with pytest.raises(NoCredit, match="pause"):
            client.publish(b"4")


def test_a_full_buffer_says_so_at_once_or_waits_for_room(path: str) -> None:
    with (
        PlayedAgent(path) as agent,
        HostClient(
            path, buffer_frames=2, publish_timeout_ms=600_000, connect_timeout_ms=CONNECT_MS
        ) as client,
    ):
        futures = [client.publish(b"1"), client.publish(b"2")]
        with pytest.raises(NoCredit, match="2 frames"):  # and not after ten minutes
            client.publish(b"3", block=False)
        agent.welcome()
        first = agent.receive_data().first_sequence
        agent.send(type=ACCEPTED, ranges=[first, 1])
        futures.append(client.publish(b"3"))
        agent.receive_data()
        third = agent.receive_data().first_sequence
        agent.send(type=ACCEPTED, ranges=[first + 1, 1, third, 1])
        for future in futures:
            future.result(20)


def test_waiting_for_room_ends_at_the_publish_timeout(path: str) -> None:
    with HostClient(path, buffer_frames=1, publish_timeout_ms=100) as client:
        client.publish(b"1")
        started = time.monotonic()
        with pytest.raises(NoCredit, match="1 frames"):
            client.publish(b"2")
        assert time.monotonic() - started >= 0.1
        client.close(timeout=0)


def test_an_agent_that_does_not_read_holds_the_publisher(path: str) -> None:
    """More than sockets hold: publish stays until the agent takes it, and acks are read."""
    payload = bytes(1 << 20)
    with (
        PlayedAgent(path) as agent,
        HostClient(
            path,
            buffer_bytes=256 << 20,
            socket_buffer_bytes=64 << 10,
            connect_timeout_ms=CONNECT_MS,
        ) as client,
    ):
        agent.welcome(payload_bytes=256 << 20)
        client.wait_started()
        futures: list[Future[None]] = []

        def work() -> None:
            futures.extend(client.publish(payload) for _ in range(20))

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(20):
            sequence = agent.receive_data().first_sequence
            agent.send(type=ACCEPTED, ranges=[sequence, 1])
        thread.join(20)
        for future in futures:
            future.result(20)


def test_the_background_thread_sends_waiting_frames(path: str) -> None:
    payload = bytes(1 << 20)
    with (
        PlayedAgent(path) as agent,
        HostClient(path, socket_buffer_bytes=64 << 10, connect_timeout_ms=CONNECT_MS) as client,
    ):
        agent.welcome()
        client.wait_started()
        futures = [client.publish(payload, block=False) for _ in range(20)]
        for _ in futures:
            sequence = agent.receive_data().first_sequence
            agent.send(type=ACCEPTED, ranges=[sequence, 1])
        for future in futures:
            future.result(20)


def test_no_answer_in_time(path: str) -> None:
    with (
        PlayedAgent(path) as agent,
        HostClient(
            path, resend=False, publish_timeout_ms=60, connect_timeout_ms=CONNECT_MS
        ) as client,
    ):
        agent.welcome()
        client.wait_started()
        future = client.publish(b"x")
        with pytest.raises(PublishTimedOut):
            future.result(20)
        sequence = agent.receive_data().first_sequence
        agent.send(type=ACCEPTED, ranges=[sequence, 1])
        wait_for(lambda: client.credit.slots == 1000)


def test_the_delivery_timeout_counts_from_publish(path: str) -> None:
    with HostClient(path, delivery_timeout_ms=80) as client:
        started = time.monotonic()
        with pytest.raises(PublishTimedOut, match="not sent"):
            client.send(b"x")
        assert time.monotonic() - started > 0.07


def test_retriable_and_permanent_failures(path: str) -> None:
    with ThreadAgent(path, GateSink()) as agent, HostClient(path) as client:
        sink = agent.sink
        assert isinstance(sink, GateSink)
        sink.answer = Failed("not now", retryable=True, retry_after_ms=20)
        started = time.monotonic()
        client.send(b"again", timeout=20)
        assert time.monotonic() - started > 0.015
        sink.answer = Failed("never", retryable=False)
        with pytest.raises(FrameRefused, match="never"):
            client.send(b"refused", timeout=20)
        assert [frame.chunks for frame in agent.frames()] == [(b"again",)]


def test_a_slow_agent(path: str) -> None:
    with (
        ProcessAgent(path, "slow", SLOW="0.15"),
        HostClient(path) as client,
    ):
        client.wait_started()
        threads = (threading.current_thread(), keeper_of(client))
        cpu = cpu_seconds(*threads)
        futures = [client.publish(b"x") for _ in range(10)]
        for future in futures:
            future.result(20)
        for _ in range(3):
            client.send(b"x", timeout=20)
        assert cpu_seconds(*threads) - cpu < 0.2  # nothing turns in circles
    assert all(future.exception() is None for future in futures)


# The end


def test_close_delivers_and_then_refuses(path: str) -> None:
    with ThreadAgent(path) as agent:
        client = HostClient(path)
        on_keep = keeper_of(client)
        futures = [client.publish(b"%d" % n) for n in range(50)]
        client.close()
        client.close()
        assert [future.exception(0) for future in futures] == [None] * 50
        assert len(agent.frames()) == 50
        assert client.state == "closed"
        for attempt in (
            lambda: client.publish(b"x"),
            lambda: client.publish(b"x", topic="t"),
            lambda: client.publish_batch([b"x"]),
            lambda: client.send(b"x"),
            client.wait_started,
            client.flush,
        ):
            with pytest.raises(ClientClosed):
                attempt()
    assert not on_keep.is_alive()


def test_close_returns_at_its_timeout(path: str) -> None:
    client = HostClient(path)
    future = client.publish(b"x")
    started = time.monotonic()
    client.close(timeout=0.1)
    assert time.monotonic() - started > 0.09
    with pytest.raises(ClientClosed):
        future.result(0)


def test_close_ends_waiting_callers(path: str) -> None:
    with PlayedAgent(path) as agent:
        client = HostClient(path)
        agent.welcome()
        client.wait_started()
        errors: list[BaseException | None] = []
        futures = [client.publish(b"x") for _ in range(4)]
        threads = [
            threading.Thread(target=lambda future=future: errors.append(future.exception(20)))
            for future in futures
        ]
        for thread in threads:
            thread.start()
        for _ in futures:
            agent.receive_data()
        client.close(timeout=0)
        for thread in threads:
            thread.join(20)
        assert [type(error) for error in errors] == [ClientClosed] * 4


def test_flush_has_a_timeout(path: str) -> None:
    with HostClient(path) as client:
        client.publish(b"x")
        with pytest.raises(TimeoutError, match="1 frames"):
            client.flush(0.05)
        client.close(timeout=0)


def test_flush_returns_also_when_what_was_published_has_failed(path: str) -> None:
    with HostClient(path, delivery_timeout_ms=50) as client:
        future = client.publish(b"x")
        client.flush(20)
        assert isinstance(future.exception(0), PublishTimedOut)


def test_a_client_that_is_dropped_says_so(path: str) -> None:
    with ThreadAgent(path) as agent:
        client = HostClient(path)
        on_keep = keeper_of(client)
        client.send(b"x", timeout=20)
        kept = [client]
        del client
        with pytest.warns(ResourceWarning, match="unclosed <HostClient"):
            kept.clear()
        gc.collect()
        wait_for(lambda: not on_keep.is_alive())
        wait_for(lambda: not agent.agent.connections)


def test_no_descriptor_is_left(path: str) -> None:
    """In a process of its own: in this one others open and close descriptors meanwhile."""
    assert descriptors.returncode("blocking", path) == 0
