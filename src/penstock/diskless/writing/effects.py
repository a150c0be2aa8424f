"""What the gathering core asks of its shell, to be performed in order."""

from __future__ import annotations

from typing import NamedTuple

from penstock.control.batch_index.values import BatchEntry, CommitAnswer, ObjectLease
from penstock.diskless.writing.submission import Submission
from penstock.objects.port import Buffer
from penstock.records.appends import Outcome


class LeaseKeys(NamedTuple):
    """Reserve keys; answer with `leased` or `lease_failed`. One is under way at a time."""

    wanted: int


class PutObject(NamedTuple):
    """Write an object under a key; answer with `put_done` or `put_failed`.

    An object may get another of these before an earlier one has been answered.
    """

    number: int
    lease: ObjectLease
    pieces: list[Buffer]


class CommitObject(NamedTuple):
    """Commit an object; answer with `committed` or `commit_failed`. One is under way at a time,
    but for those that were given up.
    """

    number: int
    lease: ObjectLease
    size_bytes: int
    entries: tuple[BatchEntry, ...]


class Answer(NamedTuple):
    """Call these submissions' `done`. Each is answered once."""

    outcomes: list[tuple[Submission, Outcome]]


class Finished(NamedTuple):
    """An object has ended: its memory is not needed any more, nor what is under way for it.

    With the answer of its commit, which comes before the `Answer` to its submissions, and the
    bytes as they were written; without one, it was given up.
    """

    number: int
    lease: ObjectLease | None
    answer: CommitAnswer | None
    pieces: list[Buffer]
    submissions: list[Submission]


Effect = LeaseKeys | PutObject | CommitObject | Answer | Finished
