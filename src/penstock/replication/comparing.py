"""Comparison of the batches that two replicas have in the same offset range.

Replicas of a compacted log agree on batch boundaries, and on every record that both have. A record
that only one replica has is not a difference: the other replica was compacted further. A batch that
compaction has rewritten has another checksum.
"""

from __future__ import annotations

from penstock.base.crc import Readable
from penstock.records import BatchHeader, split_batches


def differ(ours: Readable, theirs: Readable) -> bool:
    """Return whether a batch of one replica overlaps a different batch of the other.

    Both arguments have complete batches, one after another, with rising offsets.

    Raises:
        CorruptBatch: the bytes are not complete batches.
    """
    mine, other = _with_records(ours), _with_records(theirs)
    at = 0
    for header in mine:
        while at < len(other) and other[at].next_offset <= header.base_offset:
            at += 1
        if at == len(other):
            return False
        if other[at].base_offset < header.next_offset and not _same(header, other[at]):
            return True
    return False


def _with_records(batches: Readable) -> list[BatchHeader]:
    return [header for header in split_batches(batches) if not header.is_filler]


def _same(one: BatchHeader, other: BatchHeader) -> bool:
    """Return whether two headers are of the same batch, possibly rewritten by compaction."""
    rewritten = one.is_thinned or other.is_thinned
    return _identity(one) == _identity(other) and (rewritten or one.crc == other.crc)


def _identity(header: BatchHeader) -> tuple[int, ...]:
    return (
        header.base_offset, header.next_offset, header.partition_leader_epoch, header.producer_id,
        header.producer_epoch, header.base_sequence,
    )  # fmt: skip
