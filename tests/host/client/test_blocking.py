"""The blocking client against real agents: delivery, waiting, back-pressure, the end."""

from __future__ import annotations

import concurrent.futures
import gc
import os
import random
import select
import signal
import socket
import threading
import time
from collections import Counter
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.base.errors import InvalidSetting
from penstock.client import InvalidArgument
from penstock.host import HostClient
from penstock.host.client.engine import Engine
from penstock.host.client.options import client_options
from penstock.host.errors import (
    ClientClosed,
    Draining,
    FrameRefused,
    FrameTooLarge,
    HandshakeRefused,
    InvalidChunks,
    LostOnDisconnect,
    NoCredit,
    NotConnected,
    ProducerFenced,
    PublishTimedOut,
)
from penstock.host.port import ChunkFormat, Failed
from penstock.wire.frames import (
    ACCEPTED,
    CREDIT_UPDATE,
    DRAIN,
    FAILED,
    PING,
    PONG,
    Header,
    encode,
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
from tests.host.clock import JumpingClock


def keepers() -> set[threading.Thread]:
    """Those of all clients in this process; other tests may have left some that end any time."""
    return {thread for thread in threading.enumerate() if thread.name == "penstock-host-keeper"}


def keeper_of(client: HostClient) -> threading.Thread:
    assert client._engine is not None
    return client._engine._keeper


def cpu_seconds(*threads: threading.Thread) -> float:
    """What these threads have used up, whatever others in this process do."""
    return sum(
        time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        for thread in threads
        if thread.ident is not None
    )


# What is published arrives


def test_one_chunk_and_many(path: str) -> None:
    with ThreadAgent(path) as agent, HostClient(path, client_name="me") as client:
        client.send(b"alone", events=3)
        client.publish_batch([b"a", b"", b"ccc"], event_counts=[1, 0, 2]).result(20)
        client.publish(np.arange(3, dtype="<u2")).result(20)
        client.publish(memoryview(b"0123456789")[::1], topic="orders", partition=2).result(20)
        frames = agent.frames()
    assert [frame.chunks for frame in frames] == [
        (b"alone",),
        (b"a", b"", b"ccc"),
        (b"\0\0\1\0\2\0",),
        (b"0123456789",),
    ]
    assert [frame.event_count for frame in frames] == [3, 3, 1, 1]
    assert [frame.first_sequence for frame in frames] == [0, 1, 4, 5]
    assert (frames[3].topic, frames[3].partition, frames[3].log_sequence) == ("orders", 2, 0)
    assert frames[0].format is ChunkFormat.OPAQUE


def test_large_frames_and_large_bursts(path: str) -> None:
    chunks = [os.urandom(10_485) for _ in range(100)]
    with ThreadAgent(path) as agent, HostClient(path, checksum=True) as client:
        futures = [client.publish_batch(chunks) for _ in range(40)]
        client.flush(20)
        assert all(future.done() for future in futures)
        assert [future.exception(0) for future in futures] == [None] * 40
        frames = agent.frames()
    assert len(frames) == 40
    assert all(frame.chunks == tuple(chunks) for frame in frames)


def test_more_pieces_than_one_call_takes(path: str) -> None:
    chunks = [bytes([n % 251]) * 200 for n in range(4096)]
    with ThreadAgent(path) as agent, HostClient(path) as client:
        client.publish_batch(chunks).result(20)
        assert agent.frames()[0].chunks == tuple(chunks)


def test_eight_threads_publish_and_every_future_ends_once(path: str) -> None:
    ended: Counter[int] = Counter()
    results: list[BaseException | None] = []

    def count(name: int, _: Future[None]) -> None:
        ended[name] += 1

    def work(client: HostClient, number: int) -> None:
        dice = random.Random(number)
        for index in range(150):
            name = number * 1000 + index
            payload = b"%d:%d:" % (number, index) + bytes(dice.randrange(3000))
            if index % 3 == 0:
                client.send(payload, timeout=20)
                ended[name] += 1
                continue
            future = client.publish(payload)
            future.add_done_callback(partial(count, name))
            if index % 3 == 1:
                results.append(future.exception(20))

    with ThreadAgent(path) as agent, HostClient(path) as client:
        threads = [threading.Thread(target=work, args=(client, n)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        client.flush(20)
        wait_for(lambda: len(ended) == 1200)
        frames = agent.frames()
    assert set(ended.values()) == {1}
    assert results == [None] * 400
    order: dict[bytes, list[int]] = {}
    for frame in frames:
        number, index, _ = frame.chunks[0].split(b":", 2)
        order.setdefault(number, []).append(int(index))
    assert all(order[b"%d" % number] == list(range(150)) for number in range(8))


def test_the_standard_library_waits_for_futures(path: str) -> None:
    with ThreadAgent(path, GateSink(open_=False)) as agent, HostClient(path) as client:
        futures: list[Future[None]] = [client.publish(b"%d" % n) for n in range(20)]
        done, left = concurrent.futures.wait(futures, timeout=0.05)
        assert (len(done), len(left)) == (0, 20)
        with pytest.raises(TimeoutError):
            futures[0].result(0.02)
        assert futures[0].running()
        assert not futures[0].cancel()
        sink = agent.sink
        assert isinstance(sink, GateSink)
        agent.call(sink.release)
        assert set(concurrent.futures.as_completed(futures, timeout=20)) == set(futures)
        done, left = concurrent.futures.wait(futures, timeout=1)
        assert (len(done), len(left)) == (20, 0)
        assert not futures[0].running()
        assert not futures[0].cancelled()


def test_callbacks_may_publish_and_may_fail(path: str, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Future[None]] = []
    second: list[Future[None]] = []
    with ThreadAgent(path) as agent, HostClient(path) as client:

        def again(future: Future[None]) -> None:
            seen.append(future)
            second.append(client.publish(b"second"))

        def fail(future: Future[None]) -> None:
            raise ValueError("of the caller's own")

        first = client.publish(b"first")
        first.add_done_callback(fail)
        first.add_done_callback(again)
        first.result(20)
        wait_for(lambda: bool(second))
        second[0].result(20)
        first.add_done_callback(seen.append)
        assert seen == [first, first]
        assert len(agent.frames()) == 2
    assert "of the caller's own" in caplog.text


def test_a_callback_may_wait_unless_nobody_would_bring_the_answer(path: str) -> None:
    """The keeper runs callbacks when nobody else waits; it is also the one that connects.

    So with a connection it waits as the leader. The second agent ends the connection in one breath
    with its answer, so that there is none any more when the callback runs.
    """
    outcomes: list[BaseException | None] = []
    ran = threading.Event()

    def wait(client: HostClient, future: Future[None]) -> None:
        try:
            client.send(b"from the callback", timeout=20)
            outcomes.append(None)
        except RuntimeError as error:
            outcomes.append(error)
        ran.set()

    with ThreadAgent(path) as agent, HostClient(path) as client:
        client.publish(b"x").add_done_callback(partial(wait, client))
        assert ran.wait(20)
        assert len(agent.frames()) == 2
    ran.clear()
    with PlayedAgent(path) as played, HostClient(path, connect_timeout_ms=CONNECT_MS) as client:
        played.welcome()
        future = client.publish(b"x")
        future.add_done_callback(partial(wait, client))
        answer = Header(type=ACCEPTED, ranges=[played.receive_data().first_sequence, 1])
        played.peer.sendall(encode(answer) + encode(Header(type=FAILED, reason="farewell")))
        assert ran.wait(20)
        client.close(timeout=0)
    assert outcomes[0] is None
    assert "callback cannot wait" in str(outcomes[1])


def test_without_a_partition_those_of_a_topic_take_turns(path: str) -> None:
    with (
        ThreadAgent(path, GateSink()) as agent,
        HostClient(path, topics=["orders"]) as client,
    ):
        for _ in range(6):
            client.send(b"x", topic="orders", timeout=20)
        client.send(b"x", topic="others", timeout=20)
        assert client.partitions("orders") == 4
        assert client.partitions("others") == 0
        frames = agent.frames()
    assert [frame.partition for frame in frames] == [0, 1, 2, 3, 0, 1, -1]


def test_what_cannot_be_sent_is_said_at_once(path: str) -> None:
    with ThreadAgent(path) as agent, HostClient(path, buffer_bytes=1 << 20) as client:
        for wrong in ("text", 5, None, np.zeros((4, 4))[:, 1]):
            with pytest.raises(InvalidChunks):
                client.publish(wrong)
        with pytest.raises(InvalidChunks):
            client.publish_batch([])
        with pytest.raises(InvalidChunks):
            client.publish_batch([b"a"], event_counts=[1, 2])
        with pytest.raises(FrameTooLarge):
            client.publish(bytes((1 << 20) + 1))
        client.send(b"fine", timeout=20)
        assert len(agent.frames()) == 1


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ({"partition": -2}, "partition -2: must be a whole number from 0 to 2147483647"),
        ({"partition": 2**31}, "partition 2147483648: must be"),
        ({"partition": 2**40}, "partition 1099511627776: must be"),
        ({"partition": "1"}, "partition '1': must be"),
        ({"partition": True}, "partition True: must be"),
        ({"topic": None}, "topic 'None': must be a text"),
        ({"topic": "t" * 250}, "must be a text of at most 249 characters"),
    ],
)
def test_a_target_that_cannot_be_ends_no_client(
    path: str, target: dict[str, Any], named: str
) -> None:
    """It is refused to whoever gave it, and what others publish arrives."""
    where: dict[str, Any] = {"topic": "t", "partition": 0, **target}
    with ThreadAgent(path) as agent, HostClient(path) as client:
        first = client.publish(b"first", topic="t", partition=0)
        with pytest.raises(InvalidChunks, match=named):
            client.publish(b"never", **where)
        with pytest.raises(InvalidChunks, match=named):
            client.publish_batch([b"never"], **where)
        with pytest.raises(InvalidChunks, match="'1' events in one frame; 0 to"):
            client.publish(b"never", events="1", topic="t", partition=0)  # type: ignore[arg-type]
        client.send(b"last", topic="t", partition=0)
        first.result(20)
        assert len(agent.frames()) == 2


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"producer_id": -5}, "producer_id = -5: must be from -1"),
        ({"producer_id": "x"}, "producer_id = 'x'"),
        ({"producer_epoch": -1}, "producer_epoch = -1: must be from 0 to 32767"),
        ({"producer_epoch": 2**15}, "producer_epoch = 32768"),
        ({"topics": "orders"}, "host.client.topics = 'orders': must be a list"),
        ({"ring_byte": 1}, "ring_byte = 1: .* did you mean ring_bytes"),
    ],
)
def test_options_that_no_producer_has(path: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidSetting, match=named):
        HostClient(path, **options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch_bytes": 61}, "batch_bytes = 61: must be a whole number from 62"),
        ({"partition": -1}, "partition = -1"),
        ({"codec": "zstdd"}, "codec 'zstdd'"),
        ({"codec": "gzip", "level": 0}, "level of gzip = 0: must be a whole number from 1 to 9"),
        ({"kodec": "gzip"}, "option 'kodec': there is none of this name; there are key, value"),
    ],
)
def test_options_of_records(path: str, options: dict[str, Any], named: str) -> None:
    with ThreadAgent(path) as agent, HostClient(path) as client:
        client.send(b"x", topic="t", partition=0)
        with pytest.raises(InvalidArgument, match=named):
            client.publish_records("t", pa.table({"value": ["x"]}), **options)
        assert len(agent.frames()) == 1


def test_a_frame_over_the_agents_limit_ends_with_an_error(path: str) -> None:
    with (
        ThreadAgent(path, host_frame_max_bytes=1 << 20) as agent,
        HostClient(path) as client,
    ):
        with pytest.raises(FrameTooLarge):
            client.send(bytes(2 << 20), timeout=20)
        client.send(b"fine", timeout=20)
        assert len(agent.frames()) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"path": "/" + "x" * 107},
        {"path": ""},
        {"path": "a\0b"},
        {"topics": [f"t{n}" for n in range(257)]},
        {"buffer_bytes": 0},
        {"delivery_timeout_ms": "soon"},
        {"colour": "blue"},
    ],
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    before = keepers()
    with pytest.raises(InvalidSetting):
        HostClient(**options)
    assert keepers() <= before


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
    [("missing", "no such file"), ("file", "not a socket"), ("closed", "nobody serves it")],
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
    """As another user: root may connect to anything."""
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
        assert not select.select([agent.listener], [], [], 0.3)[0], "it came back"
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


def test_without_blocking_the_keeper_sends_what_waits(path: str) -> None:
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


def test_failed_for_now_and_for_good(path: str) -> None:
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
        keeper = keeper_of(client)
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
    assert not keeper.is_alive()


def test_close_gives_up_at_its_timeout(path: str) -> None:
    client = HostClient(path)
    future = client.publish(b"x")
    started = time.monotonic()
    client.close(timeout=0.1)
    assert time.monotonic() - started > 0.09
    with pytest.raises(ClientClosed):
        future.result(0)


def test_close_ends_those_who_wait(path: str) -> None:
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
        keeper = keeper_of(client)
        client.send(b"x", timeout=20)
        kept = [client]
        del client
        with pytest.warns(ResourceWarning, match="unclosed <HostClient"):
            kept.clear()
        gc.collect()
        wait_for(lambda: not keeper.is_alive())
        wait_for(lambda: not agent.agent.connections)


def test_no_descriptor_is_left(path: str) -> None:
    """In a process of its own: in this one others open and close descriptors meanwhile."""
    assert descriptors.returncode("blocking", path) == 0
