"""The core of the writer: collects appends in objects, and decides when to write and commit them.

A *submission* is an append to one partition. Submissions of all partitions are collected in the
open object. It closes when it is full. It also closes `interval_ms` after its first submission,
once fewer than `diskless.objects.in.flight.max` objects are being written. Closed objects are
written concurrently, each under its own key. They are committed one by one in the order of closing,
so that a producer's sequences reach the control plane in order. `objects.py` has the states of an
object.

| event                                    | consequence                                           |
|------------------------------------------|-------------------------------------------------------|
| a PUT fails, or is overdue               | another PUT, under another key, after a random pause  |
| an overdue PUT succeeds after all        | it counts, unless another PUT has succeeded           |
| the outcome of a commit is unknown       | the commit is repeated, and returns the first result  |
| the object's key was swept               | the object is written again, under another key        |
| the store or control plane rejects it    | its submissions fail with `WriteFailed`               |
| the store is not the control plane's     | its submissions fail with `StoreMismatch`, which      |
|                                          | producers do not retry                                |
| `diskless.write.timeout.ms` is over      | its submissions fail with `WriteTimedOut`             |
| no keys can be reserved                  | a retry after a pause                                 |
| another incarnation owns the broker's id | all submissions fail with `WriterStopped`             |

When an object fails, later submissions of its idempotent producers fail too (`EarlierWriteFailed`),
so that they are not accepted out of order.

The core has no clock, no randomness and no I/O. After each call the shell performs the effects from
`take()` in order, and calls `tick` at `wake_ms`. Times are milliseconds of a monotonic clock.
`chance` is a random number in [0, 1).

Source: Aiven's Inkless (`ActiveFile`, `FileCommitter`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import inf
from typing import Final, NamedTuple
from uuid import UUID

from penstock.archive.wal import OBJECT_BATCHES_MAX
from penstock.base.errors import PenstockError, RetriableError, UnavailableError
from penstock.base.metrics import Metrics, counter, gauge, histogram
from penstock.control.values.diskless import BatchEntry, CommitAnswer, ObjectLease
from penstock.control.values.errors import (
    OBJECT_ENTRIES_MAX,
    DatabaseStopped,
    ObjectLeaseLost,
    StaleBroker,
)
from penstock.diskless.errors import (
    EarlierWriteFailed,
    StoreMismatch,
    WriteBacklog,
    WriteFailed,
    WriterStopped,
    WriteTimedOut,
)
from penstock.diskless.settings import DisklessSettings
from penstock.diskless.writing.objects import (
    Happening,
    ObjectPhase,
    OpenObject,
    Submission,
    WalObject,
    check,
    targets,
)
from penstock.objects import ObjectExists
from penstock.objects.port import Buffer
from penstock.records.appends import Outcome


class LeaseKeys(NamedTuple):
    """Reserve `wanted` keys, then call `leased` or `lease_failed`.

    One such effect runs at a time.
    """

    wanted: int


class PutObject(NamedTuple):
    """Write an object under a key, then call `put_done` or `put_failed`."""

    number: int
    lease: ObjectLease
    pieces: list[Buffer]


class CommitObject(NamedTuple):
    """Commit an object, then call `committed` or `commit_failed`."""

    number: int
    lease: ObjectLease
    size_bytes: int
    entries: tuple[BatchEntry, ...]


class Answer(NamedTuple):
    outcomes: list[tuple[Submission, Outcome]]


class Finished(NamedTuple):
    """Release an object that has ended, and cancel its pending work.

    `answer` is the result of its commit, or None for a failed object. `pieces` are the bytes of a
    committed object. The effect precedes the `Answer` to the submissions.
    """

    number: int
    lease: ObjectLease | None
    answer: CommitAnswer | None
    pieces: list[Buffer]
    submissions: list[Submission]


Effect = LeaseKeys | PutObject | CommitObject | Answer | Finished


# Reserved keys of a broker. A pure core that decides when to reserve more and which to use next.
#
# Keys are reserved in blocks while an object is open, so that a write needs no extra round trip.
# None are reserved while nothing is written. A key is discarded after a part of the sweeper's grace
# period, so that no object is written under a swept key.


class LeaseBook:
    """The reserved keys of one broker. Times are milliseconds of a monotonic clock."""

    def __init__(self, *, block_objects: int, life_ms: int) -> None:
        self._block_objects = block_objects
        self._life_ms = life_ms
        self._leases: deque[tuple[ObjectLease, float]] = deque()
        self._asked_ms = -inf
        self.asking = False
        self.not_before_ms = -inf

    def __len__(self) -> int:
        return len(self._leases)

    def wanted(self, now_ms: float) -> int:
        """Return the number of keys to reserve now, or 0 if there are enough."""
        if self.asking or now_ms < self.not_before_ms:
            return 0
        self._drop_old(now_ms)
        if len(self._leases) > self._block_objects // 2:
            return 0
        self.asking = True
        self._asked_ms = now_ms
        return self._block_objects

    def granted(self, leases: Iterable[ObjectLease]) -> None:
        """Add reserved keys. Their lifetime begins at the time of the request."""
        self.asking = False
        self._leases.extend((lease, self._asked_ms) for lease in leases)

    def refused(self, not_before_ms: float) -> None:
        self.asking = False
        self.not_before_ms = not_before_ms

    def take(self, now_ms: float) -> ObjectLease | None:
        self._drop_old(now_ms)
        return self._leases.popleft()[0] if self._leases else None

    def lost(self) -> None:
        self._leases.clear()

    def _drop_old(self, now_ms: float) -> None:
        leases = self._leases
        while leases and leases[0][1] + self._life_ms <= now_ms:
            leases.popleft()


PENDING_SUBMISSIONS_MAX: Final = 100_000
"""Submissions that have no result yet."""
ATTEMPTS_AT_ONCE_MAX: Final = 3
"""PUTs of one object that may run at once, after earlier ones became overdue."""

_UNWRITTEN: Final = (ObjectPhase.WAITING, ObjectPhase.PUTTING, ObjectPhase.PAUSED)


WRITE_BOUNDS_SECONDS: Final = (
    0.0002, 0.0003, 0.0005, 0.0007, 0.001, 0.0014, 0.002, 0.003, 0.004, 0.005, 0.007, 0.01,
    0.014, 0.02, 0.03, 0.05, 0.07, 0.1, 0.14, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
"""Bounds of histograms, fine enough for the computations of `penstock.planner.capacity.inputs`."""
BATCH_BOUNDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
BYTE_BOUNDS: Final = tuple(1 << shift for shift in range(10, 27, 2))


class WriteCounters(Metrics, prefix="penstock_diskless_"):
    objects = counter("objects_committed_total", "Write-ahead objects committed.")
    object_bytes = counter("object_committed_bytes_total", "Bytes of committed objects.")
    objects_failed = counter(
        "objects_failed_total", "Objects that failed, so that their producers got an error."
    )
    closed_full = counter(
        "objects_closed_full_total", "Objects that closed because they were full."
    )
    submissions = counter("submissions_total", "Accepted appends.")
    refused_backlog = counter(
        "submissions_refused_total", "Appends rejected because too many wait for their objects."
    )
    put_retries = counter("put_retries_total", "Objects written again, under another key.")
    commit_retries = counter("commit_retries_total", "Repetitions of commits with unknown outcome.")
    leases_lost = counter("leases_lost_total", "Objects whose keys were swept before their commit.")
    pending_bytes = gauge("pending_bytes", "Appended bytes that wait for their object.")
    pending_submissions = gauge("pending_submissions", "Appends that wait for their object.")
    in_flight = gauge("objects_in_flight", "Closed objects that are not committed.")
    leases = gauge("leases", "Reserved keys that are not used yet.")
    put_seconds = histogram(
        "put_seconds", "Time of a successful write of an object.", WRITE_BOUNDS_SECONDS
    )
    commit_seconds = histogram(
        "commit_seconds", "Time of a successful commit of an object.", WRITE_BOUNDS_SECONDS
    )
    object_batches = histogram("object_batches", "Batches in a committed object.", BATCH_BOUNDS)
    object_size = histogram("object_size_bytes", "Size of a committed object.", BYTE_BOUNDS)


class Accumulator:
    """The core of one broker's writer. Belongs to one thread."""

    def __init__(self, settings: DisklessSettings, *, interval_ms: float, broker_id: int) -> None:
        self.settings = settings
        self.interval_ms = interval_ms
        self.counters = WriteCounters()
        self.pending_bytes = 0
        """Bytes of submissions whose objects have not ended."""
        self.pending_submissions = 0
        self.stopped: PenstockError | None = None
        """Error that new submissions get after a stop, or None."""
        self.wake_ms = inf
        self._broker_id = broker_id
        self._book = LeaseBook(
            block_objects=settings.lease_block_objects, life_ms=settings.lease_life_ms
        )
        self._lease_failures = 0
        self._open: OpenObject | None = None
        self._objects: dict[int, WalObject] = {}
        """Closed objects that have not ended, by number, in the order of closing."""
        self._started = 0
        self._numbers = 0
        self._effects: list[Effect] = []

    @property
    def idle(self) -> bool:
        """Whether all submissions have a result."""
        return self._open is None and not self._objects

    @property
    def objects_in_flight(self) -> int:
        return len(self._objects)

    @property
    def leases(self) -> int:
        return len(self._book)

    def take(self) -> Sequence[Effect]:
        if not self._effects:
            return ()
        effects, self._effects = self._effects, []
        return effects

    # Events

    def submit(self, submission: Submission, now_ms: float) -> None:
        """Accept a submission. Its `done` is called later, once.

        Raises:
            WriterStopped: the writer has stopped.
            WriteBacklog: too many bytes (`diskless.pending.bytes.max`) or submissions have no
                result yet.
            SubmissionTooLarge, MixedBatches, OutOfOrderSequence: as in `check`.
        """
        if self.stopped is not None:
            raise self.stopped.with_traceback(None)
        size_bytes = len(submission.batches)
        pending_bytes = self.pending_bytes + size_bytes
        if (
            pending_bytes > self.settings.pending_bytes_max and self.pending_bytes
        ) or self.pending_submissions >= PENDING_SUBMISSIONS_MAX:
            raise self._backlog(size_bytes)
        batches = len(submission.headers)
        if batches > 1:
            check(submission)
        gathered = self._open
        if gathered is not None and (
            gathered.size_bytes + size_bytes > self.settings.buffer_bytes_max
            or gathered.batches + batches > OBJECT_BATCHES_MAX
        ):
            self._close(now_ms, full=True)
            gathered = None
        if gathered is None:
            gathered = self._open_object(now_ms)
        gathered.add(submission)
        self.pending_bytes = pending_bytes
        self.pending_submissions += 1
        self.counters.submissions += 1
        if (
            gathered.size_bytes >= self.settings.buffer_bytes_max
            or gathered.submissions >= OBJECT_ENTRIES_MAX
        ):
            self._close(now_ms, full=True)

    def tick(self, now_ms: float, chance: float) -> None:
        """Apply timeouts and retries that are due."""
        for item in list(self._objects.values()):
            if item.phase is ObjectPhase.ENDED:
                continue
            if now_ms >= item.deadline_ms:
                timeout_ms = self.settings.write_timeout_ms
                what = f"an object of {item.size_bytes} bytes was in state {item.phase.name}"
                error = WriteTimedOut(f"{what} when diskless.write.timeout.ms = {timeout_ms} ended")
                self._fail_object(item, error)
            elif now_ms >= item.attempt_ends_ms:
                item.attempt_ends_ms = inf
                if len(item.attempts) < ATTEMPTS_AT_ONCE_MAX:
                    self._pause_put(item, now_ms, chance)
            elif now_ms >= item.pause_ends_ms:
                self._resume(item)
        self._advance(now_ms)

    def leased(self, leases: Sequence[ObjectLease], now_ms: float) -> None:
        self._lease_failures = 0
        self._book.granted(leases)
        self._advance(now_ms)

    def lease_failed(self, error: PenstockError, now_ms: float, chance: float) -> None:
        """Retry after a pause, or stop if another incarnation owns this broker's id."""
        self._lease_failures += 1
        self._book.refused(now_ms + self._pause_ms(self._lease_failures, chance))
        if isinstance(error, StaleBroker) and error.registered:
            self.abandon(WriterStopped(str(error)))
        self._advance(now_ms)

    def put_done(self, number: int, object_id: int, now_ms: float) -> None:
        item = self._objects.get(number)
        lease = None if item is None else item.attempts.pop(object_id, None)
        if item is not None and lease is not None and item.happens(Happening.PUT):
            item.lease = lease
            item.attempt_ends_ms = item.pause_ends_ms = inf
        self._advance(now_ms)

    def put_failed(
        self, number: int, object_id: int, error: PenstockError, now_ms: float, chance: float
    ) -> None:
        item = self._objects.get(number)
        lease = None if item is None else item.attempts.pop(object_id, None)
        if item is None or lease is None or item.phase not in _UNWRITTEN:
            return
        if not isinstance(error, (RetriableError, ObjectExists)):
            refused = WriteFailed(f"writing {lease.key}: {error}")
            self._fail_object(item, error if isinstance(error, StoreMismatch) else refused)
        elif item.lease is lease or item.attempt_ends_ms == inf:
            self._pause_put(item, now_ms, chance)
        self._advance(now_ms)

    def committed(self, number: int, answer: CommitAnswer, now_ms: float) -> None:
        """Record the commit of an object. `answer` has the results of its entries, in order."""
        item = self._objects.get(number)
        if item is not None and item.happens(Happening.COMMITTED):
            kept = item.kept()
            self.counters.objects += 1
            self._finish(item, answer)
            outcomes: list[tuple[Submission, Outcome]] = list(zip(kept, answer.placed, strict=True))
            self._effects.append(Answer(outcomes))
        self._advance(now_ms)

    def commit_failed(
        self, number: int, error: PenstockError, now_ms: float, chance: float
    ) -> None:
        item = self._objects.get(number)
        if item is None or item.phase is not ObjectPhase.COMMITTING:
            return
        if isinstance(error, ObjectLeaseLost):
            self.counters.leases_lost += 1
            self._book.lost()
            item.happens(Happening.LEASE_LOST)
        elif isinstance(error, (RetriableError, UnavailableError)) and not isinstance(
            error, DatabaseStopped
        ):
            self.counters.commit_retries += 1
            item.commit_failures += 1
            item.happens(Happening.COMMIT_UNKNOWN)
            item.pause_ends_ms = now_ms + self._pause_ms(item.commit_failures, chance)
        else:
            self._fail_object(item, WriteFailed(f"committing {item.lease}: {error}"))
        self._advance(now_ms)

    def stop(self, now_ms: float) -> None:
        """Reject new submissions. Accepted ones are still written."""
        if self.stopped is None:
            self.stopped = WriterStopped("the writer of diskless topics has been stopped")
        if self._open is not None:
            self._close(now_ms)
        self._advance(now_ms)

    def abandon(self, error: PenstockError) -> None:
        """End all submissions with `error`, and reject new ones."""
        self.stopped = error
        if self._open is not None:
            self._close(-inf)
        for item in list(self._objects.values()):
            self._fail(item, error)
        self.wake_ms = inf

    # The open object

    def _open_object(self, now_ms: float) -> OpenObject:
        gathered = self._open = OpenObject(now_ms)
        self.wake_ms = min(self.wake_ms, now_ms + self.interval_ms)
        self._want_keys(now_ms)
        return gathered

    def _close(self, now_ms: float, *, full: bool = False) -> None:
        gathered, self._open = self._open, None
        if gathered is None:
            return
        self._numbers += 1
        deadline_ms = gathered.opened_ms + self.settings.write_timeout_ms
        item = WalObject(self._numbers, gathered, deadline_ms)
        self._objects[item.number] = item
        self.counters.closed_full += full
        if len(item.dropped) == len(item.submissions):
            self._finish(item, None)
        if full:
            self._advance(now_ms)

    def _backlog(self, size_bytes: int) -> WriteBacklog:
        self.counters.refused_backlog += 1
        return WriteBacklog(
            f"{self.pending_submissions} appends of {self.pending_bytes} bytes wait for their"
            f" objects, so an append of {size_bytes} bytes is rejected. At most"
            f" {PENDING_SUBMISSIONS_MAX} appends and diskless.pending.bytes.max ="
            f" {self.settings.pending_bytes_max} bytes may wait."
        )

    # Closed objects

    def _advance(self, now_ms: float) -> None:
        """Perform all steps that are possible now, and compute `wake_ms`."""
        slots = self.settings.objects_in_flight_max
        gathered = self._open
        if (
            gathered is not None
            and len(self._objects) < slots
            and now_ms >= gathered.opened_ms + self.interval_ms
        ):
            self._close(now_ms)
        for item in self._objects.values():
            if not item.started:
                if self._started >= slots:
                    break
                item.started = True
                self._started += 1
            if item.phase is ObjectPhase.WAITING and not self._put(item, now_ms):
                break
        while self._objects:
            first = next(iter(self._objects.values()))
            if not first.happens(Happening.TURN):
                break
            self._commit(first)
        self.wake_ms = self._next_wake_ms()

    def _put(self, item: WalObject, now_ms: float) -> bool:
        lease = self._book.take(now_ms)
        if lease is None:
            self._want_keys(now_ms)
            return False
        item.happens(Happening.KEY)
        item.lease = lease
        item.attempts[lease.object_id] = lease
        item.attempt_ends_ms = now_ms + self.settings.put_timeout_ms
        pieces = item.pieces(lease.object_id, self._broker_id)
        self._effects.append(PutObject(item.number, lease, pieces))
        self._want_keys(now_ms)
        return True

    def _pause_put(self, item: WalObject, now_ms: float, chance: float) -> None:
        if item.happens(Happening.PUT_FAILED):
            self.counters.put_retries += 1
            item.put_failures += 1
            item.attempt_ends_ms = inf
            item.pause_ends_ms = now_ms + self._pause_ms(item.put_failures, chance)

    def _resume(self, item: WalObject) -> None:
        written = item.phase is ObjectPhase.UNKNOWN
        item.pause_ends_ms = inf
        if item.happens(Happening.PAUSE_OVER) and written:
            self._commit(item)

    def _commit(self, item: WalObject) -> None:
        lease = item.lease
        if lease is not None:
            entries = item.entries()
            self._effects.append(CommitObject(item.number, lease, item.size_bytes, entries))

    def _fail_object(self, item: WalObject, error: PenstockError) -> None:
        behind = targets(item.kept())
        self._fail(item, error)
        if not behind:
            return
        following = EarlierWriteFailed(f"an earlier append was not written: {error}")
        for later in list(self._objects.values()):
            if later.number > item.number:
                self._drop(later, later.submissions, behind, following)
                if len(later.dropped) == len(later.submissions):
                    later.happens(Happening.FAILED)
                    self._finish(later, None)
        if self._open is not None:
            self._drop(self._open, list(self._open.all()), behind, following)

    def _drop(
        self,
        of: WalObject | OpenObject,
        submissions: list[Submission],
        behind: set[tuple[UUID, int, int]],
        error: PenstockError,
    ) -> None:
        outcomes: list[tuple[Submission, Outcome]] = []
        for submission in submissions:
            target = (submission.topic_id, submission.partition, submission.headers[0].producer_id)
            if target in behind and id(submission) not in of.dropped:
                of.dropped.add(id(submission))
                outcomes.append((submission, error))
        if outcomes:
            self._effects.append(Answer(outcomes))

    def _fail(self, item: WalObject, error: PenstockError) -> None:
        item.happens(Happening.FAILED)
        self.counters.objects_failed += 1
        kept = item.kept()
        self._finish(item, None)
        self._effects.append(Answer([(submission, error) for submission in kept]))

    def _finish(self, item: WalObject, answer: CommitAnswer | None) -> None:
        del self._objects[item.number]
        self._started -= item.started
        self.pending_bytes -= item.submitted_bytes
        self.pending_submissions -= len(item.submissions)
        lease = None if answer is None else item.lease
        pieces = [] if lease is None else item.pieces(lease.object_id, self._broker_id)
        self._effects.append(Finished(item.number, lease, answer, pieces, item.submissions))

    # Keys and the clock

    def _want_keys(self, now_ms: float) -> None:
        count = self._book.wanted(now_ms)
        if count:
            self._effects.append(LeaseKeys(count))

    def _pause_ms(self, failures: int, chance: float) -> float:
        return self.settings.backoff.pause_ms(failures, chance=chance)

    def _next_wake_ms(self) -> float:
        wake_ms = inf
        for item in self._objects.values():
            wake_ms = min(wake_ms, item.deadline_ms, item.attempt_ends_ms, item.pause_ends_ms)
            if item.phase is ObjectPhase.WAITING and item.started and not self._book.asking:
                wake_ms = min(wake_ms, self._book.not_before_ms)
        if self._open is not None and len(self._objects) < self.settings.objects_in_flight_max:
            wake_ms = min(wake_ms, self._open.opened_ms + self.interval_ms)
        return wake_ms
