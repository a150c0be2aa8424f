"""The producer's side of a connection: states against frames, contradictions, credit, time."""

from __future__ import annotations

import pytest

from penstock.host.client_machine import ClientMachine, ClientTerms, Ended
from penstock.host.errors import ProtocolViolation
from penstock.host.publication import Publication, batch, single
from penstock.wire.frames import ACCEPTED, FAILED, HELLO, HELLO_ACK, PING, Frame, Header
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
    """What the machine has sent since the last call."""
    return [frame.header for frame in frames_of(b"".join(machine.take_output()))]


def started(terms: ClientTerms = ClientTerms()) -> ClientMachine:  # noqa: B008
    machine = ClientMachine(terms)
    machine.connected(0)
    machine.receive(hello_ack(), 0)
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
        ({"type": ACCEPTED, "ranges": [0, 1, 9, 1]}, "sequence 9: not under way"),
        ({"type": ACCEPTED, "ranges": [0, 1, 0, 1]}, "sequence 0: not under way"),
        ({"type": ACCEPTED, "ranges": [0, 1, 1]}, "3 numbers are no ranges"),
        ({"type": ACCEPTED, "ranges": [0, 2]}, "up to sequence 2 only"),
        ({"type": ACCEPTED, "ranges": [2, 1]}, "sequence 2: not under way"),
        ({"type": FAILED, "first_sequence": 9, "count": 1}, "sequence 9: not under way"),
        ({"type": FAILED, "first_sequence": 0, "count": 1}, "restored 0 chunks, 0 events, 0 bytes"),
    ],
)
def test_nothing_is_believed_of_an_answer_that_contradicts(
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
