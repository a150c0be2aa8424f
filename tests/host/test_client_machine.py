"""The producer's side of a connection: states against frames, contradictions, credit, time."""

from __future__ import annotations

import pytest

from penstock.host.client_machine import (
    _ALLOWED,
    LARGE_PIECE_BYTES,
    ClientMachine,
    ClientState,
    ClientTerms,
    CreditChanged,
    Disconnect,
    Drained,
    Ended,
    Started,
)
from penstock.host.credits import NO_CREDIT, Credit
from penstock.host.errors import (
    ClientClosed,
    Draining,
    FrameFailed,
    FrameRefused,
    FrameTooLarge,
    LostOnDisconnect,
    NoCredit,
    NotConnected,
    ProducerFenced,
    ProtocolViolation,
    PublishTimedOut,
)
from penstock.host.publication import NO_POSITION, Publication, batch, single
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
    PRELUDE_BYTES,
    Frame,
    FrameType,
    Header,
    decode,
)
from tests.host.pair import frames_of

IDLE_MS = 9_000


def frame(**fields: object) -> Frame:
    return Frame(Header(**fields), memoryview(b""))  # type: ignore[arg-type]


def hello_ack(**fields: object) -> Frame:
    known: dict[str, object] = {
        "type": HELLO_ACK, "accepted": True, "version": 1, "producer_id": 5, "chunk_slots": 8,
        "raw_events": 100, "payload_bytes": 1_000, "frame_bytes_max": 2_000,
        "idle_timeout_ms": IDLE_MS,
    }  # fmt: skip
    return frame(**(known | fields))


def said(machine: ClientMachine) -> list[Header]:
    """Return what the machine has sent since the last call."""
    return [frame.header for frame in frames_of(b"".join(machine.take_output()))]


def started(
    terms: ClientTerms | None = None, *, ring: bool = False, **offer: object
) -> ClientMachine:
    machine = ClientMachine(terms or ClientTerms())
    machine.connected(0, ring=ring)
    ring_bytes = machine.terms.ring_bytes if ring else 0
    machine.receive(hello_ack(ring_size_bytes=ring_bytes, **offer), 0)
    machine.take_output()
    return machine


def draining() -> ClientMachine:
    machine = started()
    machine.receive(frame(type=DRAIN, deadline_ms=400, reason="replaced"), 0)
    return machine


def in_handshake() -> ClientMachine:
    machine = ClientMachine(ClientTerms())
    machine.connected(0)
    machine.take_output()
    return machine


def sent(machine: ClientMachine, *publications: Publication) -> list[Publication]:
    for publication in publications:
        machine.publish(publication, 0)
    return list(publications)


def test_a_second_hello_is_waited_for_without_a_ping() -> None:
    machine = started()
    machine.disconnected("cut")
    machine.connected(100)
    assert machine.next_wake_ms() == 100 + IDLE_MS
    machine.tick(100 + IDLE_MS / 2)
    assert [header.type for header in said(machine)] == [HELLO]
    machine.receive(hello_ack(), 100 + IDLE_MS / 2)
    machine.tick(100 + IDLE_MS - 1)
    assert [header.type for header in said(machine)] == [PING]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": ACCEPTED, "ranges": [0, 1, 9, 1]}, "sequence 9, which is not in flight"),
        ({"type": ACCEPTED, "ranges": [0, 1, 0, 1]}, "sequence 0, which is not in flight"),
        ({"type": ACCEPTED, "ranges": [0, 1, 1]}, "3 numbers are not pairs"),
        ({"type": ACCEPTED, "ranges": [0, 2]}, "a part of a frame, up to sequence 2"),
        ({"type": ACCEPTED, "ranges": [2, 1]}, "sequence 2, which is not in flight"),
        ({"type": FAILED, "first_sequence": 9, "count": 1}, "sequence 9, which is not in flight"),
        ({"type": FAILED, "first_sequence": 0, "count": 1}, "restored 0 chunks, 0 events, 0 bytes"),
    ],
)
def test_a_contradictory_answer_is_ignored_as_a_whole(
    fields: dict[str, object], message: str
) -> None:
    machine = started()
    first, second = sent(machine, single(b"a"), batch([b"b", b"c", b"d"]))
    with pytest.raises(ProtocolViolation, match=message):
        machine.receive(frame(**fields), 1)
    (event,) = machine.disconnected("violated")
    assert isinstance(event, Ended)
    assert set(event.publications) == {first, second}
    assert not machine.in_flight


# Every state against every frame

MACHINES = {
    ClientState.DISCONNECTED: lambda: ClientMachine(ClientTerms()),
    ClientState.HANDSHAKE: in_handshake,
    ClientState.STARTED: started,
    ClientState.DRAINING: draining,
}
FRAMES: dict[int, Frame] = {
    0: frame(),
    HELLO: frame(type=HELLO, version_min=1, version_max=1),
    HELLO_ACK: hello_ack(),
    DATA: frame(type=DATA, event_count=1),
    DATA_BATCH: frame(type=DATA_BATCH, count=1, lengths=bytes(4), event_count=1),
    ACCEPTED: frame(type=ACCEPTED),
    FAILED: frame(type=FAILED, reason="over"),
    CREDIT_UPDATE: frame(type=CREDIT_UPDATE, chunk_slots=1, retry_after_ms=7),
    DRAIN: frame(type=DRAIN, deadline_ms=200, reason="bye"),
    PING: frame(type=PING, token=3),
    PONG: frame(type=PONG, token=3),
    11: frame(type=11),
}
Happens = tuple[ClientState, type | None]
STARTED, DRAINING = ClientState.STARTED, ClientState.DRAINING
TABLE: dict[ClientState, dict[int, Happens]] = {
    ClientState.DISCONNECTED: {},
    ClientState.HANDSHAKE: {
        HELLO_ACK: (STARTED, Started),
        DRAIN: (ClientState.HANDSHAKE, Disconnect),
    },
    STARTED: {
        ACCEPTED: (STARTED, None),
        FAILED: (STARTED, Disconnect),
        CREDIT_UPDATE: (STARTED, CreditChanged),
        DRAIN: (DRAINING, Drained),
        PING: (STARTED, None),
        PONG: (STARTED, None),
    },
    DRAINING: {
        ACCEPTED: (DRAINING, None),
        FAILED: (DRAINING, Disconnect),
        CREDIT_UPDATE: (DRAINING, CreditChanged),
        DRAIN: (DRAINING, Drained),
        PING: (DRAINING, None),
        PONG: (DRAINING, None),
    },
}


def test_the_sweep_is_whole() -> None:
    assert FRAMES.keys() == {*FrameType.values(), 11}
    assert TABLE.keys() == MACHINES.keys() == set(ClientState)
    assert {state: set(row) for state, row in TABLE.items()} == {
        state: set(kinds) for state, kinds in _ALLOWED.items()
    }


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("state", ClientState, ids=lambda state: state.value)
def test_state_against_frame(state: ClientState, kind: int) -> None:
    machine = MACHINES[state]()
    assert machine.state is state
    expected = TABLE[state].get(kind)
    if expected is None:
        with pytest.raises(ProtocolViolation, match=f"frame type {kind}, .* {state.value}"):
            machine.receive(FRAMES[kind], 1)
        assert machine.state is state
        assert said(machine) == []
        return
    events = machine.receive(FRAMES[kind], 1)
    assert (machine.state, type(events[0]) if events else None) == expected
    answers = [header.type for header in said(machine)]
    assert answers == ([PONG] if kind == PING else [])


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (ClientState.DISCONNECTED, NotConnected),
        (ClientState.HANDSHAKE, NotConnected),
        (ClientState.STARTED, None),
        (ClientState.DRAINING, Draining),
    ],
    ids=lambda value: getattr(value, "value", getattr(value, "__name__", "sent")),
)
def test_publishing_in_every_state(state: ClientState, error: type[Exception] | None) -> None:
    machine = MACHINES[state]()
    if error is None:
        machine.publish(single(b"x"), 0)
        assert len(machine.in_flight) == 1
    else:
        with pytest.raises(error):
            machine.publish(single(b"x"), 0)
    machine.close()
    with pytest.raises(ClientClosed):
        machine.publish(single(b"x"), 0)


# HELLO


def test_what_hello_says() -> None:
    terms = ClientTerms(topics=("t", "u"), client_name="me", ring_bytes=4_096)
    machine = ClientMachine(terms, producer_id=9, producer_epoch=2)
    machine.connected(0, ring=True)
    (hello,) = said(machine)
    assert (hello.type, hello.version_min, hello.version_max) == (HELLO, 1, 1)
    assert (hello.producer_id, hello.producer_epoch, hello.client_name) == (9, 2, "me")
    assert (list(hello.topics), hello.ring_size_bytes) == (["t", "u"], 4_096)
    machine.receive(hello_ack(producer_id=9, partition_counts=[3, 0]), 0)
    assert machine.partitions == {"t": 3, "u": 0}
    assert machine.space is None  # the agent did not take the ring
    without = ClientMachine(terms)
    without.connected(0)
    (hello,) = said(without)
    assert not hello.HasField("producer_id")
    assert hello.ring_size_bytes == 0


def test_the_handshake_grants_what_the_agent_says() -> None:
    machine = started()
    assert machine.window.granted == machine.window.available == Credit(8, 100, 1_000)
    assert (machine.producer_id, machine.frame_bytes_max) == (5, 2_000)


def test_a_refusal_names_its_reason() -> None:
    machine = in_handshake()
    events = machine.receive(frame(type=HELLO_ACK, reason="no such topic"), 0)
    assert events == [Disconnect("no such topic", refused=True, retryable=False)]


def test_a_refusal_for_now_says_so() -> None:
    machine = in_handshake()
    events = machine.receive(frame(type=HELLO_ACK, reason="no broker", retryable=True), 0)
    assert events == [Disconnect("no broker", refused=True)]


def test_a_fenced_answer_raises_producer_fenced() -> None:
    machine = started()
    (publication,) = sent(machine, single(b"x"))
    answer = frame(
        type=FAILED, count=1, reason="epoch 3", fenced=True,
        chunk_slots=1, raw_events=1, payload_bytes=1,
    )  # fmt: skip
    (event,) = machine.receive(answer, 0)
    assert isinstance(event, Ended)
    assert event.publications == [publication]
    assert isinstance(event.error, ProducerFenced)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"version": 0}, "chose version 0"),
        ({"version": 2}, "chose version 2"),
        ({"producer_id": 6}, "assigned id 6 to producer 5"),
        ({"producer_id": -1}, "assigned id -1 to producer 5"),
    ],
)
def test_a_handshake_that_contradicts(fields: dict[str, object], message: str) -> None:
    machine = ClientMachine(ClientTerms(), producer_id=5)
    machine.connected(0)
    with pytest.raises(ProtocolViolation, match=message):
        machine.receive(hello_ack(**fields), 0)
    assert machine.window.granted == NO_CREDIT


def test_an_agent_that_gives_no_producer_id_is_not_understood() -> None:
    machine = in_handshake()
    with pytest.raises(ProtocolViolation, match="assigned id -1 to producer -1"):
        machine.receive(frame(type=HELLO_ACK, accepted=True, version=1), 0)


# Credit


def test_credit_is_taken_and_comes_back() -> None:
    machine = started()
    (publication,) = sent(machine, batch([b"ab", b"cde"], event_counts=[4, 5]))
    assert machine.window.taken == publication.footprint == Credit(2, 9, 5)
    (event,) = machine.receive(frame(type=ACCEPTED, ranges=[0, 2]), 1)
    assert event == Ended([publication], None)
    assert machine.window.taken == NO_CREDIT


def test_failed_restores_what_it_says() -> None:
    machine = started()
    first, second = sent(machine, single(b"abc", event_count=7), single(b"d"))
    fields = {"type": FAILED, "count": 1, "chunk_slots": 1, "reason": "why"}
    (event,) = machine.receive(
        frame(**fields, first_sequence=0, raw_events=7, payload_bytes=3, retryable=True,
              retry_after_ms=50), 10,
    )  # fmt: skip
    assert isinstance(event, Ended)
    assert event.publications == [first]
    assert isinstance(event.error, FrameFailed)
    assert (str(event.error), event.error.retry_after_ms) == ("why", 50)
    with pytest.raises(NoCredit, match="pause") as raised:
        machine.publish(single(b"x"), 20)
    assert raised.value.retry_after_ms == 41
    (event,) = machine.receive(frame(**fields, first_sequence=1, raw_events=1, payload_bytes=1), 30)
    assert isinstance(event, Ended)
    assert event.publications == [second]
    assert isinstance(event.error, FrameRefused)
    assert machine.window.taken == NO_CREDIT
    machine.publish(single(b"x"), 60)


@pytest.mark.parametrize(
    ("publication", "left"),
    [
        (lambda: batch([b"x"] * 8), "0 chunks, 92 events, 992 bytes are left"),
        (lambda: single(b"x", event_count=99), "7 chunks, 1 events, 999 bytes are left"),
        (lambda: single(b"x" * 999), "7 chunks, 99 events, 1 bytes are left"),
    ],
)
def test_all_three_dimensions_or_nothing(publication: object, left: str) -> None:
    machine = started()
    sent(machine, publication())  # type: ignore[operator]
    before = machine.window.available
    with pytest.raises(NoCredit, match=left):
        machine.publish(single(b"xx", event_count=2), 0)
    assert machine.window.available == before
    machine.receive(frame(type=CREDIT_UPDATE, chunk_slots=1, raw_events=2, payload_bytes=2), 0)
    machine.publish(single(b"xx", event_count=2), 0)


def test_what_would_never_fit() -> None:
    machine = started()
    with pytest.raises(FrameTooLarge, match="exceeds the credit that the agent grants: 8 chunks"):
        machine.publish(batch([b"x"] * 9), 0)
    machine.receive(frame(type=CREDIT_UPDATE, payload_bytes=5_000), 0)
    with pytest.raises(FrameTooLarge, match="exceeds the agent's limit of 2000"):
        machine.publish(single(b"x" * 2_000), 0)
    assert machine.window.taken == NO_CREDIT
    assert said(machine) == []


def test_a_credit_update_may_ask_for_a_pause() -> None:
    machine = started()
    (event,) = machine.receive(frame(type=CREDIT_UPDATE, retry_after_ms=30), 100)
    assert event == CreditChanged(30)
    assert machine.window.granted == Credit(8, 100, 1_000)
    with pytest.raises(NoCredit):
        machine.publish(single(b"x"), 129)
    machine.publish(single(b"x"), 130)


# Sequences, payloads, the ring


def test_sequences_count_chunks_and_are_kept() -> None:
    machine = started()
    first, second, third = sent(machine, single(b"a"), batch([b"b"] * 3), single(b"c"))
    assert [p.first_sequence for p in (first, second, third)] == [0, 1, 4]
    machine.disconnected("cut")
    machine.connected(1)
    machine.receive(hello_ack(), 1)
    sent(machine, second, single(b"d"))
    assert list(machine.in_flight) == [1, 5]


@pytest.mark.parametrize("size", [3, LARGE_PIECE_BYTES + 1])
def test_large_pieces_follow_their_header_uncopied_and_small_ones_are_joined(size: int) -> None:
    machine = started(ClientTerms(checksum=True), payload_bytes=1 << 20, frame_bytes_max=1 << 20)
    pieces: list[bytes | bytearray] = [b"1" * size, bytearray(b"2" * size)]
    machine.publish(batch(pieces), 0)
    output = machine.take_output()
    if size > LARGE_PIECE_BYTES:
        assert output[1] is pieces[0]
        assert output[2] is pieces[1]
    else:
        assert len(output) == 1
    (parsed,) = frames_of(b"".join(output))
    assert parsed.flags == FLAG_PAYLOAD_CRC
    assert bytes(parsed.payload) == b"".join(pieces)


def test_payloads_in_the_ring() -> None:
    terms = ClientTerms(ring_bytes=100, ring_payload_bytes_min=40)
    machine = started(terms, ring=True)
    large, small, other = sent(machine, single(b"x" * 60), single(b"y" * 39), single(b"z" * 101))
    with pytest.raises(NoCredit, match="ring"):
        sent(machine, single(b"v" * 50))
    assert (large.ring_position, small.ring_position, other.ring_position) == (0, -1, -1)
    data = b"".join(machine.take_output())
    first, size = decode(data, 0, 2_000)
    assert first is not None
    assert size == PRELUDE_BYTES + len(first.header.SerializeToString())
    assert (first.header.ring_position, first.header.ring_bytes) == (0, 60)
    assert first.flags == FLAG_PAYLOAD_IN_RING
    assert len(frames_of(data[size:])) == 2
    assert machine.space is not None
    assert machine.space.taken_bytes == 60
    machine.receive(frame(type=ACCEPTED, ranges=[0, 1]), 1)
    assert machine.space.taken_bytes == 0
    sent(machine, single(b"w" * 80))
    assert machine.space.taken_bytes == 80
    machine.disconnected("cut")
    assert machine.space is None
    assert large.ring_position == NO_POSITION


def test_a_frame_too_large_for_the_agent_gives_its_place_in_the_ring_back() -> None:
    machine = started(ClientTerms(ring_bytes=4_096, ring_payload_bytes_min=1), ring=True)
    machine.receive(frame(type=CREDIT_UPDATE, payload_bytes=5_000), 0)
    with pytest.raises(FrameTooLarge):
        machine.publish(single(b"x" * 2_000), 0)
    assert machine.space is not None
    assert machine.space.taken_bytes == 0


# The end of a connection, and time


def test_what_is_under_way_is_lost_with_the_connection() -> None:
    machine = started()
    publications = sent(machine, single(b"a"), single(b"b"))
    (event,) = machine.disconnected("reset")
    assert isinstance(event, Ended)
    assert event.publications == publications
    assert isinstance(event.error, LostOnDisconnect)
    assert "reset" in str(event.error)
    assert machine.state is ClientState.DISCONNECTED
    assert machine.window.granted == NO_CREDIT
    assert machine.take_output() == []
    assert machine.disconnected("again") == []


def test_time_outs_keep_the_credit() -> None:
    machine = started(ClientTerms(publish_timeout_ms=100))
    (first,) = sent(machine, single(b"a"))
    machine.publish(single(b"b"), 60)
    assert machine.next_wake_ms() == 100
    assert machine.tick(99) == []
    (event,) = machine.tick(100)
    assert isinstance(event, Ended)
    assert event.publications == [first]
    assert isinstance(event.error, PublishTimedOut)
    first.end(event.error)
    assert machine.tick(101) == []  # said once
    assert machine.window.taken.slots == 2
    machine.receive(frame(type=ACCEPTED, ranges=[0, 1]), 102)
    assert machine.window.taken.slots == 1


def test_silence_and_pings() -> None:
    machine = started()
    assert machine.next_wake_ms() == IDLE_MS / 3
    assert machine.tick(IDLE_MS / 3) == []
    (ping,) = said(machine)
    assert (ping.type, ping.token) == (PING, IDLE_MS // 3)
    machine.receive(frame(type=PONG, token=ping.token), 3_500)
    assert machine.tick(3_500 + IDLE_MS - 1) == []
    (event,) = machine.tick(3_500 + IDLE_MS)
    assert event == Disconnect(f"nothing was received from the agent for {IDLE_MS} ms")


def test_a_ping_is_answered_with_its_token() -> None:
    machine = started()
    machine.receive(frame(type=PING, token=2**64 - 1), 0)
    assert [(header.type, header.token) for header in said(machine)] == [(PONG, 2**64 - 1)]


def test_a_drain_lasts_until_all_is_answered_or_the_nearer_deadline() -> None:
    machine = started(ClientTerms(drain_timeout_ms=300))
    sent(machine, single(b"a"))
    assert machine.receive(frame(type=DRAIN, deadline_ms=900, reason="bye"), 50) == [
        Drained(300, "bye")
    ]
    assert machine.next_wake_ms() == 350
    assert machine.tick(349) == []
    assert machine.tick(350) == [Disconnect("the agent is draining")]
    machine = draining()
    assert machine.next_wake_ms() == 0
    assert machine.tick(1) == [Disconnect("the agent is draining")]


def test_a_second_drain_does_not_give_more_time() -> None:
    machine = started()
    sent(machine, single(b"a"))
    machine.receive(frame(type=DRAIN, deadline_ms=100), 0)
    machine.receive(frame(type=DRAIN, deadline_ms=5_000), 10)
    assert machine.next_wake_ms() == 100


def test_a_client_without_a_connection_has_nothing_to_wake_for() -> None:
    machine = started()
    machine.disconnected("cut")
    assert machine.next_wake_ms() == float("inf")
    assert machine.tick(10**9) == []
