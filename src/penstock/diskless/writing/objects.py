"""An object of the writer: the table of its states, and its content.

| state                    | event                                  | next state |
|--------------------------|----------------------------------------|------------|
| WAITING                  | a key is available                     | PUTTING    |
| PUTTING                  | the PUT failed, or is overdue          | PAUSED     |
| PAUSED                   | the pause is over                      | WAITING    |
| WAITING, PUTTING, PAUSED | a PUT of the object succeeded          | WRITTEN    |
| WRITTEN                  | all earlier objects have ended         | COMMITTING |
| COMMITTING               | the outcome is unknown                 | UNKNOWN    |
| UNKNOWN                  | the pause is over                      | COMMITTING |
| COMMITTING               | the key was swept                      | WAITING    |
| COMMITTING               | the object was committed               | ENDED      |
| any                      | permanent rejection, or timeout        | ENDED      |

Any other event comes too late, and has no effect. Within an object, bytes are grouped by partition,
in the order of submission.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from itertools import chain
from math import inf
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from penstock.archive.wal import (
    HEADER_BYTES,
    OBJECT_BATCHES_MAX,
    WalHeader,
    WalRange,
    encode_footer,
    encode_header,
)
from penstock.control.values.diskless import BatchEntry, ObjectLease, PartitionKey
from penstock.diskless.errors import MixedBatches, SubmissionTooLarge
from penstock.objects.port import Buffer
from penstock.records import BatchHeader, OutOfOrderSequence
from penstock.records.appends import Done
from penstock.records.transactions import Marker
from penstock.storage.files.values import Lease

# Submissions: the batches of one produce request for one partition, and their entry in a commit.
#
# A submission becomes one entry of an object's commit, which is accepted or rejected as a whole.
# Its batches must therefore come from one idempotent producer with adjacent sequences, or from
# none.


_PAIR: Final = Struct("<ii")
_LENGTH_OVERHEAD_BYTES: Final = 12
_SEQUENCE_MODULUS: Final = 2**31


class Submission(NamedTuple):
    """Validated batches of one partition, and the callback for their result.

    `batches` must not change until `done` has been called and the lease, if any, has been released.
    With `append_time`, records get the time of the append instead of the producers' times.
    `verified_from` and `marker` are as in `BatchEntry`.
    """

    topic_id: UUID
    partition: int
    batches: memoryview
    headers: list[BatchHeader]
    append_time: bool
    lease: Lease | None
    done: Done
    verified_from: int = -1
    marker: Marker | None = None


def check(submission: Submission) -> None:
    """Reject batches that cannot succeed or fail together. A single batch always can.

    Raises:
        SubmissionTooLarge: there are more batches than an object may have.
        MixedBatches: the batches come from several producers or epochs, or only some have a
            producer.
        OutOfOrderSequence: their sequences do not adjoin.
    """
    headers = submission.headers
    if len(headers) > OBJECT_BATCHES_MAX:
        raise SubmissionTooLarge(
            f"an append has {len(headers)} batches for one partition, the limit is"
            f" {OBJECT_BATCHES_MAX}"
        )
    first = headers[0]
    identity = (first.producer_id, first.producer_epoch)
    expected = first.base_sequence
    for header in headers:
        if header.producer_id < 0 and first.producer_id < 0:
            continue
        if (header.producer_id, header.producer_epoch) != identity:
            raise MixedBatches(
                f"one append has batches of producer {first.producer_id} of epoch"
                f" {first.producer_epoch} and of producer {header.producer_id} of epoch"
                f" {header.producer_epoch}"
            )
        if header.base_sequence != expected:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} sent sequence {header.base_sequence} after sequence"
                f" {expected - 1} in one append, expected {expected}"
            )
        expected = (header.last_sequence + 1) % _SEQUENCE_MODULUS


def entry_of(submission: Submission, byte_offset: int) -> BatchEntry:
    headers = submission.headers
    first = last = headers[0]
    offset_count = first.last_offset_delta + 1
    max_timestamp = first.newest_timestamp
    layout = _PAIR.pack(first.batch_length + _LENGTH_OVERHEAD_BYTES, offset_count)
    if len(headers) > 1:
        last = headers[-1]
        counts = [header.last_offset_delta + 1 for header in headers]
        offset_count = sum(counts)
        max_timestamp = max([header.newest_timestamp for header in headers])
        layout = b"".join(
            [
                _PAIR.pack(header.batch_length + _LENGTH_OVERHEAD_BYTES, count)
                for header, count in zip(headers, counts, strict=True)
            ]
        )
    if first.producer_id < 0:
        return BatchEntry(
            submission.topic_id, submission.partition, byte_offset, len(submission.batches),
            offset_count, max_timestamp, submission.append_time, layout,
        )  # fmt: skip
    return BatchEntry(
        submission.topic_id, submission.partition, byte_offset, len(submission.batches),
        offset_count, max_timestamp, submission.append_time, layout,
        first.producer_id, first.producer_epoch, first.base_sequence, last.last_sequence,
        first.is_transactional, submission.verified_from, submission.marker,
    )  # fmt: skip


class ObjectPhase(Enum):
    WAITING = auto()
    PUTTING = auto()
    PAUSED = auto()
    WRITTEN = auto()
    COMMITTING = auto()
    UNKNOWN = auto()
    ENDED = auto()


class Happening(Enum):
    KEY = auto()
    PUT = auto()
    PUT_FAILED = auto()
    PAUSE_OVER = auto()
    TURN = auto()
    COMMITTED = auto()
    COMMIT_UNKNOWN = auto()
    LEASE_LOST = auto()
    FAILED = auto()


_P, _H = ObjectPhase, Happening
TRANSITIONS: Final[Mapping[tuple[ObjectPhase, Happening], ObjectPhase]] = {
    (_P.WAITING, _H.KEY): _P.PUTTING,
    (_P.WAITING, _H.PUT): _P.WRITTEN,
    (_P.PUTTING, _H.PUT): _P.WRITTEN,
    (_P.PUTTING, _H.PUT_FAILED): _P.PAUSED,
    (_P.PAUSED, _H.PUT): _P.WRITTEN,
    (_P.PAUSED, _H.PAUSE_OVER): _P.WAITING,
    (_P.WRITTEN, _H.TURN): _P.COMMITTING,
    (_P.COMMITTING, _H.COMMITTED): _P.ENDED,
    (_P.COMMITTING, _H.COMMIT_UNKNOWN): _P.UNKNOWN,
    (_P.COMMITTING, _H.LEASE_LOST): _P.WAITING,
    (_P.UNKNOWN, _H.PAUSE_OVER): _P.COMMITTING,
    **{(phase, _H.FAILED): _P.ENDED for phase in _P if phase is not _P.ENDED},
}


class OpenObject:
    """Submissions since the last object closed. `opened_ms` is the time of the first submission."""

    __slots__ = ("batches", "dropped", "groups", "opened_ms", "size_bytes", "submissions")

    def __init__(self, opened_ms: float) -> None:
        self.opened_ms = opened_ms
        self.groups: dict[PartitionKey, list[Submission]] = {}
        self.size_bytes = 0
        self.batches = 0
        self.submissions = 0
        self.dropped: set[int] = set()

    def add(self, submission: Submission) -> None:
        key = (submission.topic_id, submission.partition)
        group = self.groups.get(key)
        if group is None:
            self.groups[key] = [submission]
        else:
            group.append(submission)
        self.size_bytes += len(submission.batches)
        self.batches += len(submission.headers)
        self.submissions += 1

    def all(self) -> Iterable[Submission]:
        return chain.from_iterable(self.groups.values())


class WalObject:
    """A closed object. `number` counts the objects of this broker process, in the order of closing.

    `dropped` has the identities of submissions that already have a result. They are left out of the
    commit.
    """

    __slots__ = (
        "_bodies", "_entries", "_footer", "attempt_ends_ms", "attempts", "batches",
        "commit_failures", "deadline_ms", "dropped", "lease", "number", "opened_ms",
        "pause_ends_ms", "phase", "put_failures", "size_bytes", "started", "submissions",
        "submitted_bytes",
    )  # fmt: skip

    def __init__(self, number: int, gathered: OpenObject, deadline_ms: float) -> None:
        self.number = number
        self.opened_ms = gathered.opened_ms
        self.deadline_ms = deadline_ms
        self.phase = ObjectPhase.WAITING
        self.started = False
        """Whether the object may be written now."""
        self.lease: ObjectLease | None = None
        """Key under which the object is written, or was written."""
        self.attempts: dict[int, ObjectLease] = {}
        """Keys of running PUTs, by object id."""
        self.attempt_ends_ms = self.pause_ends_ms = inf
        self.put_failures = self.commit_failures = 0
        self.submissions = list(gathered.all())
        self.submitted_bytes = gathered.size_bytes
        self.batches = gathered.batches
        self.dropped = gathered.dropped
        ranges: list[WalRange] = []
        self._entries: list[BatchEntry] = []
        at = HEADER_BYTES
        for (topic_id, partition), group in gathered.groups.items():
            start = at
            entries: list[BatchEntry] = []
            for submission in group:
                entries.append(entry_of(submission, at))
                at += len(submission.batches)
            layout = b"".join([entry.layout for entry in entries])
            ranges.append(WalRange(topic_id, partition, start, at - start, layout))
            self._entries += entries
        self._bodies: list[Buffer] = [item.batches for item in self.submissions]
        self._footer = encode_footer(ranges)
        self.size_bytes = at + len(self._footer)

    def __repr__(self) -> str:
        return f"<WalObject {self.number} {self.phase.name} {self.lease}>"

    def happens(self, happening: Happening) -> bool:
        """Apply an event of the table.

        Return False, and do nothing, for an event that came too late.
        """
        following = TRANSITIONS.get((self.phase, happening))
        if following is None:
            return False
        self.phase = following
        return True

    def pieces(self, object_id: int, broker_id: int) -> list[Buffer]:
        """Return the bytes of the whole object, in pieces, with `object_id` in the header."""
        header = encode_header(WalHeader(object_id, broker_id))
        return [header, *self._bodies, self._footer]

    def entries(self) -> tuple[BatchEntry, ...]:
        """Return the entries to commit: those of submissions that have no result yet.

        They are in the order of `kept`.
        """
        if not self.dropped:
            return tuple(self._entries)
        pairs = zip(self.submissions, self._entries, strict=True)
        return tuple(entry for item, entry in pairs if id(item) not in self.dropped)

    def kept(self) -> list[Submission]:
        if not self.dropped:
            return self.submissions
        return [item for item in self.submissions if id(item) not in self.dropped]


def targets(submissions: Iterable[Submission]) -> set[tuple[UUID, int, int]]:
    """Return (topic id, partition, producer id) of each idempotent producer among submissions."""
    return {
        (item.topic_id, item.partition, item.headers[0].producer_id)
        for item in submissions
        if item.headers[0].producer_id >= 0
    }
