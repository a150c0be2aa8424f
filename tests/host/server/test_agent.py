"""The agent as a whole: taking producers in, sharing credit, and ending in good order."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import resource
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count

import pytest

from penstock.base.errors import UnavailableError
from penstock.host import AsyncHostClient
from penstock.host.port import Failed
from penstock.host.server.agent import HostAgent
from penstock.host.server.settings import HostSettings
from penstock.host.server.socket_file import SocketAlive, SocketPathUnusable, probe
from penstock.wire.frames import (
    ACCEPTED,
    CREDIT_UPDATE,
    DRAIN,
    FAILED,
    HELLO_ACK,
    PING,
    PONG,
    Header,
    encode,
)
from tests.host.clock import JumpingClock, StandingClock
from tests.host.server.agent_process import agent_process
from tests.host.server.peers import (
    PATIENCE_SECONDS,
    GateSink,
    Peer,
    batch,
    data,
    hello,
    peer,
    serving,
    until,
)

MIB = 1 << 20


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="ps-") as name:
        yield f"{name}/host.sock"


async def test_a_conversation() -> None:
    sink = GateSink()
    async with serving(sink) as agent:
        path = agent.settings.socket_path
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o660
        async with peer(agent, introduce=False) as one:
            answer = await one.introduced(topics=["orders"], client_name="till")
            assert answer.type == HELLO_ACK
            assert answer.accepted
            assert answer.producer_id == 101
            assert list(answer.partition_counts) == [3]
            assert answer.payload_bytes == agent.settings.credit_bytes
            assert answer.frame_bytes_max == sink.frame_bytes_max + 65_535
            await one.send(data(0, b"one"), batch(1, [b"two", b"", b"three"]))
            await one.expect(ACCEPTED, ranges=[0, 4])
            assert sink.accepted == [b"one", b"two", b"", b"three"]
            assert [c.machine.client_name for c in agent.connections] == ["till"]
        await until(lambda: not agent.connections)
    assert not os.path.lexists(path)
    assert sink.stopped_after is not None


async def test_a_verdict_that_comes_later() -> None:
    sink = GateSink(open_=False)
    async with serving(sink) as agent, peer(agent) as one:
        await one.send(data(0, b"a" * 300_000), data(1, b"b" * 10))
        await until(lambda: len(sink.pending) == 2)
        await one.send(encode(Header(type=PING, token=7)))
        await one.expect(PONG, token=7)
        sink.release()
        await one.expect(ACCEPTED, ranges=[0, 2])
        assert sink.accepted == [b"a" * 300_000, b"b" * 10]
        await one.send(data(2))
        await until(lambda: sink.pending)
        sink.release(Failed("no room", retryable=True, retry_after_ms=70))
        failed = await one.expect(FAILED, first_sequence=2, count=1, reason="no room")
        assert (failed.retryable, failed.retry_after_ms) == (True, 70)
        assert (failed.chunk_slots, failed.raw_events, failed.payload_bytes) == (1, 1, 7)


async def test_an_agent_with_a_sink_that_cannot_start() -> None:
    sink = GateSink()
    sink.error = UnavailableError("no broker")
    with pytest.raises(UnavailableError, match="no broker"):
        async with serving(sink):
            pass


async def test_a_second_agent_is_refused_without_effect_on_the_first() -> None:
    async with serving() as agent, peer(agent) as one:
        sink = GateSink()
        second = HostAgent(HostSettings(socket_path=agent.settings.socket_path), sink)
        with pytest.raises(SocketAlive):
            await second.start()
        assert sink.stopped_after is not None
        await second.stop()
        await one.send(data(0))
        await one.expect(ACCEPTED, ranges=[0, 1])


async def test_a_path_too_long_is_said_before_anything_starts() -> None:
    with pytest.raises(SocketPathUnusable, match="at most 107 are allowed"):
        async with serving(socket_path="/tmp/" + "x" * 200):
            pass


async def test_takeover_while_the_old_agent_still_serves() -> None:
    old_sink, new_sink = GateSink(), GateSink()
    async with serving(old_sink) as old, peer(old) as first:
        settings = HostSettings(
            socket_path=old.settings.socket_path, socket_takeover=True, drain_timeout_ms=1000
        )
        async with serving(new_sink, settings=settings) as new, peer(new) as second:
            await second.send(data(0, b"new"))
            await second.expect(ACCEPTED)
            await first.send(data(0, b"old"))
            await first.expect(ACCEPTED)
            stopping = asyncio.create_task(old.stop())
            await first.expect(DRAIN)
            first.close()
            await stopping
            async with peer(new) as third:  # the old one's cleanup has left the path alone
                await third.send(data(0, b"newer"))
                await third.expect(ACCEPTED)
    assert old_sink.accepted == [b"old"]
    assert new_sink.accepted == [b"new", b"newer"]


async def test_a_connection_above_the_limit_is_refused_with_the_reason() -> None:
    async with serving(connections_max=2) as agent:
        async with peer(agent), peer(agent) as second:
            third = Peer(agent.settings.socket_path)
            await third.connect()
            refused = await third.expect(HELLO_ACK, accepted=False)
            assert "too many connections" in refused.reason
            assert await third.ended() == []
            third.close()
            await second.send(data(0))
            await second.expect(ACCEPTED)
        await until(lambda: not agent.connections)
        async with peer(agent) as fourth:
            await fourth.send(data(0))
            await fourth.expect(ACCEPTED)
        assert agent.connections.totals.refused_connections == 1


async def test_credit_is_shared_and_grows_when_others_leave() -> None:
    sink = GateSink(open_=False)
    async with serving(
        sink,
        frame_max_bytes=MIB,
        credit_bytes=8 * MIB,
        credit_total_bytes=16 * MIB,
        connections_max=4,
    ) as agent:
        async with peer(agent) as first, peer(agent, introduce=False) as late:
            await until(lambda: len(agent.connections) == 2)
            assert agent.connections.budget.granted_bytes < 16 * MIB
            first.close()
            await until(lambda: len(agent.connections) == 1)
            await until(lambda: agent.connections.budget.granted_bytes == 8 * MIB)
            answer = await late.introduced()  # HELLO after the others have gone
            assert answer.payload_bytes == 8 * MIB
        await until(lambda: not agent.connections)
        async with peer(agent, introduce=False) as a, peer(agent, introduce=False) as b:
            async with peer(agent, introduce=False) as c:
                grants = [(await producer.introduced()).payload_bytes for producer in (a, b, c)]
                assert sum(grants) <= 16 * MIB
                assert min(grants) >= MIB
                c.close()
            granted = grants[1]
            while granted < 5 * MIB:
                granted += (await b.expect(CREDIT_UPDATE)).payload_bytes
            await b.send(*(data(number, b"x" * 1_000_000) for number in range(5)))
            await until(lambda: len(sink.pending) == 5)
            sink.release()
            while (header := await b.header()).type == CREDIT_UPDATE:
                pass
            assert header.type == ACCEPTED


async def test_a_producer_beyond_its_credit() -> None:
    sink = GateSink(open_=False)
    async with serving(sink, credit_bytes=65_536, retry_after_ms=40) as agent:
        async with peer(agent) as cheat, peer(agent) as honest:
            await cheat.send(data(0, b"x" * 60_000), data(1, b"x" * 60_000))
            failed = await cheat.expect(FAILED, first_sequence=1, reason="credit exhausted")
            assert failed.retryable
            assert (failed.retry_after_ms, failed.payload_bytes) == (40, 60_000)
            await cheat.expect(CREDIT_UPDATE, retry_after_ms=40, payload_bytes=0)
            assert len(sink.pending) == 1
            await honest.send(data(0))
            await until(lambda: len(sink.pending) == 2)
            sink.release()
            await cheat.expect(ACCEPTED, ranges=[0, 1])
            await honest.expect(ACCEPTED, ranges=[0, 1])
            await cheat.send(data(1, b"x" * 60_000))
            await until(lambda: sink.pending)
            sink.release()
            await cheat.expect(ACCEPTED, ranges=[1, 1])
        await until(lambda: not agent.connections)
        assert agent.connections.totals.overdrafts == 1


async def test_a_producer_that_disconnects_frees_its_credit() -> None:
    sink = GateSink(open_=False)
    async with serving(sink) as agent:
        async with peer(agent) as one:
            await one.send(*(data(number, b"x" * 1000) for number in range(5)))
            await until(lambda: len(sink.pending) == 5)
        await until(lambda: not agent.connections)
        assert agent.connections.totals.lost_frames == 5
        assert agent.connections.budget.granted_bytes == 0
        sink.release()
        assert len(sink.accepted) == 5
        assert agent.connections.pool.received_bytes == 0


async def test_a_silent_producer_is_pinged_then_closed() -> None:
    clock = JumpingClock()
    async with (
        serving(clock=clock, idle_timeout_ms=600_000, ping_interval_ms=200_000) as agent,
        peer(agent) as silent,
        peer(agent) as awake,
    ):
        clock.ahead += 200
        token = (await awake.expect(PING)).token
        await awake.send(encode(Header(type=PONG, token=token)))
        await awake.send(encode(Header(type=PING, token=7)))
        await awake.expect(PONG, token=7)  # so that it has been heard
        clock.ahead += 400
        headers = await silent.ended()
        assert {header.type for header in headers[:-1]} == {PING}
        assert headers[-1].type == FAILED
        assert "nothing was received" in headers[-1].reason
        await awake.send(data(0))
        while (header := await awake.header()).type == PING:
            pass
        assert header.type == ACCEPTED


async def test_producers_do_not_time_out_while_the_agent_is_suspended() -> None:
    clock = JumpingClock()
    async with serving(clock=clock) as agent, peer(agent) as one:

        def held_up() -> None:
            """Run what the loop runs first when the process resumes after an hour."""
            clock.ahead += 3600
            assert agent._tick_timer is not None
            agent._tick_timer.cancel()
            agent._tick()

        one.socket.send(data(0))  # it lies there unread
        held_up()
        await one.expect(ACCEPTED, ranges=[0, 1])
        held_up()
        held_up()  # not put off for ever
        assert "nothing was received" in (await one.expect(FAILED)).reason


async def test_one_that_never_says_hello_is_closed() -> None:
    async with (
        serving(idle_timeout_ms=300, ping_interval_ms=100) as agent,
        peer(agent, introduce=False) as mute,
    ):
        headers = await mute.ended()
        assert [header.type for header in headers] == [HELLO_ACK]
        assert not headers[0].accepted


async def test_a_health_check_needs_no_hello() -> None:
    async with serving() as agent, peer(agent, introduce=False) as probe:
        await probe.send(encode(Header(type=PING, token=3)))
        await probe.expect(PONG, token=3)


async def test_a_sink_that_refuses_a_producer() -> None:
    sink = GateSink()
    async with serving(sink) as agent:
        sink.error = UnavailableError("there is no topic of this name")
        async with peer(agent, introduce=False) as one:
            refused = await one.introduced(topics=["nope"])
            assert not refused.accepted
            assert refused.reason == "there is no topic of this name"
            assert await one.ended() == []
        sink.error = RuntimeError("a bug")
        async with peer(agent, introduce=False) as one:
            refused = await one.introduced()
            assert not refused.accepted
            assert "a bug" not in refused.reason
        sink.error = None
        async with peer(agent) as one:
            await one.send(data(0))
            await one.expect(ACCEPTED)


async def test_a_producer_that_disconnects_before_its_introduction() -> None:
    sink = GateSink()
    sink.introduction = asyncio.Event()
    async with serving(sink) as agent:
        async with peer(agent, introduce=False) as one:
            await one.send(hello())
            await until(lambda: sink.topics)
        await until(lambda: not agent.connections)
        sink.introduction.set()
        async with peer(agent) as other:
            await other.send(data(0))
            await other.expect(ACCEPTED)


async def test_draining_in_good_order() -> None:
    sink, clock = GateSink(open_=False), StandingClock()
    async with serving(sink, clock=clock, drain_timeout_ms=10_000) as agent:
        path = agent.settings.socket_path
        async with peer(agent) as busy, peer(agent) as idle, peer(agent, introduce=False) as late:
            await busy.send(data(0), data(1))
            await until(lambda: len(sink.pending) == 2)
            stopping = asyncio.create_task(agent.stop())
            drain = await busy.expect(DRAIN)
            assert drain.deadline_ms == 10_000
            assert drain.reason
            await idle.expect(DRAIN)
            assert not os.path.lexists(path)
            refused = await late.introduced()
            assert not refused.accepted
            assert "draining" in refused.reason
            assert probe(path) == errno.ENOENT
            await busy.send(data(2))  # sent before it has seen the DRAIN
            await until(lambda: len(sink.pending) == 3)
            sink.release()
            await busy.expect(ACCEPTED, ranges=[0, 3])
            assert len(agent.connections) == 2, "no producer has been idle for long"
            ends = asyncio.gather(idle.ended(), busy.ended())

            def later() -> bool:
                clock.seconds += 0.02
                return ends.done()

            await until(later)
            assert list(await ends) == [[], []]
            await stopping
            assert clock.seconds < 1010, "it had to wait for its deadline"
    assert len(sink.accepted) == 3


async def test_connections_during_a_drain_are_served_by_the_next_agent() -> None:
    """The directory's lock keeps the path there for a while after DRAIN, and no agent accepts."""
    old_sink, new_sink = GateSink(), GateSink()
    async with serving(old_sink) as old:
        path = old.settings.socket_path
        directory = os.open(os.path.dirname(path), os.O_RDONLY)
        fcntl.flock(directory, fcntl.LOCK_EX)
        stopping = asyncio.create_task(old.stop())
        await until(lambda: old.connections.draining)
        assert os.path.lexists(path)
        late = Peer(path)
        await late.connect()
        await late.send(hello())
        async with AsyncHostClient(path) as client:
            future = client.publish_nowait(b"late")
            assert client.state == "handshake"
            os.close(directory)
            assert await late.ended() == []
            late.close()
            await stopping
            assert not os.path.lexists(path)
            async with serving(new_sink, settings=HostSettings(socket_path=path)):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await future
    assert (old_sink.accepted, new_sink.accepted) == ([], [b"late"])


async def test_the_deadline_of_a_drain_ends_it() -> None:
    sink = GateSink(open_=False)
    async with serving(sink, drain_timeout_ms=300) as agent, peer(agent) as busy:
        await busy.send(data(0))
        await until(lambda: sink.pending)
        stopping = asyncio.create_task(agent.stop())
        await busy.expect(DRAIN)
        await busy.expect(ACCEPTED, ranges=[0, 1])  # completed by the sink's stop, and still said
        assert await busy.ended() == []
        await stopping


async def test_one_that_ignores_the_drain_and_reads_nothing() -> None:
    sink = GateSink()
    async with serving(sink, drain_timeout_ms=300) as agent, peer(agent) as one:
        stopping = asyncio.create_task(agent.stop())
        await asyncio.wait_for(stopping, PATIENCE_SECONDS)
        assert not agent.connections
        one.close()


async def test_accepting_pauses_without_descriptors(path: str) -> None:
    """With no descriptor left, who is there is served, and who waits is served later.

    The agent is a process of its own: others in this one need descriptors.
    """
    with agent_process(path, stderr=subprocess.PIPE) as process:
        one = Peer(path)
        await one.connect()
        assert (await one.introduced()).accepted
        taken = {int(name) for name in os.listdir(f"/proc/{process.pid}/fd")}
        free = next(number for number in count() if number not in taken)
        before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (free, before[1]))
        waiting = [Peer(path) for _ in range(5)]
        for other in waiting:
            await other.connect()
        assert process.stderr is not None
        said = await asyncio.to_thread(process.stderr.readline)
        assert said.startswith("accepting pauses: [Errno 24]")
        await one.send(data(0))
        await one.expect(ACCEPTED)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)
        for other in waiting:
            assert (await other.introduced()).accepted
        for other in (one, *waiting):
            other.close()


async def test_a_stale_file_at_the_start() -> None:
    async with serving() as agent:
        path = agent.settings.socket_path
        await agent.stop()
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(path)
        async with (
            serving(settings=HostSettings(socket_path=path, drain_timeout_ms=500)) as next_,
            peer(next_) as one,
        ):
            await one.send(data(0))
            await one.expect(ACCEPTED)


async def test_payloads_in_a_ring() -> None:
    sink = GateSink(open_=False)
    async with serving(sink) as agent:
        path = agent.settings.socket_path
        async with AsyncHostClient(path, ring_bytes=4 * MIB, client_name="ring") as client:
            await client.wait_started()
            payloads = [bytes((number,)) * 300_000 for number in range(5)]
            futures = [client.publish_nowait(payload) for payload in payloads]
            await until(lambda: len(sink.pending) == 5)
            (connection,) = agent.connections
            assert connection.machine.ring is not None
            assert agent.connections.bytes_in < 10_000
            sink.release()
            await asyncio.gather(*futures)
        assert sink.accepted == payloads


async def test_rings_can_be_turned_off() -> None:
    sink = GateSink()
    async with serving(sink, ring_max_bytes=0) as agent:
        path = agent.settings.socket_path
        async with AsyncHostClient(path, ring_bytes=4 * MIB) as client:
            await client.publish(b"x" * 300_000)
            (connection,) = agent.connections
            assert connection.machine.ring is None
        assert sink.accepted == [b"x" * 300_000]


async def test_a_hundred_producers_are_drained() -> None:
    """The agent does not wait for producers that leave on request."""
    async with serving(drain_timeout_ms=600_000) as agent:
        many = [AsyncHostClient(agent.settings.socket_path) for _ in range(100)]
        for client in many:
            await client.start()
            await client.publish(b"x")
        async with asyncio.timeout(60):  # not ten minutes
            await agent.stop()
        for client in many:
            await client.stop()
