"""Frames of any content, in any order: violations at most, and the accounts stay right."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.host.client_machine import ClientMachine, ClientState, ClientTerms, Ended
from penstock.host.credits import Credit
from penstock.host.errors import NoCredit, ProtocolViolation
from penstock.host.port import ACCEPTED, Failed, Introduction
from penstock.host.publication import Publication, batch, single
from penstock.host.server_machine import Close, Deliver, Introduce, ServerMachine, ServerState
from penstock.wire.frames import (
    HELLO,
    HELLO_ACK,
    Frame,
    FrameType,
    Header,
    MalformedFrame,
    decode,
    encode,
)
from tests.host.pair import SERVER_TERMS, frames_of

small = st.integers(0, 3)
words = st.one_of(st.just(b""), st.integers(0, 5).map(lambda n: n.to_bytes(4, "little")),
                  st.just(bytes(8)), st.just(bytes(5)))  # fmt: skip
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "first_sequence": st.one_of(small, st.just(2**64 - 1)),
    "count": st.one_of(small, st.just(2**32 - 1)),
    "event_count": st.one_of(small, st.just(2**63)),
    "partition": small,
    "log_sequence": small,
    "format": st.integers(0, 2),
    "lengths": words,
    "offsets": words,
    "event_counts": words,
    "ring_position": st.one_of(small, st.just(2**64 - 1)),
    "ring_bytes": st.one_of(small, st.just(2**32 - 1)),
    "ranges": st.lists(st.one_of(small, st.just(2**64 - 1)), max_size=5),
    "retryable": st.booleans(),
    "retry_after_ms": small,
    "chunk_slots": small,
    "raw_events": small,
    "payload_bytes": small,
    "version_min": st.integers(0, 2),
    "version_max": st.integers(0, 2),
    "version": st.integers(0, 2),
    "accepted": st.booleans(),
    "producer_id": st.integers(-2, 5),
    "producer_epoch": st.sampled_from([0, 1, 2**31]),
    "topics": st.lists(st.just("t"), max_size=2),
    "partition_counts": st.lists(small, max_size=3),
    "ring_size_bytes": st.sampled_from([0, 64, 2**63]),
    "frame_bytes_max": st.sampled_from([0, 10, 2**31]),
    "idle_timeout_ms": st.sampled_from([0, 100]),
    "deadline_ms": small,
    "token": small,
}
kinds = st.sampled_from(FrameType.keys()[1:])  # the first is no type at all


@st.composite
def any_frames(draw: st.DrawFn) -> Frame:
    """A frame that went over the wire, so that it is at least well formed."""
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=8, unique=True))
    header = Header(type=draw(kinds), **{name: draw(FIELDS[name]) for name in names})
    payload = draw(st.binary(max_size=6))
    in_ring = draw(st.booleans()) and draw(st.booleans())
    data = encode(header, (payload,), in_ring=in_ring, checksum=draw(st.booleans()))
    frame, _ = decode(data if in_ring else data + payload, 0, 1 << 20)
    assert frame is not None
    return frame


def check_server(machine: ServerMachine) -> None:
    taken = [sum(column) for column in zip((0, 0, 0), *machine.in_flight.values(), strict=True)]
    assert tuple(taken) == machine.window.taken
    assert min(machine.window.available) >= 0


@settings(max_examples=150)
@given(st.lists(st.tuples(any_frames(), st.integers(0, 3)), max_size=25), st.booleans())
def test_an_agent_survives(frames: list[tuple[Frame, int]], begun: bool) -> None:
    machine = ServerMachine(SERVER_TERMS, now_ms=0)
    if begun:
        machine.receive(Frame(Header(type=HELLO, version_min=1, version_max=1), memoryview(b"")))
        machine.ring = memoryview(bytearray(64))
        machine.introduced(Introduction(producer_id=1), ring=True)
    pending = []
    for frame, completed in frames:
        try:
            effect = machine.receive(frame)
        except (ProtocolViolation, MalformedFrame) as error:
            machine.violated(str(error))
            break
        if isinstance(effect, Introduce):
            machine.introduced(Introduction(producer_id=1))
        elif isinstance(effect, Deliver):
            pending.append(effect.chunks)
        elif isinstance(effect, Close):
            assert machine.state is ServerState.CLOSED
            break
        for _ in range(min(completed, len(pending))):
            machine.completed(pending.pop(), Failed("no", True) if completed == 1 else ACCEPTED)
        check_server(machine)
    machine.flush()
    frames_of(b"".join(machine.take_output()))
    machine.disconnected()
    check_server(machine)


@settings(max_examples=150)
@given(st.lists(st.one_of(any_frames(), st.integers(1, 3)), max_size=25))
def test_a_client_survives(steps: list[Frame | int]) -> None:
    machine = ClientMachine(ClientTerms(topics=("t",), ring_bytes=64, ring_payload_bytes_min=2))
    machine.connected(0, ring=True)
    machine.receive(
        Frame(
            Header(type=HELLO_ACK, accepted=True, version=1, producer_id=3, chunk_slots=6,
                   raw_events=9, payload_bytes=20, frame_bytes_max=999, ring_size_bytes=64),
            memoryview(b""),
        ),
        0,
    )  # fmt: skip
    begun: list[Publication] = []
    ended: list[Publication] = []
    for step in steps:
        if isinstance(step, int):
            if machine.state is not ClientState.STARTED:
                break
            publication = single(b"abc") if step == 1 else batch([b"x"] * step)
            with contextlib.suppress(NoCredit):
                machine.publish(publication, 10**6)
                begun.append(publication)
            continue
        try:
            events = machine.receive(step, 0)
        except ProtocolViolation:
            break
        for event in events:
            if isinstance(event, Ended):
                ended += event.publications
        footprints = [publication.footprint for publication in machine.in_flight.values()]
        taken = [sum(column) for column in zip((0, 0, 0), *footprints, strict=True)]
        assert machine.window.taken == Credit(*taken)
        assert min(machine.window.available) >= 0
    for event in machine.disconnected("over"):
        assert isinstance(event, Ended)
        ended += event.publications
    assert len(ended) == len(begun)
    assert set(ended) == set(begun)
