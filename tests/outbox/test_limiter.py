"""Limiter: order, both dimensions, oversized requests, and agreement with a model."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from penstock.base.errors import RetriableError
from penstock.outbox.errors import OutboxBug, OutboxBusy
from penstock.outbox.writer.writer import Admission, Limiter

BYTES, OPERATIONS, PENDING = 100, 3, 4
ADMITTED, QUEUED = Admission.ADMITTED, Admission.QUEUED


def limiter() -> Limiter[str]:
    return Limiter(bytes_max=BYTES, operations_max=OPERATIONS, pending_max=PENDING)


def test_bytes_and_operations_both_bound() -> None:
    room = limiter()
    assert [room.acquire(name, 60) for name in "ab"] == [ADMITTED, QUEUED]
    assert room.release("a") == ["b"]
    room = limiter()
    assert [room.acquire(name, 1) for name in "abcd"] == [ADMITTED] * 3 + [QUEUED]
    assert room.release("b") == ["d"]


def test_first_come_first_served() -> None:
    room = limiter()
    room.acquire("a", 50)
    assert room.acquire("large", 90) is QUEUED
    assert room.acquire("small", 1) is QUEUED, "it would fit, and must not pass the one before it"
    assert room.release("a") == ["large", "small"]


def test_an_oversized_request_runs_alone() -> None:
    room = limiter()
    room.acquire("a", 1)
    assert room.acquire("huge", 10 * BYTES) is QUEUED
    assert room.release("a") == ["huge"]
    assert room.in_flight_bytes == BYTES
    assert room.acquire("empty", 0) is QUEUED, "beside it not even an empty payload runs"
    assert room.release("huge") == ["empty"]


def test_the_queue_is_bounded() -> None:
    room = limiter()
    room.acquire("running", BYTES)
    for name in "abcd":
        assert room.acquire(name, 1) is QUEUED
    with pytest.raises(
        OutboxBusy, match=f"4 writes wait for admission; the limit is {PENDING}"
    ) as caught:
        room.acquire("e", 1)
    assert isinstance(caught.value, RetriableError)
    assert (room.pending, room.pending_bytes) == (4, 4)


def test_a_withdrawn_ticket_admits_the_next() -> None:
    room = limiter()
    room.acquire("a", 50)
    room.acquire("large", 90)
    room.acquire("small", 50)
    assert room.withdraw("large") == ["small"]
    assert (room.pending, room.in_flight_bytes) == (0, 100)


def test_misuse_is_a_bug() -> None:
    room = limiter()
    room.acquire("a", 1)
    with pytest.raises(OutboxBug, match="in use"):
        room.acquire("a", 1)
    with pytest.raises(OutboxBug, match="was not admitted"):
        room.release("b")
    with pytest.raises(OutboxBug, match="does not wait"):
        room.withdraw("a")


class AgainstModel(RuleBasedStateMachine):
    """Limiter beside a list of all requests, from which the model computes everything."""

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.room: Limiter[int] = Limiter(
            bytes_max=BYTES, operations_max=OPERATIONS, pending_max=PENDING
        )
        self.next_ticket = 0
        self.running: dict[int, int] = {}
        self.waiting: list[tuple[int, int]] = []
        self.order: list[int] = []

    def admit(self) -> list[int]:
        """Return the requests that the model admits now."""
        admitted = []
        while self.waiting:
            ticket, size = self.waiting[0]
            full = len(self.running) >= OPERATIONS or sum(self.running.values()) + size > BYTES
            if full:
                break
            self.waiting.pop(0)
            self.running[ticket] = size
            admitted.append(ticket)
        self.order += admitted
        return admitted

    @rule(target=tickets, size=st.integers(0, 250))
    def acquire(self, size: int) -> int:
        ticket = self.next_ticket
        self.next_ticket += 1
        self.waiting.append((ticket, min(max(size, 1), BYTES)))
        admitted = self.admit()
        if len(self.waiting) > PENDING:
            self.waiting.pop()
            with pytest.raises(OutboxBusy):
                self.room.acquire(ticket, size)
        else:
            expected = ADMITTED if admitted == [ticket] else QUEUED
            assert self.room.acquire(ticket, size) is expected
        return ticket

    @rule(ticket=consumes(tickets))
    def end(self, ticket: int) -> None:
        if ticket in self.running:
            del self.running[ticket]
            assert self.room.release(ticket) == self.admit()
        elif ticket in [waiting for waiting, _ in self.waiting]:
            self.waiting = [item for item in self.waiting if item[0] != ticket]
            assert self.room.withdraw(ticket) == self.admit()
        else:
            with pytest.raises(OutboxBug):
                self.room.release(ticket)

    @invariant()
    def agrees(self) -> None:
        assert self.room.in_flight_bytes == sum(self.running.values()) <= BYTES
        assert self.room.in_flight_operations == len(self.running) <= OPERATIONS
        assert self.room.pending == len(self.waiting) <= PENDING
        assert self.room.pending_bytes == sum(size for _, size in self.waiting)
        assert self.order == sorted(self.order), "admitted in the order of arrival"

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        if self.waiting:
            assert self.running


TestAgainstModel = AgainstModel.TestCase
