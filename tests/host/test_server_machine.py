"""The agent's side of a connection: states against frames, contradictions, credit, drain, time."""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.base.crc import crc32c
from penstock.host.credits import NO_CREDIT, Credit
from penstock.host.errors import ProtocolViolation
from penstock.host.port import ACCEPTED as ACCEPTED_VERDICT
from penstock.host.port import ChunkFormat, Chunks, Failed, Introduction
from penstock.host.server_machine import (
    _ALLOWED,
    Close,
    Deliver,
    Introduce,
    ServerMachine,
    ServerState,
    ServerTerms,
)
from penstock.wire.frames import (
    ACCEPTED,
    CREDIT_UPDATE,
    DATA,
    DATA_BATCH,
    DRAIN,
    FAILED,
    FLAG_PAYLOAD_CRC,
    FLAG_PAYLOAD_IN_RING,
    HELLO,
    HELLO_ACK,
    PING,
    PONG,
    Frame,
    FrameType,
    Header,
    MalformedFrame,
)
from tests.host.pair import SERVER_TERMS, frames_of


def frame(payload: bytes = b"", flags: int = 0, **fields: Any) -> Frame:
    return Frame(Header(**fields), memoryview(payload), flags)


def said(machine: ServerMachine) -> list[Header]:
    """Return what the machine has sent since the last call."""
    return [frame.header for frame in frames_of(b"".join(machine.take_output()))]


def test_a_drain_before_the_introduction_is_sent_after_it() -> None:
    machine = ServerMachine(SERVER_TERMS, now_ms=0)
    effect = machine.receive(frame(type=HELLO, version_min=1, version_max=1))
    assert isinstance(effect, Introduce)
    machine.drain(500, "replaced")
    assert said(machine) == []
    machine.introduced(Introduction(producer_id=3))
    first, second = said(machine)
    assert (first.type, second.type) == (HELLO_ACK, DRAIN)
    assert (second.deadline_ms, second.reason) == (500, "replaced")
    assert machine.state is ServerState.DRAINING


def test_an_idle_timeout_before_the_introduction_is_answered_by_hello_ack() -> None:
    machine = ServerMachine(SERVER_TERMS, now_ms=0)
    machine.receive(frame(type=HELLO, version_min=1, version_max=1))
    assert machine.tick(SERVER_TERMS.idle_timeout_ms) is not None
    (answer,) = said(machine)
    assert (answer.type, answer.accepted) == (HELLO_ACK, False)
    assert "nothing was received" in answer.reason
    assert machine.state is ServerState.CLOSED


# Every state against every frame


def opened(terms: ServerTerms = SERVER_TERMS, **hello: Any) -> ServerMachine:
    machine = ServerMachine(terms, now_ms=0)
    machine.receive(hello_frame(**hello))
    machine.introduced(Introduction(producer_id=3))
    machine.take_output()
    return machine


def hello_frame(**fields: Any) -> Frame:
    return frame(**({"type": HELLO, "version_min": 1, "version_max": 1} | fields))


def introducing() -> ServerMachine:
    machine = ServerMachine(SERVER_TERMS, now_ms=0)
    machine.receive(hello_frame())
    return machine


def drained() -> ServerMachine:
    machine = opened()
    machine.drain(100, "replaced")
    machine.take_output()
    return machine


def closed() -> ServerMachine:
    machine = opened()
    machine.disconnected()
    return machine


MACHINES = {
    ServerState.HANDSHAKE: lambda: ServerMachine(SERVER_TERMS, now_ms=0),
    ServerState.INTRODUCING: introducing,
    ServerState.OPEN: opened,
    ServerState.DRAINING: drained,
    ServerState.CLOSED: closed,
}
FRAMES: dict[int, Frame] = {
    0: frame(),
    HELLO: hello_frame(),
    HELLO_ACK: frame(type=HELLO_ACK, accepted=True),
    DATA: frame(b"x", type=DATA, event_count=1),
    DATA_BATCH: frame(b"xy", type=DATA_BATCH, count=2, lengths=pack("<2I", 1, 1), event_count=2),
    ACCEPTED: frame(type=ACCEPTED, ranges=[0, 1]),
    FAILED: frame(type=FAILED),
    CREDIT_UPDATE: frame(type=CREDIT_UPDATE, chunk_slots=1),
    DRAIN: frame(type=DRAIN),
    PING: frame(type=PING, token=3),
    PONG: frame(type=PONG, token=3),
    11: frame(type=11),
}
OPEN, DRAINING = ServerState.OPEN, ServerState.DRAINING
TABLE: dict[ServerState, dict[int, tuple[ServerState, type | None]]] = {
    ServerState.HANDSHAKE: {
        HELLO: (ServerState.INTRODUCING, Introduce),
        PING: (ServerState.HANDSHAKE, None),
    },
    ServerState.INTRODUCING: {},
    OPEN: {
        DATA: (OPEN, Deliver),
        DATA_BATCH: (OPEN, Deliver),
        PING: (OPEN, None),
        PONG: (OPEN, None),
    },
    DRAINING: {
        DATA: (DRAINING, Deliver),
        DATA_BATCH: (DRAINING, Deliver),
        PING: (DRAINING, None),
        PONG: (DRAINING, None),
    },
    ServerState.CLOSED: {},
}


def test_the_sweep_is_whole() -> None:
    assert FRAMES.keys() == {*FrameType.values(), 11}
    assert TABLE.keys() == MACHINES.keys() == set(ServerState)
    assert {state: set(row) for state, row in TABLE.items()} == {
        state: set(kinds) for state, kinds in _ALLOWED.items()
    }


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("state", ServerState, ids=lambda state: state.value)
def test_state_against_frame(state: ServerState, kind: int) -> None:
    machine = MACHINES[state]()
    assert machine.state is state
    expected = TABLE[state].get(kind)
    if expected is None:
        with pytest.raises(ProtocolViolation, match=f"not allowed in state {state.value}"):
            machine.receive(FRAMES[kind])
        assert machine.state is state
        assert said(machine) == []
        return
    effect = machine.receive(FRAMES[kind])
    assert (machine.state, type(effect) if effect else None) == expected
    assert [header.type for header in said(machine)] == ([PONG] if kind == PING else [])


@pytest.mark.parametrize("state", ServerState, ids=lambda state: state.value)
def test_a_violation_in_every_state(state: ServerState) -> None:
    machine = MACHINES[state]()
    assert machine.violated("because") == Close("because")
    assert machine.state is ServerState.CLOSED
    answers = [(header.type, header.reason) for header in said(machine)]
    if state is ServerState.CLOSED:
        assert answers == []
    elif state in (ServerState.HANDSHAKE, ServerState.INTRODUCING):
        assert answers == [(HELLO_ACK, "because")]
    else:
        assert answers == [(FAILED, "because")]


# HELLO


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"version_min": 0, "version_max": 0}, "protocol versions 0 to 0 are not spoken here"),
        ({"version_min": 2, "version_max": 9}, "protocol versions 2 to 9 are not spoken here"),
        ({"topics": ["t"] * 257}, "257 topics in one HELLO; at most 256"),
        ({"producer_epoch": 2**15}, "producer epoch 32768; at most 32767"),
        ({"producer_id": -2}, "producer id -2: must not be negative"),
    ],
)
def test_refused_hellos(fields: dict[str, Any], reason: str) -> None:
    machine = ServerMachine(SERVER_TERMS, now_ms=0)
    effect = machine.receive(hello_frame(**fields))
    assert isinstance(effect, Close)
    (answer,) = said(machine)
    assert (answer.type, answer.accepted) == (HELLO_ACK, False)
    assert answer.reason.startswith(reason)
    assert machine.state is ServerState.CLOSED


def test_a_client_of_more_versions_speaks_the_one_of_both() -> None:
    machine = ServerMachine(SERVER_TERMS, now_ms=0)
    machine.receive(hello_frame(version_min=0, version_max=7))
    machine.introduced(Introduction(producer_id=3))
    assert said(machine)[0].version == 1


def test_a_draining_agent_accepts_no_producers() -> None:
    machine = ServerMachine(SERVER_TERMS, now_ms=0, draining=True)
    assert machine.receive(hello_frame()) == Close("the agent is draining")
    assert said(machine)[0].reason == "the agent is draining"
    machine = ServerMachine(SERVER_TERMS, now_ms=0, draining=True)
    assert machine.receive(frame(type=PING)) == Close("the agent is draining")
    assert said(machine)[0].type == DRAIN


def test_what_the_sink_is_asked_and_what_it_answers() -> None:
    machine = ServerMachine(SERVER_TERMS, now_ms=0)
    effect = machine.receive(
        hello_frame(producer_id=9, producer_epoch=4, topics=["t", "u"], client_name="me",
                    ring_size_bytes=1 << 20)
    )  # fmt: skip
    assert effect == Introduce(9, ("t", "u"), 1 << 20)
    machine.introduced(Introduction(producer_id=9, partitions={"u": 6}), ring=True)
    (answer,) = said(machine)
    assert answer.accepted
    assert (answer.producer_id, answer.producer_epoch) == (9, 4)
    assert list(answer.partition_counts) == [0, 6]
    assert answer.ring_size_bytes == 1 << 20
    credit = SERVER_TERMS.credit
    assert (answer.chunk_slots, answer.raw_events, answer.payload_bytes) == credit
    assert (machine.producer_id, machine.producer_epoch, machine.client_name) == (9, 4, "me")
    machine.introduced(Introduction(producer_id=1))  # too late
    assert machine.producer_id == 9
    assert said(machine) == []


def test_a_ring_over_the_limit_is_not_taken() -> None:
    machine = ServerMachine(SERVER_TERMS, now_ms=0)
    assert machine.receive(hello_frame(ring_size_bytes=2 << 20)) == Introduce(-1, (), 0)


def test_the_sink_may_refuse() -> None:
    machine = introducing()
    machine.refuse("no such topic" * 100)
    (answer,) = said(machine)
    assert not answer.accepted
    assert len(answer.reason) == 512
    machine.introduced(Introduction(producer_id=1))
    assert machine.state is ServerState.CLOSED


# Contradictions

TWO = {"type": DATA_BATCH, "count": 2, "event_count": 2, "lengths": pack("<2I", 1, 2)}
BEYOND = 2**63


@pytest.mark.parametrize(
    ("payload", "flags", "fields", "message"),
    [
        (b"x", 0, {"type": DATA, "count": 2}, "a DATA frame has one chunk"),
        (b"x", 0, {"type": DATA, "lengths": pack("<I", 1)}, "a DATA frame has one chunk"),
        (b"x", 0, {"type": DATA, "offsets": pack("<I", 0)}, "a DATA frame has one chunk"),
        (b"x", 0, {"type": DATA, "event_counts": pack("<I", 1)}, "a DATA frame has one chunk"),
        (b"x", 0, {"type": DATA, "first_sequence": BEYOND - 1}, "or out of range"),
        (b"x", 0, {"type": DATA, "event_count": 2**31}, "2147483648 events in one frame"),
        (b"x", 0, {"type": DATA, "format": 2}, "chunk format 2 is not known"),
        (b"xyz", 0, TWO | {"count": 0, "lengths": b""}, "0 chunks in a DATA_BATCH"),
        (b"xyz", 0, TWO | {"count": 4097, "lengths": bytes(4 * 4097)}, "4097 chunks in a DATA_BA"),
        (b"xyz", 0, TWO | {"count": 3}, "8 bytes of lengths for 3 chunks"),
        (b"xyz", 0, TWO | {"lengths": bytes(7)}, "7 bytes of lengths for 2 chunks"),
        (b"xy", 0, TWO, "2 chunks of 3 bytes together in a payload of 2 bytes"),
        (b"xyzz", 0, TWO, "2 chunks of 3 bytes together in a payload of 4 bytes"),
        (b"xyz", 0, TWO | {"offsets": pack("<I", 0)}, "4 bytes of offsets for 2 chunks"),
        (b"xyz", 0, TWO | {"offsets": pack("<2I", 0, 2)}, "ends at byte 4 of a payload of 3"),
        (b"xyz", 0, TWO | {"offsets": pack("<2I", 2**32 - 1, 0)}, "ends at byte 4294967296 of"),
        (b"xyz", 0, TWO | {"lengths": pack("<2I", 2**32 - 1, 4)}, "4294967299 bytes together"),
        (b"xyz", 0, TWO | {"event_count": 3}, "2 events in the chunks, 3 in the header"),
        (b"xyz", 0, TWO | {"event_counts": pack("<2I", 1, 2)}, "3 events in the chunks, 2 in"),
        (b"xyz", 0, TWO | {"event_counts": pack("<I", 2)}, "4 bytes of event counts for 2"),
        (b"", 2, {"type": DATA, "ring_bytes": 1}, "and there is no ring"),
    ],
)  # fmt: skip
def test_fields_that_contradict(
    payload: bytes, flags: int, fields: dict[str, Any], message: str
) -> None:
    machine = opened()
    with pytest.raises(ProtocolViolation, match=message):
        machine.receive(frame(payload, flags, **({"event_count": 1} | fields)))
    assert machine.window.taken == NO_CREDIT
    assert machine.in_flight == {}


def test_a_sequence_comes_once_while_it_is_under_way() -> None:
    machine = opened()
    first = delivered(machine, b"x", first_sequence=4)
    with pytest.raises(ProtocolViolation, match="sequence 4 is under way already"):
        delivered(machine, b"x", first_sequence=4)
    machine.completed(first, Failed("later", retryable=True))
    delivered(machine, b"x", first_sequence=4)


@pytest.mark.parametrize(
    ("position", "size", "message"),
    [
        (90, 11, "payload at 90 to 101, and there is a ring of 100 bytes"),
        (2**64 - 1, 1, "payload at 18446744073709551615 to"),
        (0, 61, "payload of 61 bytes in the ring is over the limit of 60"),
    ],
)
def test_places_in_the_ring_that_are_none(position: int, size: int, message: str) -> None:
    machine = opened(replace(SERVER_TERMS, frame_bytes_max=60))
    machine.ring = memoryview(bytearray(100))
    with pytest.raises(ProtocolViolation, match=message):
        machine.receive(
            frame(flags=FLAG_PAYLOAD_IN_RING, type=DATA, event_count=1, ring_position=position,
                  ring_bytes=size)
        )  # fmt: skip


def test_a_payload_in_the_ring_is_not_copied() -> None:
    machine = opened()
    memory = bytearray(b"..hello...")
    machine.ring = memoryview(memory)
    header = Header(type=DATA, event_count=1, ring_position=2, ring_bytes=5)
    flags = FLAG_PAYLOAD_IN_RING | FLAG_PAYLOAD_CRC
    good = Frame(header, memoryview(b""), flags, crc32c(b"hello"))
    effect = machine.receive(good)
    assert isinstance(effect, Deliver)
    assert effect.chunks.payload.obj is memory
    assert bytes(effect.chunks.payload) == b"hello"
    memory[3:4] = b"a"
    header.first_sequence = 1
    with pytest.raises(MalformedFrame, match="checksum"):
        machine.receive(good)


# What is delivered


def delivered(machine: ServerMachine, payload: bytes, **fields: Any) -> Chunks:
    effect = machine.receive(frame(payload, **({"type": DATA, "event_count": 1} | fields)))
    assert isinstance(effect, Deliver)
    return effect.chunks


def test_what_the_sink_gets() -> None:
    machine = opened(producer_epoch=2)
    chunks = delivered(machine, b"xyz", **TWO, first_sequence=7, topic="t", partition=0,
                       log_sequence=0, format=1)  # fmt: skip
    assert (chunks.producer_id, chunks.producer_epoch) == (3, 2)
    assert (chunks.first_sequence, chunks.count, chunks.event_count) == (7, 2, 2)
    assert (chunks.topic, chunks.partition, chunks.log_sequence) == ("t", 0, 0)
    assert chunks.format is ChunkFormat.RECORD_BATCH
    assert chunks.adjacent
    assert chunks.lengths.tolist() == [1, 2]
    assert chunks.offsets.tolist() == [0, 1]
    plain = delivered(machine, b"")
    assert (plain.topic, plain.partition, plain.log_sequence) == ("", -1, -1)
    assert plain.lengths.tolist() == [0]


def test_chunks_with_offsets_may_have_gaps_and_any_order() -> None:
    machine = opened()
    chunks = delivered(machine, b"ab.c", **TWO | {"offsets": pack("<2I", 3, 0)})
    assert not chunks.adjacent
    assert chunks.offsets.tolist() == [3, 0]


# Verdicts and credit


def test_acceptances_share_a_frame() -> None:
    machine = opened()
    chunks = [delivered(machine, b"x", first_sequence=n) for n in (0, 1, 2, 5, 6)]
    for index in (0, 1, 3, 4, 2):
        machine.completed(chunks[index], ACCEPTED_VERDICT)
    assert machine.window.taken == NO_CREDIT
    assert said(machine) == []
    machine.flush()
    machine.flush()
    (answer,) = said(machine)
    assert (answer.type, list(answer.ranges)) == (ACCEPTED, [0, 2, 5, 2, 2, 1])
    assert (machine.accepted_chunks, machine.accepted_events, machine.accepted_bytes) == (5, 5, 5)


def test_a_frame_of_acceptances_is_bounded() -> None:
    terms = replace(SERVER_TERMS, credit=Credit(5_000, 5_000, 5_000))
    machine = opened(terms)
    for number in range(1_100):
        chunks = delivered(machine, b"x", first_sequence=2 * number)
        machine.completed(chunks, ACCEPTED_VERDICT)
    machine.flush()
    answers = [len(header.ranges) for header in said(machine)]
    assert answers == [2_048, 152]


def test_a_failure_says_what_it_restores_after_what_was_accepted_before() -> None:
    machine = opened()
    good = delivered(machine, b"x")
    bad = delivered(machine, b"xyz", **TWO, first_sequence=1)
    machine.completed(good, ACCEPTED_VERDICT)
    machine.completed(bad, Failed("w" * 600, retryable=True, retry_after_ms=9))
    first, second = said(machine)
    assert list(first.ranges) == [0, 1]
    assert (second.type, second.first_sequence, second.count) == (FAILED, 1, 2)
    assert (second.chunk_slots, second.raw_events, second.payload_bytes) == (2, 2, 3)
    assert (second.retryable, second.retry_after_ms, len(second.reason)) == (True, 9, 512)
    assert machine.failed_frames == 1


@pytest.mark.parametrize("dimension", range(3))
def test_an_overdraft_is_failed_and_takes_nothing(dimension: int) -> None:
    most = [10, 10, 10]
    most[dimension] = 1
    machine = opened(replace(SERVER_TERMS, credit=Credit(*most)))
    held = delivered(machine, b"x")
    before = machine.window.available
    assert machine.receive(frame(b"y", type=DATA, event_count=1, first_sequence=1)) is None
    failed, update = said(machine)
    assert (failed.type, failed.reason, failed.retryable) == (FAILED, "credit exhausted", True)
    assert (failed.chunk_slots, failed.raw_events, failed.payload_bytes) == (1, 1, 1)
    assert failed.retry_after_ms == update.retry_after_ms == SERVER_TERMS.retry_after_ms
    assert (update.type, update.chunk_slots) == (CREDIT_UPDATE, 0)
    assert machine.window.available == before
    assert machine.overdrafts == 1
    machine.completed(held, ACCEPTED_VERDICT)
    delivered(machine, b"y", first_sequence=1)


def test_a_grant_widens_the_window_of_an_open_connection() -> None:
    machine = opened()
    machine.grant(Credit(1, 2, 3))
    (update,) = said(machine)
    assert (update.chunk_slots, update.raw_events, update.payload_bytes) == (1, 2, 3)
    assert machine.window.granted == Credit(65, 1_002, (1 << 20) + 3)
    machine.grant(NO_CREDIT)
    for other in (introducing(), drained(), closed()):
        other.grant(Credit(1, 1, 1))
        assert said(other) == []
    assert said(machine) == []


def test_a_verdict_after_the_end_is_ignored() -> None:
    machine = opened()
    chunks = delivered(machine, b"x")
    delivered(machine, b"y", first_sequence=1)
    assert machine.disconnected() == 2
    assert machine.window.taken == NO_CREDIT
    machine.completed(chunks, ACCEPTED_VERDICT)
    machine.flush()
    assert said(machine) == []
    assert machine.accepted_chunks == 0


# Drain, time


def test_a_drain_takes_what_was_on_its_way() -> None:
    machine = opened()
    first = delivered(machine, b"x")
    machine.completed(first, ACCEPTED_VERDICT)
    machine.drain(250, "bye")
    accepted, drain = said(machine)
    assert list(accepted.ranges) == [0, 1]
    assert (drain.type, drain.deadline_ms, drain.reason) == (DRAIN, 250, "bye")
    machine.completed(delivered(machine, b"y", first_sequence=1), ACCEPTED_VERDICT)
    machine.flush()
    machine.drain(10, "again")
    assert [header.type for header in said(machine)] == [ACCEPTED]


def test_silence_is_pinged_and_then_ended() -> None:
    machine = opened()
    ping_ms, idle_ms = SERVER_TERMS.ping_interval_ms, SERVER_TERMS.idle_timeout_ms
    assert machine.tick(ping_ms - 1) is None
    assert said(machine) == []
    assert machine.tick(ping_ms) is None
    assert machine.tick(ping_ms + 1) is None
    assert [header.type for header in said(machine)] == [PING]
    machine.heard(ping_ms + 2)
    assert machine.tick(ping_ms + 2 + idle_ms - 1) is None
    close = machine.tick(ping_ms + 2 + idle_ms)
    assert isinstance(close, Close)
    assert f"nothing was received for {idle_ms} ms" in close.reason
    assert [header.type for header in said(machine)] == [PING, FAILED]


def test_no_ping_is_sent_before_hello() -> None:
    machine = ServerMachine(SERVER_TERMS, now_ms=0)
    assert machine.tick(SERVER_TERMS.idle_timeout_ms - 1) is None
    assert said(machine) == []
    assert machine.tick(SERVER_TERMS.idle_timeout_ms) is not None
