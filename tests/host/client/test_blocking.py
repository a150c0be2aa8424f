"""The blocking client against real agents: what is published arrives."""

from __future__ import annotations

import concurrent.futures
import os
import random
import threading
from collections import Counter
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.base.errors import InvalidSetting
from penstock.client import InvalidArgument
from penstock.host import HostClient
from penstock.host.errors import (
    FrameTooLarge,
    InvalidChunks,
)
from penstock.host.port import ChunkFormat
from penstock.wire.frames import (
    ACCEPTED,
    FAILED,
    Header,
    encode,
)
from tests.host.client.agents import (
    CONNECT_MS,
    GateSink,
    PlayedAgent,
    ThreadAgent,
    wait_for,
)
from tests.host.client.keepers import keepers

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


def test_a_callback_may_wait_if_a_thread_receives_the_answer(path: str) -> None:
    """The background thread runs callbacks when no other thread waits; it also connects.

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
    """Its caller gets the error, and what others publish arrives."""
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
        ({"codec": "zstdd"}, "codec = 'zstdd'"),
        ({"codec": "gzip", "level": 0}, "level of gzip = 0: must be a whole number from 1 to 9"),
        ({"kodec": "gzip"}, "unknown option 'kodec'; known options are key, value"),
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
