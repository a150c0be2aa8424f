"""Bad input against a real agent: each sender gets an error, is closed, and harms no other."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from penstock.base.crc import crc32c
from penstock.host.server.agent import HostAgent
from penstock.host.server.connection import (
    ANSWER_BACKLOG_BYTES_MAX,
    ANSWER_STALL_MS,
    FRAME_BYTES_PER_MS_MIN,
    FRAME_GRACE_MS,
    TURN_BYTES,
)
from penstock.host.server.settings import HostSettings
from penstock.wire.frames import (
    ACCEPTED,
    DATA,
    FAILED,
    FLAG_PAYLOAD_IN_RING,
    HELLO_ACK,
    PING,
    PONG,
    PRELUDE_BYTES,
    Header,
    encode,
)
from tests.host.clock import JumpingClock, StandingClock
from tests.host.server.agent_process import agent_process
from tests.host.server.peers import GateSink, Peer, batch, data, hello, peer, serving, until

MIB = 1 << 20
NEVER_IDLE: dict[str, Any] = {"idle_timeout_ms": 3_600_000, "ping_interval_ms": 1_800_000}


@pytest.fixture
async def agent() -> AsyncIterator[HostAgent]:
    """An agent for which time stands still, and a bystander, who must be served at the end."""
    async with (
        serving(GateSink(), clock=StandingClock()) as one,
        peer(one, client_name="bystander") as bystander,
    ):
        yield one
        await bystander.send(data(0, b"bystander"))
        await bystander.expect(ACCEPTED, ranges=[0, 1])


def accepted(agent: HostAgent) -> list[bytes]:
    assert isinstance(agent.sink, GateSink)
    return agent.sink.accepted


def checked(sequence: int, payload: bytes) -> bytes:
    """A DATA frame with a checksum over its payload."""
    header = Header(type=DATA, first_sequence=sequence, event_count=1)
    return encode(header, (payload,), checksum=True) + payload


async def cut_off(agent: HostAgent, bad: bytes, *, introduce: bool = True) -> list[Header]:
    """Send bad bytes and hang up half-way: everything that the agent says until it closes."""
    async with peer(agent, introduce=introduce) as one:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await one.send(bad)
        with contextlib.suppress(OSError):
            one.socket.shutdown(socket.SHUT_WR)
        return await one.ended()


# Bytes that are no frames


async def test_every_bit_of_the_prelude(agent: HostAgent) -> None:
    whole = checked(0, b"payload")
    told = 0
    for bit in range(PRELUDE_BYTES * 8):
        bad = bytearray(whole)
        bad[bit // 8] ^= 1 << bit % 8
        answers = await cut_off(agent, bytes(bad))
        assert not [header for header in answers if header.type == ACCEPTED], bit
        if answers:
            told += 1
            assert [header.type for header in answers] == [FAILED], bit
            assert answers[0].reason
            assert answers[0].count == 0
    # Where the length grew within the limit, the agent waits for the rest, which never comes.
    assert told >= PRELUDE_BYTES * 8 - 22
    assert accepted(agent) == []
    assert agent.connections.totals.violations == told


async def test_every_bit_of_the_prelude_of_hello(agent: HostAgent) -> None:
    whole = hello(client_name="x")
    for bit in range(PRELUDE_BYTES * 8):
        bad = bytearray(whole)
        bad[bit // 8] ^= 1 << bit % 8
        for answer in await cut_off(agent, bytes(bad), introduce=False):
            assert answer.type == HELLO_ACK
            assert not answer.accepted
            assert answer.reason


async def test_every_byte_of_header_and_payload(agent: HostAgent) -> None:
    whole = checked(0, b"payload")
    for position in range(PRELUDE_BYTES, len(whole)):
        bad = bytearray(whole)
        bad[position] ^= 0x55
        answers = await cut_off(agent, bytes(bad))
        assert [header.type for header in answers] == [FAILED]
        assert "checksum" in answers[0].reason
    assert accepted(agent) == []


@pytest.mark.parametrize("seed", range(40))
async def test_garbage(agent: HostAgent, seed: int) -> None:
    dice = random.Random(seed)
    garbage = dice.randbytes(dice.choice((1, 15, 16, 17, 1000, 100_000)))
    for introduce in (True, False):
        answers = await cut_off(agent, garbage, introduce=introduce)
        assert [header for header in answers if header.type == ACCEPTED] == []
    assert accepted(agent) == []


@pytest.mark.parametrize(
    "start", [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"\x16\x03\x01\x02\x00" * 9]
)
async def test_other_protocols(agent: HostAgent, start: bytes) -> None:
    (answer,) = await cut_off(agent, start, introduce=False)
    assert answer.type == HELLO_ACK
    assert not answer.accepted
    assert answer.reason


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"\xff" * 20, "header of 20 bytes"),
        (b"", "header length 0"),
        (Header(type=63).SerializeToString(), "not allowed"),  # type: ignore[arg-type]
        (Header().SerializeToString() or b"\x00", ""),
    ],
)
async def test_headers_that_are_none(agent: HostAgent, body: bytes, word: str) -> None:
    prelude = pack(">IHBBII", len(body), len(body), 0, 0, crc32c(body), 0)
    (answer,) = await cut_off(agent, prelude + body)
    assert answer.type == FAILED
    assert word in answer.reason


def lying(length: int, header_bytes: int = 20) -> bytes:
    return pack(">IHBBII", length, header_bytes, 0, 0, 0, 0)


async def test_a_length_over_the_limit_takes_no_memory(folder: Path) -> None:
    path = str(folder / "host.sock")
    with agent_process(path) as process:
        before = process.peak_bytes
        for length in (2**31, 2**32 - 1, 9 * MIB):
            one = Peer(path)
            with contextlib.closing(one):
                await one.connect()
                assert (await one.introduced()).accepted
                await one.send(lying(length), b"x" * 100_000)
                failed = await one.expect(FAILED)
                assert (
                    f"frame length {length} bytes is over the limit of {8 * MIB}" in failed.reason
                )
                assert await one.ended() == []
        assert process.peak_bytes - before < 4 * MIB


async def test_declared_lengths_allocate_no_memory(folder: Path) -> None:
    """A hundred producers announce 8 MiB each and send a little of it."""
    path = str(folder / "host.sock")
    with agent_process(path) as process:
        before = process.peak_bytes
        many = [Peer(path) for _ in range(100)]
        for peer in many:
            await peer.connect()
            assert (await peer.introduced()).accepted
            await peer.send(lying(8 * MIB), b"x" * 80_000)
        last = Peer(path)
        await last.connect()
        assert (await last.introduced()).accepted
        await last.send(data(0))
        await last.expect(ACCEPTED)
        for peer in [*many, last]:
            peer.close()
        assert process.peak_bytes - before < 48 * MIB


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ps-") as name:
        yield Path(name)


# Frames that may not be


async def test_frames_before_hello(agent: HostAgent) -> None:
    for bad in (
        data(0),
        batch(0, [b"a"]),
        encode(Header(type=PONG)),
        encode(Header(type=ACCEPTED)),
    ):
        (answer,) = await cut_off(agent, bad, introduce=False)
        assert answer.type == HELLO_ACK
        assert not answer.accepted
        assert "not allowed in state handshake" in answer.reason


async def test_frames_that_only_agents_send(agent: HostAgent) -> None:
    for kind in (HELLO_ACK, ACCEPTED, FAILED):
        (answer,) = await cut_off(agent, encode(Header(type=kind)))
        assert answer.type == FAILED
        assert "not allowed in state open" in answer.reason


async def test_a_second_hello(agent: HostAgent) -> None:
    (answer,) = await cut_off(agent, hello())
    assert answer.type == FAILED
    assert "HELLO is not allowed" in answer.reason


async def test_data_that_does_not_wait_for_the_answer_to_hello(agent: HostAgent) -> None:
    answers = await cut_off(agent, hello() + data(0), introduce=False)
    (answer,) = answers
    assert not answer.accepted
    assert "state introducing" in answer.reason
    assert accepted(agent) == []


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"version_min": 2, "version_max": 9}, "versions 2 to 9 are not spoken"),
        ({"version_min": 0, "version_max": 0}, "not spoken"),
        ({"topics": [f"t{number}" for number in range(300)]}, "300 topics"),
        ({"producer_epoch": 40_000}, "epoch 40000"),
        ({"producer_id": -5}, "must not be negative"),
    ],
)
async def test_hellos_that_are_refused(agent: HostAgent, fields: dict[str, Any], word: str) -> None:
    (answer,) = await cut_off(agent, hello(**fields), introduce=False)
    assert answer.type == HELLO_ACK
    assert not answer.accepted
    assert word in answer.reason


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (batch(0, [b"ab"], lengths=b"\x03\0\0\0"), "3 bytes together in a payload of 2"),
        (batch(0, [b"ab"], lengths=b"\x02\0\0"), "3 bytes of lengths for 1 chunks"),
        (batch(0, [b"ab"], count=2), "4 bytes of lengths for 2 chunks"),
        (batch(0, [b"ab"], count=0, lengths=b""), "0 chunks"),
        (batch(0, [b""] * 4097), "4097 chunks"),
        (batch(0, [b"ab"], offsets=b"\x01\0\0\0"), "ends at byte 3 of a payload of 2"),
        (batch(0, [b"ab"], offsets=b"\xff\xff\xff\xff"), "ends at byte"),
        (batch(0, [b"ab"], event_counts=b"\x02\0\0\0"), "2 events in the chunks, 1 in the header"),
        (batch(0, [b"ab"], event_count=7), "1 events in the chunks, 7 in the header"),
        (batch(2**64 - 1, [b"ab"]), "out of range"),
        (data(0, count=2), "has one chunk"),
        (data(0, lengths=b"\x07\0\0\0"), "has one chunk"),
        (data(0, event_count=2**40), "events in one frame"),
        (data(0, format=17), "format 17 is not known"),
        (data(2**63), "out of range"),
        (
            encode(Header(type=DATA, event_count=1, ring_bytes=10), in_ring=True),
            "there is no ring",
        ),
        (
            pack(">IHBBII", 3, 2, FLAG_PAYLOAD_IN_RING, 0, crc32c(b"\x08\x03"), 0) + b"\x08\x03x",
            "flagged as in the ring",
        ),
    ],
)
async def test_fields_that_contradict_each_other(agent: HostAgent, bad: bytes, word: str) -> None:
    (answer,) = await cut_off(agent, bad)
    assert answer.type == FAILED
    assert word in answer.reason
    assert answer.count == 0
    assert accepted(agent) == []


async def test_a_sequence_that_is_under_way(folder: Path) -> None:
    sink = GateSink(open_=False)
    async with serving(sink) as agent, peer(agent) as one:
        await one.send(data(5), data(5))
        failed = await one.expect(FAILED)
        assert "sequence 5 is under way already" in failed.reason
        assert await one.ended() == []
        sink.release()


async def test_what_was_accepted_before_is_still_said(agent: HostAgent) -> None:
    """Frames that came whole before the bad one count, and the producer learns of it."""
    async with peer(agent) as one:
        await one.send(data(0, b"good"), batch(1, [b"a", b"b"]), b"\xff" * 32)
        await one.expect(ACCEPTED, ranges=[0, 3])
        assert (await one.expect(FAILED)).reason
        assert await one.ended() == []
    assert accepted(agent) == [b"good", b"a", b"b"]


# Frames that come in pieces, or many at a time


def conversation() -> list[bytes]:
    return [
        data(0, b"one"),
        batch(1, [b"two", b"", b"three"]),
        encode(Header(type=PING, token=9)),
        checked(4, b"four"),
    ]


CHUNKS = [b"one", b"two", b"", b"three", b"four"]


async def heard(one: Peer, count: int) -> int:
    """Read answers until so many chunks are accepted; the number of PONGs among them."""
    total = pongs = 0
    while total < count:
        header = await one.header()
        if header.type == PONG:
            pongs += 1
        else:
            assert header.type == ACCEPTED, header
            total += sum(header.ranges[1::2])
    assert total == count
    return pongs


async def test_cut_at_every_position(agent: HostAgent) -> None:
    whole = b"".join(conversation())
    for position in range(1, len(whole)):
        accepted(agent).clear()
        async with peer(agent) as one:
            goal = agent.connections.bytes_in + position
            await one.send(whole[:position])
            await until(lambda goal=goal: agent.connections.bytes_in == goal)  # type: ignore[misc]
            await one.send(whole[position:])
            assert await heard(one, 5) == 1
        assert accepted(agent) == CHUNKS


async def test_byte_by_byte(agent: HostAgent) -> None:
    async with peer(agent, introduce=False) as one:
        for byte in hello(topics=["orders"]):
            await one.send(bytes((byte,)))
            await asyncio.sleep(0)
        assert (await one.header()).accepted
        for byte in b"".join(conversation()):
            goal = agent.connections.bytes_in + 1
            await one.send(bytes((byte,)))
            await until(lambda goal=goal: agent.connections.bytes_in == goal)  # type: ignore[misc]
        assert await heard(one, 5) == 1
    assert accepted(agent) == CHUNKS


async def test_hundreds_of_frames_in_one_write(agent: HostAgent) -> None:
    async with peer(agent) as one:
        frames = [data(number, b"%d" % number) for number in range(1000)]
        await one.send(*frames)
        answers = 0
        total = 0
        while total < 1000:
            header = await one.expect(ACCEPTED)
            total += sum(header.ranges[1::2])
            answers += 1
        assert answers <= 5, "acknowledgements are gathered"
    assert accepted(agent) == [b"%d" % number for number in range(1000)]


@pytest.mark.parametrize("seed", range(10))
async def test_large_and_small_frames_in_pieces_of_any_size(agent: HostAgent, seed: int) -> None:
    dice = random.Random(seed)
    sizes = [dice.choice((0, 1, 100, 65_536, 200_000, 1_100_000)) for _ in range(12)]
    payloads = [dice.randbytes(size) for size in sizes]
    whole = b"".join(checked(number, payload) for number, payload in enumerate(payloads))
    async with peer(agent) as one:
        reading = asyncio.create_task(heard(one, len(payloads)))
        at = 0
        while at < len(whole):
            size = dice.choice((1, 17, 1000, 60_000, 400_000))
            await one.send(whole[at : at + size])
            at += size
            if dice.random() < 0.5:
                await asyncio.sleep(0)
        await reading
    assert accepted(agent) == payloads


# Those that do not take part


async def with_clock(
    sink: GateSink, folder: Path, **options: Any
) -> tuple[HostAgent, JumpingClock]:
    clock = JumpingClock()
    settings = HostSettings(
        socket_path=str(folder / "host.sock"), drain_timeout_ms=200, **NEVER_IDLE, **options
    )
    agent = HostAgent(settings, sink, clock=clock)
    await agent.start()
    return agent, clock


async def test_half_a_frame_and_then_nothing(folder: Path) -> None:
    agent, clock = await with_clock(GateSink(), folder)
    try:
        for size in (10, 40, 100_000):
            async with peer(agent) as half, peer(agent) as other:
                await half.send(checked(0, b"x" * 200_000)[:size])
                await other.send(data(0))
                await other.expect(ACCEPTED)
                clock.ahead += (FRAME_GRACE_MS + 200_016 / FRAME_BYTES_PER_MS_MIN) / 1e3
                failed = await half.expect(FAILED)
                assert "took too long" in failed.reason
                assert await half.ended() == []
                await other.send(data(1))
                await other.expect(ACCEPTED)
    finally:
        await agent.stop()
    assert agent.connections.pool.received_bytes == 0


async def test_one_that_reads_no_answers(folder: Path) -> None:
    """Its buffer is bounded, reading from it stops, and it is disconnected in the end."""
    agent, clock = await with_clock(GateSink(), folder, socket_buffer_bytes=4096)
    try:
        async with peer(agent, client_name="slow") as slow, peer(agent) as other:
            slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            pings = encode(Header(type=PING, token=1)) * 1000
            sent, stuck = 0, 0
            while stuck < 100:
                try:
                    sent += slow.socket.send(pings)
                    stuck = 0
                except BlockingIOError:
                    stuck += 1
                await asyncio.sleep(0.001)
            (held,) = [c for c in agent.connections if c.machine.client_name == "slow"]
            most = ANSWER_BACKLOG_BYTES_MAX + 2 * TURN_BYTES
            assert ANSWER_BACKLOG_BYTES_MAX < len(held._backlog) < most
            assert agent.connections.bytes_in < sent, "the agent has stopped reading"
            await other.send(data(0))
            await other.expect(ACCEPTED)
            clock.ahead += ANSWER_STALL_MS / 1000
            await until(lambda: held.closed)
            await other.send(data(1))
            while (header := await other.header()).type == PING:
                pass
            assert header.type == ACCEPTED
    finally:
        await agent.stop()


async def test_one_that_reads_late_gets_everything(folder: Path) -> None:
    agent, _ = await with_clock(GateSink(), folder, socket_buffer_bytes=4096)
    try:
        async with peer(agent) as one:
            count = 20_000
            sending = asyncio.create_task(
                one.send(*(encode(Header(type=PING, token=number)) for number in range(count)))
            )
            await until(lambda: any(len(c._backlog) > 1000 for c in agent.connections))
            for number in range(count):
                await one.expect(PONG, token=number)
            await sending
    finally:
        await agent.stop()


# Many


async def test_a_thousand_producers_at_once(folder: Path) -> None:
    """Connect all producers at the same time: each publishes, each gets an answer."""
    count = 1000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    path = str(folder / "host.sock")
    try:
        with agent_process(path) as process:
            first = Peer(path)
            await first.connect()
            await first.introduced()
            before = process.peak_bytes
            many = [Peer(path) for _ in range(count)]

            async def produce(number: int, one: Peer) -> None:
                await one.connect()
                answer = await one.introduced(client_name=f"producer {number}")
                assert answer.accepted
                assert answer.payload_bytes >= 8 * MIB
                await barrier.wait()
                await one.send(*(data(at, b"x" * 5_000) for at in range(10)))
                total = 0
                while total < 10:
                    header = await one.header()
                    total += sum(header.ranges[1::2]) if header.type == ACCEPTED else 0

            barrier = asyncio.Barrier(count)
            async with asyncio.timeout(60):
                await asyncio.gather(*(produce(n, one) for n, one in enumerate(many)))
            for peer in [*many, first]:
                peer.close()
            assert process.peak_bytes - before < 64 * MIB
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_coming_and_going(agent: HostAgent) -> None:
    """Hundreds connect, publish and leave without a word; nothing of them stays."""

    async def visit(number: int) -> None:
        async with peer(agent) as one:
            await one.send(data(0, b"x" * (number * 100)))
            if number % 3:
                await one.expect(ACCEPTED)

    for start in range(0, 400, 40):
        await asyncio.gather(*(visit(number) for number in range(start, start + 40)))
    await until(lambda: len(agent.connections) == 1)
    assert agent.connections.budget.granted_bytes == agent.settings.credit_bytes
    assert agent.connections.pool.received_bytes == 0
    assert agent.connections.scratch.on_loan == 0
