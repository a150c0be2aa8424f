"""Comparison of two copies of an offset range for different batches of one epoch.

Copies of a compacted log agree on every record that both have, and on batch boundaries. A record
that only one copy has is no difference: the other copy was compacted further. A batch that
compaction has rewritten has another checksum.
"""

from __future__ import annotations

from penstock.base.crc import Readable
from penstock.records import BatchHeader, split_batches


def differ(ours: Readable, theirs: Readable) -> bool:
    """Whether some batch of one overlaps one of the other that is not the same batch.

    Both are whole batches back to back, by rising offsets.

    Raises:
        CorruptBatch: bytes that are no whole batches.
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
    """Return the batches that have records."""
    return [header for header in split_batches(batches) if not header.is_filler]


def _same(one: BatchHeader, other: BatchHeader) -> bool:
    """Whether a batch is another one, or was before one of the two was compacted."""
    rewritten = one.is_thinned or other.is_thinned
    return _identity(one) == _identity(other) and (rewritten or one.crc == other.crc)


def _identity(header: BatchHeader) -> tuple[int, ...]:
    return (
        header.base_offset, header.next_offset, header.partition_leader_epoch, header.producer_id,
        header.producer_epoch, header.base_sequence,
    )  # fmt: skip
