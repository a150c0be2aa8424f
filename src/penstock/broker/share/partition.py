"""The decisions about one share partition: who has which records, and which nobody needs any more.

    start                                             end
      |  settled, acquired, available, archiving: runs |  not looked at yet
      |  (the first is never settled)                  |  (available, never delivered)

| state     | event                                   | becomes                                  |
|-----------|-----------------------------------------|------------------------------------------|
| available | acquired by a member                    | acquired, one more delivery, locked      |
| acquired  | accept, gap, by its member              | settled                                  |
| acquired  | reject by its member                    | given up                                 |
| acquired  | release by its member, its lock ends,   | available; given up, if it was delivered |
|           | its member goes                         | as often as the limit says               |
| acquired  | renew by its member                     | acquired, locked anew                    |
| given up  | its group has dead letters              | archiving                                |
|           | it has none                             | settled                                  |
| archiving | its dead letter is durable              | settled                                  |
| any       | the log begins behind it                | gone                                     |

Records are runs of offsets (`runs.py`): nothing here costs something for every record, unless
acknowledgements tell every record from the next. Records that are not settled are
counted as locks, and bounded; between two of them settled ones are one run, so memory is bounded
by the locks, however far apart they lie.

A record that has one delivery left is handed out alone, and one that has half of them behind it
with fewer others: what kills every consumer takes no others with it to its end.

What is archiving waits for its dead letter, whoever leads by then: it is the same to a leader that
has just read the row. It is nobody's any more, so a dead letter is never of a record that somebody
may still accept; that holds if letters are written of what is stored, not of what is decided.

No I/O, no clock: `now_ms` is the wall clock's, because locks outlive brokers. Nothing that a method
decides may be told to anybody before it is stored (`record.py`), and there is nothing else to be
stored: so two brokers that both take themselves for the leader cannot both hand out a record.

Source: KIP-932, KIP-1191, KIP-1222; Kafka's `SharePartition`. Other than there, acquisitions and
locks are stored, so they outlive the broker; and the window has no bound but that of the locks in
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.broker.share import runs as run_lists
from penstock.broker.share.runs import Change, Span, Tag
from penstock.broker.share.values import (
    Acknowledge,
    Acknowledged,
    Acquired,
    Batch,
    Cause,
    GivenUp,
    InvalidAcknowledgement,
    InvalidRecordState,
    RecordState,
    Run,
    ShareLimits,
)

AVAILABLE, ACQUIRED, SETTLED, ARCHIVING = RecordState


class SharePartition:
    """One partition, for one share group; see the module's text."""

    __slots__ = ("_deadline_ms", "end", "limits", "runs", "start")

    def __init__(self, *, limits: ShareLimits, start: int, runs: Iterable[Run] = ()) -> None:
        """`runs` lie end to end and begin at `start`."""
        self.limits = limits
        self.start = start
        self.runs = list(runs)
        self.end = self.runs[-1].last + 1 if self.runs else start
        self._deadline_ms: int | None = 0

    # What is asked

    @property
    def locks(self) -> int:
        """The records within the window that are not settled."""
        return sum(run.records for run in self.runs if run.state != SETTLED)

    def letters(self) -> list[GivenUp]:
        """What waits for its dead letter, by offset."""
        return [
            GivenUp(run.first, run.last, run.deliveries, Cause(run.cause))
            for run in self.runs
            if run.state == ARCHIVING
        ]

    def next_offset(self) -> int | None:
        """Where the first record lies that may be acquired; None while there are too many locks."""
        for run in self.runs:
            if run.state == AVAILABLE:
                return run.first
        return self.end if self.locks < self.limits.record_locks_max else None

    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to do."""
        if self._deadline_ms == 0:
            deadlines = [run.deadline_ms for run in self.runs if run.state == ACQUIRED]
            self._deadline_ms = min(deadlines, default=None)
        return self._deadline_ms

    # What happens

    def acquire(
        self,
        member: str,
        batches: Iterable[Batch],
        *,
        begin: int,
        records_max: int,
        exact: bool,
        now_ms: int,
    ) -> list[Acquired]:
        """Give a member what it may have of these batches, in order, until it has enough.

        The batches are what the log has from `begin` on, and are looked at as far as needed: what
        lies there in no batch, or in one without records, is settled. `exact`: no more than
        `records_max`; else batches are given whole. Either way no more than the locks allow.
        """
        spans, room = [], self.limits.record_locks_max - self.locks
        taken, at = 0, max(begin, self.start)
        for batch in batches:
            if batch.last < at:
                continue
            spans += [(*gap, False) for gap in self._acquirable(at, batch.first - 1)]
            at = max(at, batch.first)
            if not batch.records:
                spans += [(*part, False) for part in self._acquirable(at, batch.last)]
                at = batch.last + 1
                continue
            left = records_max - taken if exact else batch.last - at + 1
            given, room, ends = self._given(at, batch.last, left, room, alone=taken > 0)
            spans += [(*part, True) for part in given]
            taken += sum(last - first + 1 for first, last in given)
            if ends or taken >= records_max:
                break
            at = batch.last + 1
        return self._acquire(member, spans, now_ms + self.limits.lock_duration_ms)

    def _acquirable(self, first: int, last: int) -> list[tuple[int, int]]:
        found = [
            (run.first, run.last)
            for run in run_lists.within(self.runs, first, last)
            if run.state == AVAILABLE
        ]
        if last >= self.end and last >= first:
            found.append((max(first, self.end), last))
        return found

    def _given(
        self, first: int, last: int, left: int, room: int, *, alone: bool
    ) -> tuple[list[tuple[int, int]], int, bool]:
        """What of a batch is given; the room that is left then; whether that is to be all.

        `alone`: nothing is given that had better be alone.
        """
        given: list[tuple[int, int]] = []
        for begin, until in self._acquirable(first, last):
            count = until - begin + 1
            most = self._together(begin)
            if most is not None and (alone or given):
                return given, room, True
            fresh = begin >= self.end
            allowed = min(count, left, room if fresh else left, count if most is None else most)
            if allowed > 0:
                given.append((begin, begin + allowed - 1))
                left -= allowed
                room -= allowed if fresh else 0
            if allowed < count or most is not None:
                return given, room, True
        return given, room, False

    def _together(self, offset: int) -> int | None:
        """How many records like this one are handed out together; None where it does not matter."""
        limit = self.limits.delivery_count_limit
        if offset >= self.end:
            return None
        run = self.runs[run_lists.index_of(self.runs, offset)]
        if run.deliveries >= limit - 1:
            return 1
        return max(1, (run.last - offset + 1) // 2) if run.deliveries * 2 >= limit else None

    def _acquire(self, member: str, spans: list[Span[bool]], deadline_ms: int) -> list[Acquired]:
        if not spans:
            return []
        acquired: list[Acquired] = []

        def acquire(run: Run, given: bool) -> Run:
            if not given:
                return Run(run.first, run.last, SETTLED)
            count = run.deliveries + 1
            if acquired and acquired[-1][1:] == (run.first - 1, count):
                acquired[-1] = Acquired(acquired[-1].first, run.last, count)
            else:
                acquired.append(Acquired(run.first, run.last, count))
            return Run(run.first, run.last, ACQUIRED, count, member, deadline_ms)

        last = spans[-1][1]
        if last >= self.end:
            run_lists.append(self.runs, Run(self.end, last, AVAILABLE))
            self.end = last + 1
        self._change(spans, acquire)
        return acquired

    def acknowledge(
        self, member: str, said: Sequence[Acknowledged], *, now_ms: int
    ) -> list[GivenUp]:
        """Take a member's acknowledgements, all or none; returns what is given up for them.

        What lies before the start is done with, whoever had it, and is not looked at.

        Raises:
            InvalidAcknowledgement: they are not in order.
            InvalidRecordState: the member does not have some of these records, or not any more.
        """
        spans = self._in_order(said)
        if not spans:
            return []
        given_up: list[GivenUp] = []
        deadline_ms = now_ms + self.limits.lock_duration_ms

        def settle(run: Run, kind: Acknowledge) -> Run:
            if run.state != ACQUIRED or run.member != member or run.deadline_ms <= now_ms:
                raise InvalidRecordState(
                    f"member {member!r} has not acquired offsets {run.first} to {run.last}"
                )
            if kind == Acknowledge.RENEW:
                return run._replace(deadline_ms=deadline_ms)
            if kind == Acknowledge.RELEASE:
                return self._released(run, given_up)
            if kind == Acknowledge.REJECT:
                return self._given_up(run, run.deliveries, Cause.REJECTED, given_up)
            return Run(run.first, run.last, SETTLED)

        self._change(spans, settle)
        return given_up

    def _in_order(self, said: Sequence[Acknowledged]) -> list[Span[Acknowledge]]:
        """What is said of records within the window."""
        behind = -1
        for first, last, _ in said:
            if not behind < first <= last:
                raise InvalidAcknowledgement(
                    f"offsets {first} to {last} are acknowledged after {behind}"
                )
            behind = last
        if behind >= self.end:
            raise InvalidRecordState(f"offset {behind} was not acquired, the end is {self.end}")
        start = self.start
        return [(max(first, start), last, kind) for first, last, kind in said if last >= start]

    def _released(self, run: Run, given_up: list[GivenUp], *, delivered: bool = True) -> Run:
        """What an acquired run becomes when its member has it no more."""
        count = run.deliveries if delivered else run.deliveries - 1
        if count < self.limits.delivery_count_limit:
            return Run(run.first, run.last, AVAILABLE, count)
        return self._given_up(run, count, Cause.DELIVERIES, given_up)

    def _given_up(self, run: Run, count: int, cause: Cause, given_up: list[GivenUp]) -> Run:
        """What an acquired run becomes when nobody is to get it any more."""
        given_up.append(GivenUp(run.first, run.last, count, cause))
        if self.limits.dead_letters:
            return Run(run.first, run.last, ARCHIVING, count, cause=cause)
        return Run(run.first, run.last, SETTLED)

    def archived(self, first: int, last: int) -> int:
        """What waits within [first, last] has its dead letter, or needs none; how many those are.

        What has become of other records there meanwhile is left as it is.
        """
        held = [run for run in run_lists.within(self.runs, first, last) if run.state == ARCHIVING]
        if held:
            self._change(
                [(run.first, run.last, None) for run in held],
                lambda run, _: Run(run.first, run.last, SETTLED),
            )
        return sum(run.records for run in held)

    def release(self, member: str, *, delivered: bool) -> list[GivenUp]:
        """A member has gone: others may have what it had.

        `delivered`: it may have looked at the records, so the delivery counts.
        """
        return self._let_go(
            [run for run in self.runs if run.state == ACQUIRED and run.member == member],
            delivered=delivered,
        )

    def expire(self, now_ms: int) -> list[GivenUp]:
        """Take back what was locked until now."""
        deadline_ms = self.next_deadline_ms()
        if deadline_ms is None or deadline_ms > now_ms:
            return []
        return self._let_go(
            [run for run in self.runs if run.state == ACQUIRED and run.deadline_ms <= now_ms]
        )

    def _let_go(self, held: Sequence[Run], *, delivered: bool = True) -> list[GivenUp]:
        given_up: list[GivenUp] = []
        if held:
            self._change(
                [(run.first, run.last, None) for run in held],
                lambda run, _: self._released(run, given_up, delivered=delivered),
            )
        return given_up

    def log_begins(self, offset: int) -> bool:
        """The log has nothing before an offset any more; whether that changes anything."""
        if offset <= self.start:
            return False
        left = list(run_lists.within(self.runs, offset, max(offset, self.end - 1)))
        self._take(left, begin=offset)
        return True

    def log_ends(self, offset: int) -> bool:
        """The log has nothing from an offset on: what was there has been lost; as `log_begins`."""
        if offset >= self.end:
            return False
        left = list(run_lists.within(self.runs, self.start, offset - 1))
        self.end = max(offset, 0)
        self._take(left, begin=min(self.start, self.end))
        return True

    def _change(self, spans: Sequence[Span[Tag]], change: Change[Tag]) -> None:
        self._take(run_lists.changed(self.runs, spans, change), begin=self.start)

    def _take(self, left: list[Run], *, begin: int) -> None:
        """Have these runs, without those in front that are settled."""
        if left and left[0].state == SETTLED:
            del left[0]
        self.end = max(self.end, begin)
        self.start = left[0].first if left else self.end
        self.runs = left
        self._deadline_ms = 0
