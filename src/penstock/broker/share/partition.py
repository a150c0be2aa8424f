"""State machine of one share partition: members acquire and acknowledge its records.

    start                                               end
      |  runs: resolved, acquired, available, archiving  |  never delivered yet: available
      |  (the first run is never resolved)               |

| state     | event                                   | next state                               |
|-----------|-----------------------------------------|------------------------------------------|
| available | acquired by a member                    | acquired, one more delivery, locked      |
| acquired  | accept, gap, by its member              | resolved                                 |
| acquired  | reject by its member                    | archiving with dead letters, else        |
|           |                                         | resolved                                 |
| acquired  | release by its member, lock expires,    | available; at the limit of deliveries    |
|           | member leaves                           | the same as after a reject               |
| acquired  | renew by its member                     | acquired, locked again                   |
| archiving | its dead letter is durable              | resolved                                 |
| any       | the log start offset passes it          | dropped                                  |

A run is a range of offsets whose records have the same state. Operations take time
per run, not per record. Records that are not resolved count as locks. All resolved records between
two locks are one run, so the limit on locks also bounds the memory.

A record with one delivery left is delivered alone. A record that has used half of its deliveries is
delivered with fewer others. A record that crashes consumers thus does not use up the deliveries of
other records.

An archiving record waits for its dead letter, even if the leader changes, and no member can acquire
it again. Dead letters are therefore written only after this state is stored.

The state machine has no I/O and no clock. `now_ms` is wall-clock time, because locks outlive
brokers. A decision takes effect only once it is stored (`stored.py`). The row contains the full
state, so two brokers that both act as leader cannot both deliver a record.

Source: KIP-932, KIP-1191, KIP-1222; Kafka's `SharePartition`. Unlike in Kafka, acquisitions and
locks are stored and survive the broker, and only the limit on locks bounds the range of offsets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Final, TypeVar

from penstock.broker.share.values import (
    Acknowledge,
    Acknowledged,
    Acquired,
    Batch,
    Cause,
    InvalidAcknowledgement,
    InvalidRecordState,
    RecordState,
    Run,
    ShareLimits,
    Undeliverable,
)

# Operations on lists of consecutive runs, where a run is a range of records in the same state.
#
# A change of several spans of offsets takes one pass. It splits runs that it covers in part, and
# joins adjacent runs with the same state, so that the number of runs is minimal.


Tag = TypeVar("Tag")
Span = tuple[int, int, Tag]
"""First offset, last offset, and a tag that the change function receives."""

Change = Callable[[Run, Tag], Run]

_FIRST: Final = attrgetter("first")


def index_of(runs: Sequence[Run], offset: int) -> int:
    return bisect_right(runs, offset, key=_FIRST) - 1


def clipped(run: Run, first: int, last: int) -> Run:
    """Return the part of a run within [first, last], which must overlap it."""
    first, last = max(first, run.first), min(last, run.last)
    return run if (first, last) == run[:2] else run._replace(first=first, last=last)


def append(runs: list[Run], run: Run) -> None:
    if runs and runs[-1][2:] == run[2:]:
        runs[-1] = runs[-1]._replace(last=run.last)
    else:
        runs.append(run)


def within(runs: Sequence[Run], first: int, last: int) -> Iterable[Run]:
    """Yield the parts of runs within [first, last]; the range may extend beyond the runs."""
    if not runs:
        return
    for index in range(max(index_of(runs, first), 0), len(runs)):
        run = runs[index]
        if run.first > last:
            return
        if run.last >= first:
            yield clipped(run, first, last)


def changed(runs: Sequence[Run], spans: Sequence[Span[Tag]], change: Change[Tag]) -> list[Run]:
    low, high = index_of(runs, spans[0][0]), index_of(runs, spans[-1][1])
    result = list(runs[:low])
    number = 0
    for run in runs[low : high + 1]:
        at = run.first
        while at <= run.last:
            while number < len(spans) and spans[number][1] < at:
                number += 1
            if number == len(spans) or spans[number][0] > run.last:
                append(result, clipped(run, at, run.last))
                break
            first, last, tag = spans[number]
            if first > at:
                append(result, clipped(run, at, first - 1))
                at = first
            last = min(last, run.last)
            append(result, change(clipped(run, at, last), tag))
            at = last + 1
    for run in runs[high + 1 : high + 2]:
        append(result, run)
    result += runs[high + 2 :]
    return result


AVAILABLE, ACQUIRED, RESOLVED, ARCHIVING = RecordState


class SharePartition:
    __slots__ = ("_deadline_ms", "end", "limits", "runs", "start")

    def __init__(self, *, limits: ShareLimits, start: int, runs: Iterable[Run] = ()) -> None:
        self.limits = limits
        self.start = start
        self.runs = list(runs)
        self.end = self.runs[-1].last + 1 if self.runs else start
        self._deadline_ms: int | None = 0

    # Queries

    @property
    def locks(self) -> int:
        return sum(run.records for run in self.runs if run.state != RESOLVED)

    def awaiting_dead_letters(self) -> list[Undeliverable]:
        """Return the records that wait for their dead letters, in the order of offsets."""
        return [
            Undeliverable(run.first, run.last, run.deliveries, Cause(run.cause))
            for run in self.runs
            if run.state == ARCHIVING
        ]

    def next_offset(self) -> int | None:
        """Return the first offset that can be acquired; None if the limit on locks is reached."""
        for run in self.runs:
            if run.state == AVAILABLE:
                return run.first
        return self.end if self.locks < self.limits.record_locks_max else None

    def next_deadline_ms(self) -> int | None:
        if self._deadline_ms == 0:
            deadlines = [run.deadline_ms for run in self.runs if run.state == ACQUIRED]
            self._deadline_ms = min(deadlines, default=None)
        return self._deadline_ms

    # Events

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
        """Acquire records of batches for a member, in order, until it has `records_max`.

        `batches` contains all batches from offset `begin` on, and is consumed as far as needed;
        offsets without records become resolved. With `exact`, at most `records_max` records are
        acquired; otherwise the last batch is acquired as a whole. The limit on locks always
        applies.
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
            for run in within(self.runs, first, last)
            if run.state == AVAILABLE
        ]
        if last >= self.end and last >= first:
            found.append((max(first, self.end), last))
        return found

    def _given(
        self, first: int, last: int, left: int, room: int, *, alone: bool
    ) -> tuple[list[tuple[int, int]], int, bool]:
        """Return the offset ranges of a batch to acquire, the locks left, and whether to stop.

        At most `left` records, and `room` records that need a new lock, are acquired. `alone` is
        true if the response has other records already; then a record that must be delivered alone,
        or with few others, is left for a later request.
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
        """Return how many records from an offset on may be delivered together; None if any number.

        Records that failed often are delivered with few others, as the module describes.
        """
        limit = self.limits.delivery_count_limit
        if offset >= self.end:
            return None
        run = self.runs[index_of(self.runs, offset)]
        if run.deliveries >= limit - 1:
            return 1
        return max(1, (run.last - offset + 1) // 2) if run.deliveries * 2 >= limit else None

    def _acquire(self, member: str, spans: list[Span[bool]], deadline_ms: int) -> list[Acquired]:
        if not spans:
            return []
        acquired: list[Acquired] = []

        def acquire(run: Run, given: bool) -> Run:
            if not given:
                return Run(run.first, run.last, RESOLVED)
            count = run.deliveries + 1
            if acquired and acquired[-1][1:] == (run.first - 1, count):
                acquired[-1] = Acquired(acquired[-1].first, run.last, count)
            else:
                acquired.append(Acquired(run.first, run.last, count))
            return Run(run.first, run.last, ACQUIRED, count, member, deadline_ms)

        last = spans[-1][1]
        if last >= self.end:
            append(self.runs, Run(self.end, last, AVAILABLE))
            self.end = last + 1
        self._change(spans, acquire)
        return acquired

    def acknowledge(
        self, member: str, acknowledgements: Sequence[Acknowledged], *, now_ms: int
    ) -> list[Undeliverable]:
        """Apply all acknowledgements of a member, or none; return undeliverable records.

        Acknowledgements of records before the start, which are resolved, are ignored.

        Raises:
            InvalidAcknowledgement: the acknowledgements are not in the order of offsets.
            InvalidRecordState: the member does not hold some of the records.
        """
        spans = self._in_order(acknowledgements)
        if not spans:
            return []
        undeliverable: list[Undeliverable] = []
        deadline_ms = now_ms + self.limits.lock_duration_ms

        def acknowledged(run: Run, kind: Acknowledge) -> Run:
            if run.state != ACQUIRED or run.member != member or run.deadline_ms <= now_ms:
                raise InvalidRecordState(
                    f"member {member!r} has not acquired offsets {run.first} to {run.last}"
                )
            if kind == Acknowledge.RENEW:
                return run._replace(deadline_ms=deadline_ms)
            if kind == Acknowledge.RELEASE:
                return self._released(run, undeliverable)
            if kind == Acknowledge.REJECT:
                return self._undeliverable(run, run.deliveries, Cause.REJECTED, undeliverable)
            return Run(run.first, run.last, RESOLVED)

        self._change(spans, acknowledged)
        return undeliverable

    def _in_order(self, acknowledgements: Sequence[Acknowledged]) -> list[Span[Acknowledge]]:
        behind = -1
        for first, last, _ in acknowledgements:
            if not behind < first <= last:
                raise InvalidAcknowledgement(
                    f"offsets {first} to {last} are acknowledged after offset {behind};"
                    " the order must be ascending"
                )
            behind = last
        if behind >= self.end:
            raise InvalidRecordState(f"offset {behind} was not acquired, {self.end} is the next")
        start = self.start
        return [
            (max(first, start), last, kind)
            for first, last, kind in acknowledgements
            if last >= start
        ]

    def _released(
        self, run: Run, undeliverable: list[Undeliverable], *, delivered: bool = True
    ) -> Run:
        count = run.deliveries if delivered else run.deliveries - 1
        if count < self.limits.delivery_count_limit:
            return Run(run.first, run.last, AVAILABLE, count)
        return self._undeliverable(run, count, Cause.DELIVERIES, undeliverable)

    def _undeliverable(
        self, run: Run, count: int, cause: Cause, undeliverable: list[Undeliverable]
    ) -> Run:
        """Return an acquired run, now archiving or resolved, and add it to `undeliverable`.

        It is archiving if the group has dead letters.
        """
        undeliverable.append(Undeliverable(run.first, run.last, count, cause))
        if self.limits.dead_letters:
            return Run(run.first, run.last, ARCHIVING, count, cause=cause)
        return Run(run.first, run.last, RESOLVED)

    def archived(self, first: int, last: int) -> int:
        """Resolve the archiving records of a range; return their number.

        Called once their dead letters are written, or not needed. Ignores records in other states.
        """
        held = [run for run in within(self.runs, first, last) if run.state == ARCHIVING]
        if held:
            self._change(
                [(run.first, run.last, None) for run in held],
                lambda run, _: Run(run.first, run.last, RESOLVED),
            )
        return sum(run.records for run in held)

    def release(self, member: str, *, delivered: bool) -> list[Undeliverable]:
        """Release the records of a member that left.

        `delivered` is true if the member may have processed them, so that the delivery counts.
        """
        return self._release_all(
            [run for run in self.runs if run.state == ACQUIRED and run.member == member],
            delivered=delivered,
        )

    def expire(self, now_ms: int) -> list[Undeliverable]:
        deadline_ms = self.next_deadline_ms()
        if deadline_ms is None or deadline_ms > now_ms:
            return []
        return self._release_all(
            [run for run in self.runs if run.state == ACQUIRED and run.deadline_ms <= now_ms]
        )

    def _release_all(self, held: Sequence[Run], *, delivered: bool = True) -> list[Undeliverable]:
        undeliverable: list[Undeliverable] = []
        if held:
            self._change(
                [(run.first, run.last, None) for run in held],
                lambda run, _: self._released(run, undeliverable, delivered=delivered),
            )
        return undeliverable

    def log_begins(self, offset: int) -> bool:
        """Drop records below the log start offset; return whether anything changed."""
        if offset <= self.start:
            return False
        left = list(within(self.runs, offset, max(offset, self.end - 1)))
        self._take(left, begin=offset)
        return True

    def log_ends(self, offset: int) -> bool:
        """Drop records that the log has lost, from its end offset on; return as `log_begins`."""
        if offset >= self.end:
            return False
        left = list(within(self.runs, self.start, offset - 1))
        self.end = max(offset, 0)
        self._take(left, begin=min(self.start, self.end))
        return True

    def _change(self, spans: Sequence[Span[Tag]], change: Change[Tag]) -> None:
        self._take(changed(self.runs, spans, change), begin=self.start)

    def _take(self, left: list[Run], *, begin: int) -> None:
        if left and left[0].state == RESOLVED:
            del left[0]
        self.end = max(self.end, begin)
        self.start = left[0].first if left else self.end
        self.runs = left
        self._deadline_ms = 0
