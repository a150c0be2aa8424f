"""Oracle of `SharePartition`: a slow, plain one that keeps an entry for every record."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.broker.share.values import Acknowledge, Acknowledged, Cause, RecordState, Run

AVAILABLE, ACQUIRED, RESOLVED, ARCHIVING = RecordState


@dataclass
class Record:
    """State of one offset within the window."""

    state: RecordState = AVAILABLE
    deliveries: int = 0
    member: str = ""
    deadline_ms: int = 0
    cause: int = 0

    def let_go(self, limit: int, *, dead_letters: bool, delivered: bool = True) -> None:
        deliveries = self.deliveries - (not delivered)
        if deliveries >= limit:
            self.give_up(deliveries, Cause.DELIVERIES, dead_letters=dead_letters)
        else:
            self.__init__(AVAILABLE, deliveries)  # type: ignore[misc]

    def give_up(self, deliveries: int, cause: Cause, *, dead_letters: bool) -> None:
        if dead_letters:
            self.__init__(ARCHIVING, deliveries, cause=cause)  # type: ignore[misc]
        else:
            self.settle()

    def settle(self) -> None:
        self.__init__(RESOLVED)  # type: ignore[misc]


@dataclass
class PerRecord:
    """`SharePartition` without runs; the test passes it the acquired records."""

    limit: int
    lock_ms: int
    dead_letters: bool = False
    start: int = 0
    records: dict[int, Record] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return max(self.records, default=self.start - 1) + 1

    def acquired(self, member: str, offset: int, now_ms: int) -> None:
        record = self.records.setdefault(offset, Record())
        assert record.state == AVAILABLE
        record.state, record.member = ACQUIRED, member
        record.deliveries += 1
        record.deadline_ms = now_ms + self.lock_ms

    def skipped(self, offset: int) -> None:
        self.records.setdefault(offset, Record()).settle()

    def may_acknowledge(self, member: str, acknowledged: Acknowledged, now_ms: int) -> bool:
        held = [
            self.records.get(at)
            for at in range(max(acknowledged.first, self.start), acknowledged.last + 1)
        ]
        return all(
            record is not None
            and (record.state, record.member) == (ACQUIRED, member)
            and record.deadline_ms > now_ms
            for record in held
        )

    def acknowledge(self, acknowledged: Acknowledged, now_ms: int) -> None:
        for offset in range(max(acknowledged.first, self.start), acknowledged.last + 1):
            record = self.records[offset]
            if acknowledged.kind == Acknowledge.RENEW:
                record.deadline_ms = now_ms + self.lock_ms
            elif acknowledged.kind == Acknowledge.RELEASE:
                record.let_go(self.limit, dead_letters=self.dead_letters)
            elif acknowledged.kind == Acknowledge.REJECT:
                record.give_up(record.deliveries, Cause.REJECTED, dead_letters=self.dead_letters)
            else:
                record.settle()
        self.move()

    def archived(self, first: int, last: int) -> int:
        held = [
            record
            for at, record in self.records.items()
            if first <= at <= last and record.state == ARCHIVING
        ]
        for record in held:
            record.settle()
        self.move()
        return len(held)

    def expire(self, now_ms: int) -> None:
        for record in self.records.values():
            if record.state == ACQUIRED and record.deadline_ms <= now_ms:
                record.let_go(self.limit, dead_letters=self.dead_letters)
        self.move()

    def release(self, member: str, *, delivered: bool) -> None:
        for record in self.records.values():
            if record.state == ACQUIRED and record.member == member:
                record.let_go(self.limit, dead_letters=self.dead_letters, delivered=delivered)
        self.move()

    def log_begins(self, offset: int) -> None:
        for gone in [at for at in self.records if at < offset]:
            del self.records[gone]
        self.start = max(self.start, offset)
        self.move()

    def move(self) -> None:
        while self.start in self.records and self.records[self.start].state == RESOLVED:
            del self.records[self.start]
            self.start += 1

    def runs(self) -> list[Run]:
        found: list[Run] = []
        for offset, record in sorted(self.records.items()):
            rest = (
                record.state,
                record.deliveries,
                record.member,
                record.deadline_ms,
                record.cause,
            )
            if found and found[-1][2:] == rest:
                found[-1] = found[-1]._replace(last=offset)
            else:
                found.append(Run(offset, offset, *rest))
        return found
