"""Effects that the writer's core requests from its shell. The shell performs them in order."""

from __future__ import annotations

from typing import NamedTuple

from penstock.control.batch_index.values import BatchEntry, CommitAnswer, ObjectLease
from penstock.diskless.writing.submission import Submission
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
