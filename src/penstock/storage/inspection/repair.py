"""Repair of a partition's files: damaged data is quarantined, all else is rebuilt from batches.

A segment with unreadable batches is rewritten without them: the log has an offset gap there, as
after a compaction. The old file stays beside it, under a name that ends with `.quarantined`. Wrong
indexes, indexes of aborted transactions and snapshots are rebuilt from the batches, and the old
files are kept in the same way. Nothing is deleted.

Every step is safe against a crash: the new file is written and synced under another name, the old
file gets a second name by a link, the new file is renamed, the directory is synced. Indexes are
removed before their segment changes. After an interruption, the repair is run again. The checkpoint
is written last. Until then a broker finds a segment shorter than the checkpoint states, and serves
the records before its end.

The directory must not be in use, and must have been closed cleanly. After a crash, the journal has
bytes for certain positions of segments, which the next start must write first.

Source: Kafka's `LogSegment.recover` and `OffsetIndex`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import ClassVar, Final, NamedTuple

from penstock.base.errors import InvalidError
from penstock.base.files import (
    MACHINE_FILES,
    read_file,
    replace_file,
    sync_directory,
    write_all,
)
from penstock.base.ids import TopicPartition
from penstock.storage.files.checkpoint import (
    RecoveryPoint,
    encode_checkpoint,
    encode_recovery_point,
    read_checkpoint,
    write_checkpoint,
)
from penstock.storage.files.errors import CorruptFile, CorruptLog
from penstock.storage.files.journal import encode_key
from penstock.storage.files.producers import (
    BATCHES_VERSION,
    SNAPSHOT_VERSION,
    ProducerStates,
    SnapshotEntry,
    decode_snapshot,
    encode_snapshot,
)
from penstock.storage.files.segment import Segment
from penstock.storage.files.segment_files import SegmentFiles
from penstock.storage.files.transaction_index import TransactionIndex
from penstock.storage.files.values import (
    CHECKPOINT_FILE,
    EPOCHS_FILE,
    INDEX,
    LOG,
    QUARANTINED,
    RECENT_BATCHES,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
)
from penstock.storage.files.walk import Walked
from penstock.storage.files.worker import Counters
from penstock.storage.inspection.directories import (
    BatchVerifier,
    Finding,
    PartitionFiles,
    Wanted,
    list_partition,
    locked,
    partitions_of,
    was_closed_cleanly,
)
from penstock.storage.inspection.verification import (
    Advance,
    PartitionCheck,
    readable,
)

ASIDE_MAX: Final = 1_000
"""Maximum number of quarantined versions of one file."""
INDEX_INTERVAL_BYTES: Final = 4096
_NOWHERE: Final = TopicPartition("", 0)


class NotRepaired(InvalidError):
    """The directory cannot be repaired in its current state."""

    code: ClassVar[str] = "invalid_config"


class Step(NamedTuple):
    """Completed or planned step of a repair."""

    path: str
    what: str


class PartitionRepair:
    """Repair of one partition; without `perform` it only reports its steps."""

    def __init__(
        self,
        files: PartitionFiles,
        *,
        perform: bool,
        report: Callable[[Step], object],
        advance: Advance = lambda size: None,
    ) -> None:
        self._files = files
        self._perform = perform
        self._report = report
        self._advance = advance
        self._segment_files = SegmentFiles(
            MACHINE_FILES, Counters(), open_files_max=8, index_cache_bytes=0
        )
        self.steps = 0

    def run(self) -> None:
        """Check the partition, and repair the findings; raises OSError."""
        found = BatchVerifier()
        PartitionCheck(self._files, found, advance=self._advance).run()
        if found.wrong > len(found.findings):
            self._say(self._files.path, f"{found.wrong} findings: run the repair again after this")
        try:
            self._mend(found.findings)
        finally:
            self._segment_files.descriptors.close()

    def _mend(self, findings: list[Finding]) -> None:
        rotten = [finding for finding in findings if finding.kind in ("batch", "offsets")]
        touched = {self._base_of(finding.place) for finding in rotten}
        for base in sorted(touched):
            self._rewrite(base)
        wrong = {
            self._base_of(finding.place)
            for finding in findings
            if finding.kind in ("index", "timeindex")
        }
        for base in sorted(wrong - touched):
            self._make_indexes(base, "its entries do not match its batches")
        wrong_files = {
            finding.place.partition(", byte")[0]
            for finding in findings
            if finding.kind in ("txnindex", "snapshot")
        }
        if wrong_files:
            self._make_producers(wrong_files)
        if any(finding.kind == "epochs" for finding in findings):
            self._make_epochs()

    def _base_of(self, place: str) -> int:
        return int(os.path.basename(place.partition(", byte")[0]).partition(".")[0])

    # -- segments ----------------------------------------------------------------------------

    def _rewrite(self, base: int) -> None:
        path = self._files.file(base, LOG)
        kept = dropped = 0
        size_bytes = MACHINE_FILES.size_of(path)
        target = f"{path}.tmp"
        file = MACHINE_FILES.open(target, create=True, truncate=True) if self._perform else None
        try:
            for batch in readable_batches(path, base):
                self._advance(batch.header.size_bytes)
                if file is not None:
                    write_all(MACHINE_FILES, file, kept, [batch.read()])
                kept += batch.header.size_bytes
            dropped = size_bytes - kept
            if file is not None:
                MACHINE_FILES.sync_file(file)
        finally:
            if file is not None:
                MACHINE_FILES.close(file)
        self._say(path, f"{dropped} unreadable bytes are quarantined, {kept} bytes stay")
        if self._perform:
            for suffix in (INDEX, TIME_INDEX):
                self._set_aside(self._files.file(base, suffix))
            self._link_aside(path)
            MACHINE_FILES.rename(target, path)
            sync_directory(MACHINE_FILES, self._files.path)
        self._make_indexes(base, "its segment was rewritten")

    def _make_indexes(self, base: int, reason: str) -> None:
        self._say(self._files.file(base, INDEX), f"both indexes are rebuilt: {reason}")
        if not self._perform:
            return
        for suffix in (INDEX, TIME_INDEX):
            self._set_aside(self._files.file(base, suffix))
        path = self._files.file(base, LOG)
        segment = Segment(self._files.path, base, MACHINE_FILES.size_of(path))
        index = self._segment_files.index_of(segment, INDEX_INTERVAL_BYTES)
        segment.close_index()
        replace_file(MACHINE_FILES, segment.sibling(INDEX), bytes(index.offsets))
        replace_file(MACHINE_FILES, segment.sibling(TIME_INDEX), bytes(index.times))
        self._segment_files.descriptors.forget(path)

    # -- producers ---------------------------------------------------------------------------

    def _make_producers(self, wrong: set[str]) -> None:
        producers = ProducerStates()
        snapshots = list(self._files.snapshots)
        if self._files.segments:
            producers.load(snapshot_at(self._files, self._files.segments[0]))
        for base in self._files.segments:
            index = TransactionIndex()
            for batch in readable_batches(self._files.file(base, LOG), base):
                snapshots = self._snapshots(snapshots, batch.header.base_offset, producers, wrong)
                header = batch.header
                aborted = producers.replay(header, batch.read, header.max_timestamp)
                if aborted is not None:
                    index.add(aborted)
            path = self._files.file(base, TXN_INDEX)
            if path in wrong:
                self._replace(path, bytes(index.entries), "rebuilt from the batches")
        if snapshots:
            self._snapshots(snapshots, snapshots[-1][0], producers, wrong)

    def _snapshots(
        self,
        snapshots: list[tuple[int, str]],
        reached: int,
        producers: ProducerStates,
        wrong: set[str],
    ) -> list[tuple[int, str]]:
        """Rebuild the wrong snapshots up to the offset `reached`; return the later snapshots."""
        while snapshots and snapshots[0][0] <= reached:
            path = self._files.file(*snapshots[0])
            if path in wrong:
                last, batches = producers.snapshot()
                data = encode_snapshot(last)
                if snapshots[0][1] == RECENT_BATCHES:
                    data = encode_snapshot(batches, BATCHES_VERSION)
                self._replace(path, data, "rebuilt from the batches")
            snapshots = snapshots[1:]
        return snapshots

    def _make_epochs(self) -> None:
        """Quarantine the epoch file, which the next start rebuilds from the segments."""
        path = os.path.join(self._files.path, EPOCHS_FILE)
        self._say(path, "quarantined; the next start rebuilds it from the segments")
        if self._perform:
            self._set_aside(path)

    # -- files -------------------------------------------------------------------------------

    def _replace(self, path: str, data: bytes, reason: str) -> None:
        self._say(path, reason)
        if self._perform:
            self._link_aside(path)
            replace_file(MACHINE_FILES, path, data)

    def _link_aside(self, path: str) -> None:
        """Give an existing file a second name, which ends with `.quarantined`."""
        for number in range(1, ASIDE_MAX + 1):
            with suppress(FileExistsError):
                with suppress(FileNotFoundError):
                    MACHINE_FILES.link(path, f"{path}.{number}{QUARANTINED}")
                return
        raise NotRepaired(f"{path} has {ASIDE_MAX} quarantined versions already: remove old ones")

    def _set_aside(self, path: str) -> None:
        self._link_aside(path)
        with suppress(FileNotFoundError):
            MACHINE_FILES.remove(path)

    def _say(self, path: str, what: str) -> None:
        self.steps += 1
        self._report(Step(path, what))


def readable_batches(path: str, base: int) -> Iterator[Walked]:
    """Yield the readable batches of a segment with rising offsets."""
    following = base

    def above() -> int:
        return following

    for batch in readable(path, base, MACHINE_FILES.size_of(path), above):
        if isinstance(batch, CorruptLog):
            continue
        good = BatchVerifier().verify(_NOWHERE, batch.read(), batch.header, path)
        if good and batch.header.base_offset >= following:
            following = batch.header.next_offset
            yield batch


def snapshot_at(files: PartitionFiles, offset: int) -> list[SnapshotEntry]:
    """Return the saved producer states at an offset; none without a valid file."""
    for suffix, version in (RECENT_BATCHES, BATCHES_VERSION), (SNAPSHOT, SNAPSHOT_VERSION):
        with suppress(FileNotFoundError, CorruptFile):
            return decode_snapshot(read_file(MACHINE_FILES, files.file(offset, suffix)), version)
    return []


def repair_store(
    root: str,
    wanted: Wanted,
    *,
    perform: bool,
    report: Callable[[Step], object],
    advance: Advance = lambda size: None,
) -> int:
    """Repair the wanted partitions below a directory; return the number of steps.

    Raises:
        StoreLocked: a broker uses the directory.
        NotRepaired: the directory was not closed cleanly.
        OSError: the repair is incomplete.
    """
    with locked(root):
        checkpoint, damaged = read_checkpoint(MACHINE_FILES, root)
        clean = was_closed_cleanly(root) if checkpoint is None else checkpoint.clean
        if clean is False or (checkpoint is None and damaged):
            raise NotRepaired(
                f"{root} was not closed cleanly. Start its broker and stop it, which completes the"
                " recovery; then repair the remaining damage"
            )
        steps = 0
        points = dict(checkpoint.points) if checkpoint is not None else {}
        for files in partitions_of(root, wanted):
            repair = PartitionRepair(files, perform=perform, report=report, advance=advance)
            repair.run()
            steps += repair.steps
            key = files.where.topic, files.where.partition
            known = points.get(key)
            if known is not None:
                points[key] = known[0], _point_of(files, known[1])
        if perform and checkpoint is not None and points != checkpoint.points:
            rows = [
                encode_recovery_point(encode_key(topic_id, topic, partition), point)
                for (topic, partition), (topic_id, point) in points.items()
            ]
            path = os.path.join(root, CHECKPOINT_FILE)
            report(Step(path, "updated with the new ends of shortened segments"))
            sequence, journaled = checkpoint.sequence, checkpoint.journaled
            data = encode_checkpoint(sequence, rows, clean=True, journaled=journaled)
            write_checkpoint(MACHINE_FILES, root, data)
        return steps


def _point_of(files: PartitionFiles, point: RecoveryPoint) -> RecoveryPoint:
    """Return the recovery point of a log whose segments may have become shorter."""
    now = list_partition(files.where, files.path)
    name = os.path.basename(files.file(point.segment_base, LOG))
    if not any(file.startswith(f"{name}.") for file in now.quarantined):
        return point
    sizes = {base: MACHINE_FILES.size_of(files.file(base, LOG)) for base in now.segments}
    position = min(point.position, sizes.get(point.segment_base, 0))
    return point._replace(position=position, size_bytes=sum(sizes.values()))
