"""Whether what is stored can be read: what `penstock log verify` asks of every batch.

A batch is looked at as a log with `record.validation = full` would before it took it: checksum,
then record by record. Batches come from the segment files of a store that nobody has open, or
from a broker's answers; nothing is changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from penstock.base.crc import Readable
from penstock.base.errors import PenstockError
from penstock.base.files import MACHINE_FILES, Files, read_range
from penstock.base.ids import TopicPartition
from penstock.records import BatchHeader, verify_crc
from penstock.records.columnar.validation import check_records
from penstock.storage.errors import CorruptLog
from penstock.storage.names import LOG, parse_directory_name, parse_offset_name
from penstock.storage.segment import walk

FINDINGS_MAX: Final = 1_000
"""Findings that are kept; all are counted."""


class Finding(NamedTuple):
    """A batch that cannot be read; `last_offset` is -1 when not even that is known."""

    partition: TopicPartition
    base_offset: int
    last_offset: int
    place: str
    reason: str


class BatchVerifier:
    """Looks at batches, and counts them; `findings` are the first `FINDINGS_MAX`."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.wrong = self.partitions = self.batches = self.records = self.size_bytes = 0

    def verify(
        self, where: TopicPartition, batch: Readable, header: BatchHeader, place: str
    ) -> None:
        """Look at a whole batch with this header; `place` says where it lies."""
        self.batches += 1
        self.records += header.record_count
        self.size_bytes += header.size_bytes
        try:
            verify_crc(batch, header)
            check_records(batch, header)
        except PenstockError as error:
            self.found(Finding(where, header.base_offset, header.last_offset, place, str(error)))

    def found(self, finding: Finding) -> None:
        """Count and keep a finding."""
        self.wrong += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)


def verify_segments(
    root: str, wanted: Callable[[TopicPartition], bool], verifier: BatchVerifier
) -> None:
    """Look at all batches in the segment files of the wanted partitions below a store's root."""
    files = MACHINE_FILES
    for name in sorted(files.names_in(root)):
        where = parse_directory_name(name)
        if where is None or not wanted(where):
            continue
        verifier.partitions += 1
        following = -1
        for path in _segments(files, os.path.join(root, name)):
            following = _verify_segment(files, path, where, following, verifier)


def _segments(files: Files, directory: str) -> Iterator[str]:
    for name in sorted(files.names_in(directory)):
        parsed = parse_offset_name(name)
        if parsed is not None and parsed[1] == LOG:
            yield os.path.join(directory, name)


def _verify_segment(
    files: Files, path: str, where: TopicPartition, following: int, verifier: BatchVerifier
) -> int:
    """Look at one file; takes and returns the offset after what was read last."""
    descriptor = files.open_file(path)
    try:
        for position, header in walk(files, descriptor, path, 0, files.size_of(path), verify=False):
            batch = read_range(files, descriptor, header.size_bytes, position)
            verifier.verify(where, batch, header, f"{path}, byte {position}")
            following = header.next_offset
    except CorruptLog as error:
        place = f"{path}, byte {error.position}"
        verifier.found(Finding(where, following, -1, place, error.reason))
    finally:
        files.close(descriptor)
    return following
