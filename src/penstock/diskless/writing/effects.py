"""Effects that the writer's core requests from its shell, to be performed in order."""

from __future__ import annotations

from typing import NamedTuple

from penstock.control.batch_index.values import BatchEntry, CommitAnswer, ObjectLease
from penstock.diskless.writing.submission import Submission
from penstock.objects.port import Buffer
from penstock.records.appends import Outcome


class LeaseKeys(NamedTuple):
    """Reserve keys; answer with `leased` or `lease_failed`. One is pending at a time."""

    wanted: int


class PutObject(NamedTuple):
    """Write an object under a key; answer with `put_done` or `put_failed`."""

    number: int
    lease: ObjectLease
    pieces: list[Buffer]


class CommitObject(NamedTuple):
    """Commit an object; answer with `committed` or `commit_failed`."""

    number: int
    lease: ObjectLease
    size_bytes: int
    entries: tuple[BatchEntry, ...]


class Answer(NamedTuple):
    outcomes: list[tuple[Submission, Outcome]]


class Finished(NamedTuple):
    """Release an object that has ended, and cancel its pending work.

    `answer` is that of its commit, None for a failed object; it precedes the `Answer` to the
    submissions. `pieces` are the written bytes.
    """

    number: int
    lease: ObjectLease | None
    answer: CommitAnswer | None
    pieces: list[Buffer]
    submissions: list[Submission]


Effect = LeaseKeys | PutObject | CommitObject | Answer | Finished
