"""What is wrong with stored logs, and what is only to be known: counted all, kept the first.

A batch is looked at as a log with `record.validation = full` would before it took it: checksum,
then record by record. One from which compaction took records is read as a consumer would instead:
its offsets have gaps, which no producer may leave.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from penstock.base.crc import Readable
from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.records import BatchHeader, verify_crc
from penstock.records.columnar.validation import check_records

FINDINGS_MAX: Final = 1_000
"""Findings, and notes, that are kept; all are counted."""

Kind = Literal[
    "batch", "offsets", "index", "timeindex", "txnindex", "snapshot", "epochs", "journal",
    "checkpoint", "file", "object",
]  # fmt: skip


class Finding(NamedTuple):
    """A place, and what is the matter with it; an offset of -1 is not known."""

    partition: TopicPartition | None
    base_offset: int
    last_offset: int
    place: str
    reason: str
    kind: Kind = "batch"


class BatchVerifier:
    """Looks at batches, and counts them.

    `findings` are the first `FINDINGS_MAX` of what is wrong, `notes` those of what is not: gaps
    that compaction leaves as well as a lost file, a torn end that a start cuts.
    """

    def __init__(self, *, deep: bool = True) -> None:
        self.deep = deep
        self.findings: list[Finding] = []
        self.notes: list[Finding] = []
        self.wrong = self.noted = self.partitions = self.batches = self.records = 0
        self.size_bytes = self.entries = 0

    def verify(
        self, where: TopicPartition, batch: Readable, header: BatchHeader, place: str
    ) -> bool:
        """Look at a whole batch with this header; `place` says where it lies."""
        self.batches += 1
        self.records += header.record_count
        self.size_bytes += header.size_bytes
        try:
            verify_crc(batch, header)
            if self.deep:
                _check(batch, header)
        except PenstockError as error:
            self.found(Finding(where, header.base_offset, header.last_offset, place, str(error)))
            return False
        return True

    def found(self, finding: Finding) -> None:
        """Count and keep what is wrong."""
        self.wrong += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)

    def note(self, finding: Finding) -> None:
        """Count and keep what is to be known."""
        self.noted += 1
        if len(self.notes) < FINDINGS_MAX:
            self.notes.append(finding)


def _check(batch: Readable, header: BatchHeader) -> None:
    if header.record_count == header.last_offset_delta + 1:
        check_records(batch, header)
        return
    # Arrow, which takes its time to load, for these alone.
    from penstock.records.columnar.decode import decode_batches

    decode_batches(batch, include_control=True, check_crc=False)
