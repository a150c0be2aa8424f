"""Submissions: the batches of one produce request for one partition, and their entry in a commit.

A submission becomes one entry of an object's commit, which is accepted or rejected as a whole. Its
batches must therefore come from one idempotent producer with adjacent sequences, or from none.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from penstock.archive.formats.wal import OBJECT_BATCHES_MAX
from penstock.control.batch_index.values import BatchEntry
from penstock.diskless.errors import MixedBatches, SubmissionTooLarge
from penstock.records import BatchHeader, OutOfOrderSequence
from penstock.records.appends import Done
from penstock.records.transactions import Marker
from penstock.storage.values import Lease

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
