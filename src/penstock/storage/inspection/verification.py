"""Verification of one partition: its files are compared in one pass over its batches.

Every batch is read, and its checksum, records and offsets are checked. During the walk, index
entries and leader epochs are compared with their batches. The producer state that follows from the
batches is compared with snapshots and indexes of aborted transactions. Memory holds one batch, the
indexes of one segment, and the producers.

Behind unreadable batches, the walk continues at the next batch that the index locates in the same
segment, or at the next segment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.base.files import MACHINE_FILES, read_file
from penstock.records import BatchHeader, CorruptBatch
from penstock.records.transactions import AbortedTransaction, decode_marker
from penstock.storage.files.epochs import EpochHistory, decode_epochs
from penstock.storage.files.errors import CorruptFile, CorruptLog
from penstock.storage.files.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from penstock.storage.files.producers import (
    BATCHES_VERSION,
    SNAPSHOT_VERSION,
    ProducerStates,
    SnapshotEntry,
    decode_snapshot,
)
from penstock.storage.files.transaction_index import ENTRY_BYTES, TransactionIndex
from penstock.storage.files.values import (
    EPOCHS_FILE,
    INDEX,
    LOG,
    METADATA_FILE,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    decode_partition_metadata,
)
from penstock.storage.files.walk import Walked, walk_file
from penstock.storage.inspection.directories import BatchVerifier, Finding, Kind, PartitionFiles

# Comparison of a segment's sparse indexes with its batches, in one pass over both.
#
# Entries and batches are both sorted, so each batch is compared with the next entries; none is
# looked up. As in Apache Kafka's own tool, an entry of `.index` names the position of a batch and
# its last offset; one of `.timeindex` the highest timestamp so far and the last offset of the batch
# that has it. Zeros at a file's end are Apache Kafka's preallocation.
#
# Source: Kafka's `DumpLogSegments`, `OffsetIndex` and `TimeIndex`.


OFFSET_ENTRIES: Final = np.dtype([("offset", ">i4"), ("position", ">i4")])
TIME_ENTRIES: Final = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])


def entries_of(data: bytes, kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return the complete entries of an index file, without zeros at its end."""
    found = np.frombuffer(data, kind, len(data) // kind.itemsize)
    used = np.flatnonzero(found.view(np.uint8).reshape(len(found), kind.itemsize).any(axis=1))
    return found[: used[-1] + 1] if len(used) else found[:0]


class IndexCheck:
    """Check of one segment's indexes; call `batch` for each of its batches, and then `end`.

    Both methods yield errors: suffix of the file, byte position of the entry, and description.
    """

    def __init__(self, base_offset: int, offsets: bytes, times: bytes) -> None:
        self._base = base_offset
        self._sizes = len(offsets), len(times)
        self._offsets: list[tuple[int, int]] = entries_of(offsets, OFFSET_ENTRIES).tolist()
        self._times: list[tuple[int, int]] = entries_of(times, TIME_ENTRIES).tolist()
        self._offset_at = self._time_at = 0
        self._highest = self._last_time = -1
        self._skipped = False

    def __len__(self) -> int:
        return len(self._offsets) + len(self._times)

    def skip(self) -> None:
        """Ignore the entries before the next batch, because their batches are unreadable."""
        self._skipped = True

    def _resume(self, position: int, header: BatchHeader) -> None:
        self._skipped = False
        while self._offset_at < len(self._offsets) and self._offsets[self._offset_at][1] < position:
            self._offset_at += 1
        while (
            self._time_at < len(self._times)
            and self._base + self._times[self._time_at][1] < header.base_offset
        ):
            self._highest = max(self._highest, self._times[self._time_at][0])
            self._time_at += 1

    def batch(self, position: int, header: BatchHeader) -> Iterator[tuple[str, int, str]]:
        if self._skipped:
            self._resume(position, header)
        self._highest = max(self._highest, header.max_timestamp)
        while self._offset_at < len(self._offsets):
            offset, entry_position = self._offsets[self._offset_at]
            if entry_position > position:
                break
            if (self._base + offset, entry_position) != (header.last_offset, position):
                yield self._wrong_offset(header, position)
            self._offset_at += 1
        while self._time_at < len(self._times):
            timestamp, offset = self._times[self._time_at]
            if self._base + offset > header.last_offset:
                break
            if (
                self._base + offset != header.last_offset
                or not header.max_timestamp == timestamp == self._highest
                or timestamp <= self._last_time
            ):
                yield self._wrong_time(header)
            self._last_time = timestamp
            self._time_at += 1

    def _wrong_offset(self, header: BatchHeader, position: int) -> tuple[str, int, str]:
        offset, entry_position = self._offsets[self._offset_at]
        reason = (
            f"the entry states offset {self._base + offset} at position {entry_position}, but the"
            f" batch at position {position} ends with offset {header.last_offset}"
        )
        return ".index", self._offset_at * OFFSET_ENTRY_BYTES, reason

    def _wrong_time(self, header: BatchHeader) -> tuple[str, int, str]:
        timestamp, offset = self._times[self._time_at]
        reason = (
            f"the entry states timestamp {timestamp} at offset {self._base + offset}, but the batch"
            f" that ends with offset {header.last_offset} has {header.max_timestamp}, the highest"
            f" timestamp so far is {self._highest}, and the previous entry has {self._last_time}"
        )
        return ".timeindex", self._time_at * TIME_ENTRY_BYTES, reason

    def end(self, end_position: int) -> Iterator[tuple[str, int, str]]:
        """Yield errors for entries after the last batch."""
        if self._skipped:
            return
        left = len(self._offsets) - self._offset_at
        if left:
            offset, position = self._offsets[self._offset_at]
            yield (
                ".index",
                self._offset_at * OFFSET_ENTRY_BYTES,
                (
                    f"{left} entries, the first for offset {self._base + offset} at position"
                    f" {position}, point beyond the batches, which end at {end_position}"
                ),
            )
        left = len(self._times) - self._time_at
        if left:
            timestamp, offset = self._times[self._time_at]
            yield (
                ".timeindex",
                self._time_at * TIME_ENTRY_BYTES,
                (
                    f"{left} entries, the first for timestamp {timestamp} at offset"
                    f" {self._base + offset}, are beyond the last batch"
                ),
            )
        for suffix, size, entry in (
            (".index", self._sizes[0], OFFSET_ENTRY_BYTES),
            (".timeindex", self._sizes[1], TIME_ENTRY_BYTES),
        ):
            if size % entry:
                reason = f"{size} bytes are not a multiple of the entry size {entry}"
                yield suffix, size - size % entry, reason


_KINDS: Final[dict[str, Kind]] = {INDEX: "index", TIME_INDEX: "timeindex", TXN_INDEX: "txnindex"}
_VERSIONS: Final = {SNAPSHOT: SNAPSHOT_VERSION}
Advance = Callable[[int], object]


class Synced(NamedTuple):
    """Position, in a segment, up to which a partition's files are synced, and so must be intact.

    When the store starts, it restores the bytes after that position from the journal.
    """

    segment_base: int
    position: int


@contextmanager
def opened(path: str) -> Iterator[int]:
    file = MACHINE_FILES.open_file(path)
    try:
        yield file
    finally:
        MACHINE_FILES.close(file)


def read_if_there(path: str) -> bytes | None:
    try:
        return read_file(MACHINE_FILES, path)
    except FileNotFoundError:
        return None


def next_batch(path: str, base_offset: int, after: int, above: int) -> int | None:
    """Return the position of the next readable batch behind unreadable bytes, by the offset index.

    The batch begins behind position `after`, its last offset is not below `above`, and its header
    matches the index entry. Returns None if the index has no such batch.
    """
    data = read_if_there(path[: -len(LOG)] + INDEX) or b""
    for offset, position in entries_of(data, OFFSET_ENTRIES).tolist():
        if position <= after or base_offset + offset < above:
            continue
        try:
            found = next(walk_file(MACHINE_FILES, path, position), None)
            if found is not None and found.header.last_offset == base_offset + offset:
                return int(position)
        except (CorruptLog, ValueError):
            continue
    return None


def readable(
    path: str, base_offset: int, end: int, above: Callable[[], int]
) -> Iterator[Walked | CorruptLog]:
    """Yield the batches of a segment up to `end`, and the errors of unreadable bytes between them.

    The next batch behind unreadable bytes has offsets that are not below `above()`.

    Raises:
        OSError: the file cannot be read.
    """
    position = 0
    while position < end:
        try:
            for batch in walk_file(MACHINE_FILES, path, position, end):
                position = batch.position + batch.header.size_bytes
                yield batch
            return
        except CorruptLog as error:
            yield error
            found = next_batch(path, base_offset, error.position, above())
            if found is None:
                return
            position = found


class PartitionCheck:
    """Check of one partition, which reports to a verifier.

    Files must be intact up to `synced`, or completely if that is None. With `complete`, the store's
    checkpoint states that no synced offset lacks a batch.
    """

    def __init__(
        self,
        files: PartitionFiles,
        verifier: BatchVerifier,
        *,
        synced: Synced | None = None,
        complete: bool = False,
        advance: Advance = lambda size: None,
    ) -> None:
        self._files = files
        self._verifier = verifier
        self._synced = synced
        self._complete = complete and not files.quarantined
        self._advance = advance
        self._producers = ProducerStates()
        self._snapshots = list(files.snapshots)
        self._epochs: EpochHistory | None = None
        self._following = -1
        self._unread = False
        """Whether unreadable bytes before the next batch were reported."""
        self._whole = True
        """Whether all batches were read, so that the producers' state is complete."""
        self._aborted: list[AbortedTransaction] = []
        self._markers: dict[int, int] = {}
        """Producer id by offset, of this segment's abort markers."""

    def run(self) -> None:
        """Run all checks; raises OSError."""
        self._verifier.partitions += 1
        self._small_files()
        for name in self._files.quarantined:
            path = os.path.join(self._files.path, name)
            self._note("file", path, "was quarantined by a broker or `penstock log repair`")
        for place, base in enumerate(self._files.segments):
            self._segment(base, place)
        if self._following >= 0:
            self._compare_snapshots(self._following)

    # -- small files -------------------------------------------------------------------------

    def _small_files(self) -> None:
        path = os.path.join(self._files.path, METADATA_FILE)
        data = read_if_there(path)
        try:
            if data is not None:
                decode_partition_metadata(data)
        except CorruptFile as error:
            self._found("file", path, str(error))
        path = os.path.join(self._files.path, EPOCHS_FILE)
        data = read_if_there(path)
        try:
            if data is not None:
                self._epochs = EpochHistory(decode_epochs(data))
        except CorruptFile as error:
            self._found("epochs", path, str(error))

    # -- segments ----------------------------------------------------------------------------

    def _segment(self, base: int, place: int) -> None:
        path = self._files.file(base, LOG)
        offsets = read_if_there(self._files.file(base, INDEX)) or b""
        times = read_if_there(self._files.file(base, TIME_INDEX)) or b""
        transactions = read_if_there(self._files.file(base, TXN_INDEX)) or b""
        check = IndexCheck(base, offsets, times)
        self._verifier.entries += len(check)
        self._aborted, self._markers = [], {}
        self._begin(base, place)
        try:
            size_bytes = MACHINE_FILES.size_of(path)
        except FileNotFoundError:
            self._note("file", path, "was removed during the check")
            return
        for found in readable(path, base, size_bytes, lambda: self._following):
            if not isinstance(found, CorruptLog):
                self._batch(path, base, found, check)
            elif self._unreadable(path, base, found):
                check.skip()
            else:
                return
        for suffix, byte, reason in check.end(size_bytes):
            self._entry(base, suffix, byte, reason)
        self._compare_transactions(base, transactions)

    def _begin(self, base: int, place: int) -> None:
        """Load the producers from the first segment's snapshot; check that other segments begin
        where the previous one ends."""
        if place == 0:
            for offset, suffix in self._snapshots:
                if offset == base:
                    entries = self._decode(offset, suffix)
                    self._producers.load(entries or ())
                    break
            self._snapshots = [entry for entry in self._snapshots if entry[0] > base]
        elif base < self._following:
            place_of = self._files.file(base, LOG)
            self._found(
                "offsets", place_of, f"begins below the expected offset {self._following}", base
            )
        elif base > self._following >= 0:
            self._gap(base, 0, base)

    def _batch(self, path: str, base: int, at: Walked, check: IndexCheck) -> None:
        header = at.header
        place = f"{path}, byte {at.position}"
        self._advance(header.size_bytes)
        if header.base_offset < max(self._following, base):
            due = max(self._following, base)
            self._found(
                "offsets", place,
                f"a batch begins at offset {header.base_offset}, expected at least {due}",
                header.base_offset, header.last_offset,
            )  # fmt: skip
        elif header.base_offset > self._following >= 0 and self._following >= base:
            self._gap(base, at.position, header.base_offset)
        self._compare_snapshots(header.base_offset)
        data = at.read()
        if self._verifier.verify(self._files.where, data, header, place):
            self._remember(header, data, place)
        else:
            self._whole = False
        for suffix, byte, reason in check.batch(at.position, header):
            self._entry(base, suffix, byte, reason)
        self._compare_epoch(header, place)
        self._following, self._unread = header.next_offset, False

    def _unreadable(self, path: str, base: int, error: CorruptLog) -> bool:
        """Report unreadable bytes; return False if they are a torn end."""
        if self._synced is not None and (base, error.position) >= self._synced:
            self._note("batch", f"{path}, byte {error.position}", f"a torn end: {error.reason}")
            return False
        self._whole, self._unread = False, True
        self._found("batch", f"{path}, byte {error.position}", error.reason, self._following)
        return True

    def _gap(self, base: int, position: int, offset: int) -> None:
        self._whole = False
        place = f"{self._files.file(base, LOG)}, byte {position}"
        synced = self._synced is None or (base, position) < self._synced
        if self._complete and synced and not self._unread:
            reason = "no batch has these offsets, and the log was never compacted: records are lost"
            self._found("offsets", place, reason, self._following, offset - 1)
            return
        reason = "no batch has these offsets: records were compacted, quarantined or lost"
        self._note("offsets", place, reason, self._following, offset - 1)

    def _entry(self, base: int, suffix: str, byte: int, reason: str) -> None:
        report = self._found if self._synced is None or base < self._synced[0] else self._note
        report(_KINDS[suffix], f"{self._files.file(base, suffix)}, byte {byte}", reason, base)

    def _doubtful(self, suffix: str, base: int, byte: int, reason: str) -> None:
        """Report a wrong entry, as an error only if all batches before it were read."""
        if self._whole:
            self._entry(base, suffix, byte, reason)
        else:
            place = f"{self._files.file(base, suffix)}, byte {byte}"
            self._note(_KINDS[suffix], place, reason, base)

    # -- producers, transactions, epochs -----------------------------------------------------

    def _remember(self, header: BatchHeader, data: bytes, place: str) -> None:
        if header.producer_id < 0:
            return
        if header.base_sequence >= 0:
            self._producers.append(header, header.base_offset, header.max_timestamp)
        elif header.is_control:
            try:
                marker = decode_marker(data, header)
            except CorruptBatch as error:
                self._found("batch", place, str(error), header.base_offset, header.last_offset)
                return
            if not marker.commit:
                self._markers[header.base_offset] = header.producer_id
            decided = self._producers.decide(marker, header.base_offset, header.max_timestamp)
            if decided[1] is not None:
                self._aborted.append(decided[1])

    def _compare_transactions(self, base: int, data: bytes) -> None:
        """Compare the aborted transactions of a segment with its index, in both directions."""
        index = TransactionIndex(data[: len(data) - len(data) % ENTRY_BYTES])
        doubt = TransactionIndex(data).doubt(base)
        if doubt is not None:
            self._entry(base, TXN_INDEX, 0, doubt)
            return
        stored = [index.at(place) for place in range(len(index))]
        self._verifier.entries += len(stored)
        for place, txn in enumerate(stored):
            if self._markers.get(txn.last_offset) != txn.producer_id:
                reason = f"the log does not contain {txn}"
                self._doubtful(TXN_INDEX, base, place * ENTRY_BYTES, reason)
        known = {(txn.producer_id, txn.first_offset, txn.last_offset) for txn in stored}
        for txn in self._aborted:
            if (txn.producer_id, txn.first_offset, txn.last_offset) not in known:
                self._doubtful(TXN_INDEX, base, len(data), f"the index lacks {txn}")

    def _compare_snapshots(self, offset: int) -> None:
        """Compare the snapshots up to `offset`, which the walk has reached, with the producers."""
        while self._snapshots and self._snapshots[0][0] <= offset:
            at, suffix = self._snapshots.pop(0)
            entries = self._decode(at, suffix)
            if entries is None or not self._files.segments or at < self._files.segments[0]:
                continue
            last = {entry.producer_id: entry for entry in entries}
            for producer in self._producers.snapshot()[0]:
                stored = last.get(producer.producer_id)
                if stored is not None and (reason := _difference(stored, producer)):
                    report = self._found if self._whole else self._note
                    report("snapshot", self._files.file(at, suffix), reason, at)

    def _decode(self, offset: int, suffix: str) -> Sequence[SnapshotEntry] | None:
        path = self._files.file(offset, suffix)
        data = read_if_there(path)
        if data is None:
            return None
        try:
            return decode_snapshot(data, _VERSIONS.get(suffix, BATCHES_VERSION))
        except CorruptFile as error:
            self._found("snapshot", path, str(error), offset)
            return None

    def _compare_epoch(self, header: BatchHeader, place: str) -> None:
        epoch = header.partition_leader_epoch
        if self._epochs is None or epoch < 0 or self._synced is not None:
            return
        stored = self._epochs.epoch_at(header.base_offset)
        if stored != epoch and stored >= 0:  # -1 below the log's start
            reason = f"the batch has leader epoch {epoch}, but {EPOCHS_FILE} states {stored}"
            self._found("epochs", place, reason, header.base_offset, header.last_offset)

    # -- reports -----------------------------------------------------------------------------

    def _found(
        self, kind: Kind, place: str, reason: str, offset: int = -1, last_offset: int = -1
    ) -> None:
        self._verifier.found(Finding(self._files.where, offset, last_offset, place, reason, kind))

    def _note(
        self, kind: Kind, place: str, reason: str, offset: int = -1, last_offset: int = -1
    ) -> None:
        self._verifier.note(Finding(self._files.where, offset, last_offset, place, reason, kind))


def _difference(stored: SnapshotEntry, actual: SnapshotEntry) -> str | None:
    """Return how a snapshot's entry differs from the batches below it, or None."""
    if stored.producer_epoch == actual.producer_epoch and -1 not in (
        stored.last_offset,
        actual.last_offset,
    ):
        for name in ("last_offset", "last_sequence", "current_txn_first_offset"):
            if getattr(stored, name) != getattr(actual, name):
                return (
                    f"producer {stored.producer_id}: the snapshot states {name}"
                    f" {getattr(stored, name)}, but the batches {getattr(actual, name)}"
                )
    return None
