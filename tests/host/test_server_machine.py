"""The agent's side of a connection: states against frames, contradictions, credit, drain, time."""

from __future__ import annotations

from penstock.host.port import Introduction
from penstock.host.server_machine import Introduce, ServerMachine, ServerState
from penstock.wire.frames import DRAIN, HELLO, HELLO_ACK, Frame, Header
from tests.host.pair import SERVER_TERMS, frames_of


def frame(payload: bytes = b"", flags: int = 0, **fields: object) -> Frame:
    return Frame(Header(**fields), memoryview(payload), flags)  # type: ignore[arg-type]


def said(machine: ServerMachine) -> list[Header]:
    """What the machine has sent since the last call."""
    return [frame.header for frame in frames_of(b"".join(machine.take_output()))]


def test_a_drain_before_the_sink_has_answered_is_told_afterwards() -> None:
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


def test_whoever_waits_for_the_answer_to_hello_gets_that_and_nothing_else() -> None:
    machine = ServerMachine(SERVER_TERMS, now_ms=0)
    machine.receive(frame(type=HELLO, version_min=1, version_max=1))
    assert machine.tick(SERVER_TERMS.idle_timeout_ms) is not None
    (answer,) = said(machine)
    assert (answer.type, answer.accepted) == (HELLO_ACK, False)
    assert "nothing was heard" in answer.reason
    assert machine.state is ServerState.CLOSED
