"""The asyncio client, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import wait

import pytest
import uvloop

from penstock.host import AsyncHostClient
from penstock.host.errors import (
    ClientClosed,
    Draining,
    FrameRefused,
    HandshakeRefused,
    InvalidChunks,
    LostOnDisconnect,
    NoCredit,
    NotConnected,
    ProducerFenced,
    PublishTimedOut,
)
from penstock.host.port import Failed
from penstock.wire.frames import ACCEPTED, DRAIN, FAILED
from tests.host.client import descriptors
from tests.host.client.agents import CONNECT_MS, GateSink, PlayedAgent, ProcessAgent, ThreadAgent

Work = Callable[[], Awaitable[None]]
Run = Callable[[Work], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine function on a loop of one kind or the other."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(work: Work) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(work(), 60)

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded())

    return run


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


def test_one_chunk_and_many(run: Run, path: str) -> None:
    async def work() -> None:
        async with AsyncHostClient(path, topics=["t"]) as client:
            await client.publish(b"alone", events=3)
            await client.publish_batch([b"a", b"", b"ccc"], event_counts=[1, 0, 2])
            await client.publish(b"0123", topic="t")
            await client.publish(b"0123", topic="t")
            await client.publish_batch_nowait([b"x"], topic="t", partition=3)
            assert client.partitions("t") == 4
            assert client.state == "started"
            assert client.producer_id >= 0
            assert client.outstanding == 0
        assert client.state == "closed"

    with ThreadAgent(path, GateSink()) as agent:
        run(work)
        frames = agent.frames()
    assert [frame.chunks for frame in frames] == [
        (b"alone",), (b"a", b"", b"ccc"), (b"0123",), (b"0123",), (b"x",),
    ]  # fmt: skip
    assert [frame.partition for frame in frames] == [-1, -1, 0, 1, 3]


def test_many_at_once_and_large(run: Run, path: str) -> None:
    chunks = [os.urandom(10_485) for _ in range(100)]

    async def work() -> None:
        async with AsyncHostClient(path, ring_bytes=8 << 20) as client:
            small = [client.publish(b"%d" % n) for n in range(500)]
            large = [client.publish_batch(chunks) for _ in range(30)]
            await asyncio.gather(*small, *large)

    with ThreadAgent(path) as agent:
        run(work)
        frames = agent.frames()
    assert sorted(int(f.chunks[0]) for f in frames if len(f.chunks) == 1) == list(range(500))
    assert [f.chunks for f in frames if len(f.chunks) > 1] == [tuple(chunks)] * 30


def test_an_agent_is_killed_while_tasks_publish(run: Run, path: str) -> None:
    done = 0

    async def publish(client: AsyncHostClient, stop: asyncio.Event) -> None:
        nonlocal done
        while not stop.is_set():
            await client.publish(b"x" * 500)
            done += 1

    async def work() -> None:
        stop = asyncio.Event()
        async with AsyncHostClient(path) as client:
            tasks = [asyncio.ensure_future(publish(client, stop)) for _ in range(20)]
            for _ in range(2):
                before = done
                await until(lambda before=before: done > before + 200)  # type: ignore[misc]
                agent.kill()
                await asyncio.to_thread(agent.start)
            before = done
            await until(lambda: done > before + 200)
            stop.set()
            await asyncio.gather(*tasks)

    with ProcessAgent(path, "null") as agent:
        run(work)


def test_without_resend_what_is_lost_is_said(run: Run, path: str) -> None:
    async def work() -> None:
        async with AsyncHostClient(path, resend=False, connect_timeout_ms=CONNECT_MS) as client:
            await client.wait_started()
            futures = [client.publish_nowait(b"%d" % n) for n in range(5)]
            await until(lambda: sink.held_bytes == 5)
            await asyncio.to_thread(agent.cut)
            results = await asyncio.gather(*futures, return_exceptions=True)
            assert [type(result) for result in results] == [LostOnDisconnect] * 5
            sink.open = True
            await client.wait_started()
            await client.publish(b"again")

    sink = GateSink(open_=False)
    with ThreadAgent(path, sink) as agent:
        run(work)


def test_no_agent(run: Run, path: str) -> None:
    async def work() -> None:
        client = AsyncHostClient(path, resend=False, connect_timeout_ms=50)
        with pytest.raises(NotConnected, match="was not started"):
            client.publish_nowait(b"x")
        async with client:
            with pytest.raises(NotConnected):
                client.publish_nowait(b"x")
            with pytest.raises(NotConnected, match="no agent runs"):
                await client.publish(b"x")
        with pytest.raises(ClientClosed):
            await client.publish(b"x")
        with pytest.raises(ClientClosed):
            await client.start()
        async with AsyncHostClient(path, delivery_timeout_ms=60) as client:
            with pytest.raises(PublishTimedOut):
                await client.publish(b"x")
            with pytest.raises(InvalidChunks):
                await client.publish("text")

    run(work)


def test_a_full_buffer_waits(run: Run, path: str) -> None:
    async def work() -> None:
        async with AsyncHostClient(path, buffer_frames=2, publish_timeout_ms=60_000) as client:
            first = [client.publish_nowait(b"1"), client.publish_nowait(b"2")]
            with pytest.raises(NoCredit):
                client.publish_nowait(b"3")
            third = asyncio.ensure_future(client.publish(b"3"))
            await asyncio.sleep(0.01)
            assert not third.done()
            with pytest.raises(TimeoutError):
                await client.flush(0.01)
            agent.start()
            await asyncio.gather(*first, third)
            await client.flush()

    agent = ThreadAgent(path)
    try:
        run(work)
    finally:
        agent.stop()


def test_an_agent_that_does_not_read(run: Run, path: str) -> None:
    payload = bytes(1 << 20)

    async def work() -> None:
        async with AsyncHostClient(
            path, socket_buffer_bytes=64 << 10, connect_timeout_ms=CONNECT_MS
        ) as client:
            await client.wait_started()
            tasks = [asyncio.ensure_future(client.publish(payload)) for _ in range(20)]
            await asyncio.sleep(0.01)
            await asyncio.to_thread(answer)
            await asyncio.gather(*tasks)

    def answer() -> None:
        for _ in range(20):
            sequence = agent.receive_data().first_sequence
            agent.send(type=ACCEPTED, ranges=[sequence, 1])

    with PlayedAgent(path) as agent:
        import threading

        welcome = threading.Thread(target=agent.welcome)
        welcome.start()
        run(work)
        welcome.join()


def test_draining(run: Run, path: str) -> None:
    async def work() -> None:
        async with AsyncHostClient(path, resend=False, connect_timeout_ms=CONNECT_MS) as client:
            await asyncio.gather(asyncio.to_thread(agent.welcome), client.wait_started())
            held = client.publish_nowait(b"held")
            sequence = (await asyncio.to_thread(agent.receive_data)).first_sequence
            agent.send(type=DRAIN, deadline_ms=60_000)
            await until(lambda: client.state == "draining")
            with pytest.raises(Draining):
                client.publish_nowait(b"too late")
            agent.send(type=ACCEPTED, ranges=[sequence, 1])
            await held
            assert await asyncio.to_thread(agent.receive) is None
            await asyncio.gather(asyncio.to_thread(agent.welcome), client.wait_started())

    with PlayedAgent(path) as agent:
        run(work)


def test_retriable_and_permanent_failures(run: Run, path: str) -> None:
    async def work() -> None:
        async with AsyncHostClient(path) as client:
            sink.answer = Failed("not now", retryable=True, retry_after_ms=20)
            started = time.monotonic()
            await client.publish(b"again")
            assert time.monotonic() - started > 0.015
            sink.answer = Failed("never", retryable=False)
            with pytest.raises(FrameRefused, match="never"):
                await client.publish(b"refused")

    sink = GateSink()
    with ThreadAgent(path, sink):
        run(work)


def test_stop_ends_everything(run: Run, path: str) -> None:
    async def work() -> None:
        client = AsyncHostClient(path)
        await client.start()
        future = client.publish_nowait(b"x")
        waiting = asyncio.ensure_future(client.wait_started())
        await asyncio.sleep(0)
        await client.stop(0.02)
        await client.stop()
        with pytest.raises(ClientClosed):
            await future
        with pytest.raises(ClientClosed):
            await waiting

    run(work)


def test_a_fenced_producer_stops(run: Run, path: str) -> None:
    async def work() -> None:
        async with AsyncHostClient(path, connect_timeout_ms=CONNECT_MS) as client:
            await asyncio.gather(asyncio.to_thread(agent.welcome), client.wait_started())
            future = client.publish_nowait(b"x")
            sequence = (await asyncio.to_thread(agent.receive_data)).first_sequence
            agent.send(
                type=FAILED,
                first_sequence=sequence,
                count=1,
                reason="newer",
                fenced=True,
                chunk_slots=1,
                raw_events=1,
                payload_bytes=1,
            )
            with pytest.raises(ProducerFenced):
                await future
            with pytest.raises(ProducerFenced):
                await client.publish(b"x")
            with pytest.raises(ProducerFenced):
                await client.wait_started()
            assert client.state == "closed"
            cpu = time.thread_time()
            await asyncio.sleep(0.2)
            assert not wait([agent.listener], 0), "it came back"
            assert time.thread_time() - cpu < 0.1

    with PlayedAgent(path) as agent:
        run(work)


def test_a_hello_that_is_refused_permanently(run: Run, path: str) -> None:
    async def work() -> None:
        async with AsyncHostClient(path, resend=False, connect_timeout_ms=CONNECT_MS) as client:
            refusal = asyncio.to_thread(agent.welcome, accepted=False, reason="never")
            with pytest.raises(HandshakeRefused, match="never"):
                await asyncio.gather(refusal, client.publish(b"x"))

    with PlayedAgent(path) as agent:
        run(work)


def test_cancelling_does_not_take_back(run: Run, path: str) -> None:
    async def work() -> None:
        async with AsyncHostClient(path) as client:
            await client.wait_started()
            task = asyncio.ensure_future(client.publish(b"x"))
            await until(lambda: sink.held_bytes == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert client.outstanding == 1
            await asyncio.to_thread(agent.call, sink.release)
            await client.flush(20)

    sink = GateSink(open_=False)
    with ThreadAgent(path, sink) as agent:
        run(work)


def test_no_descriptor_is_left(path: str) -> None:
    """In a process of its own: in this one others open and close descriptors meanwhile."""
    assert descriptors.returncode("asyncio", path) == 0


def test_a_dropped_client_says_so(path: str) -> None:
    async def drop() -> None:
        kept = [AsyncHostClient(path)]
        await kept[0].start()
        kept[0]._line.lost("the test says so", 0.0)
        timer = kept[0]._timer
        assert timer is not None
        timer.cancel()
        kept[0]._timer = None
        del timer

        def let_go() -> None:
            kept.clear()
            gc.collect()

        with pytest.warns(ResourceWarning, match="unclosed <AsyncHostClient"):
            let_go()

    with ThreadAgent(path):
        gc.collect()
        asyncio.run(drop())
