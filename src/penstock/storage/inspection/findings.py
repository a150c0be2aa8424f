"""Findings about stored logs: all are counted, and the first ones are kept.

A batch is checked as with `record.validation = full`: its checksum, then record by record. A batch
from which compaction removed records has offset gaps, which this check rejects. Such a batch is
decoded instead, as a consumer would do.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from penstock.base.crc import Readable
from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.records import BatchHeader, verify_crc
from penstock.records.columnar.validation import check_records

FINDINGS_MAX: Final = 1_000
"""Maximum number of findings that are kept, and of notes."""

Kind = Literal[
    "batch", "offsets", "index", "timeindex", "txnindex", "snapshot", "epochs", "journal",
    "checkpoint", "file", "object",
]  # fmt: skip


class Finding(NamedTuple):
    """Location and reason of a finding; an offset of -1 is unknown."""

    partition: TopicPartition | None
    base_offset: int
    last_offset: int
    place: str
    reason: str
    kind: Kind = "batch"


class BatchVerifier:
    """Verifier of batches, which counts them and keeps findings.

    `findings` has the first `FINDINGS_MAX` errors. `notes` has the first findings that may be
    harmless: offset gaps, which compaction may have left as well as a lost file, and torn ends,
    which the next start removes.
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
        """Verify a complete batch; return whether it is intact.

        `place` is its location for messages.
        """
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
        self.wrong += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)

    def note(self, finding: Finding) -> None:
        self.noted += 1
        if len(self.notes) < FINDINGS_MAX:
            self.notes.append(finding)


def _check(batch: Readable, header: BatchHeader) -> None:
    if header.record_count == header.last_offset_delta + 1:
        check_records(batch, header)
        return
    # Imported on first use, because Arrow loads slowly.
    from penstock.records.columnar.decode import decode_batches

    decode_batches(batch, include_control=True, check_crc=False)
