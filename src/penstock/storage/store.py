"""Store of all partitions of one data directory: open, recover, create, delete, flush, maintain.

    <data directory>/
      .lock                     held while the store is open
      journal/00000000.journal  …
      partitions.checkpoint     positions up to which partitions are synced in their segments
      <topic>-<partition>/      Kafka's files

All calls are made on the event loop's thread; `attach` lets the store use threads of its own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from uuid import UUID

from penstock.base.files import MACHINE_FILES, Files, make_directories, write_file
from penstock.base.ids import TopicPartition
from penstock.base.metrics import Sample
from penstock.base.system import SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.records.appends import AppendResult
from penstock.storage.compaction.cleaner import LogCleaner
from penstock.storage.compaction.offsets import CleanOffsets
from penstock.storage.files.appended import AppendQueue, TailCache
from penstock.storage.files.checkpoint import (
    EXACT,
    HAS_TRANSACTIONS,
    Checkpoint,
    RecoveryPoint,
    keep_damaged,
    read_checkpoint,
    set_aside,
)
from penstock.storage.files.errors import (
    INDEX_CACHE_BYTES,
    CorruptLog,
    LogDeleted,
    StorageError,
    StorageFailed,
    StoreLocked,
    TopicIdMismatch,
    disk_full,
    write_error,
)
from penstock.storage.files.journal import Journal
from penstock.storage.files.segment_files import SegmentFiles
from penstock.storage.files.settings import LogConfig, StorageSettings
from penstock.storage.files.values import (
    CHECKPOINT_FILE,
    JOURNAL_DIRECTORY,
    LOCK_FILE,
    METADATA_FILE,
    LogOwner,
    deleted_directory_name,
    directory_name,
    encode_partition_metadata,
    parse_directory_name,
    stray_directory_name,
)
from penstock.storage.files.worker import Counters, Worker
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.log.replaying import LogReplay, Replays
from penstock.storage.log.state import Changes, LogState, StoreCalls, StoreParts
from penstock.storage.maintenance import LogMaintenance
from penstock.storage.writing.checkpointing import Checkpointer
from penstock.storage.writing.committing import Committer, OnDurable
from penstock.storage.writing.recovery import Directories, continue_log, last_whole, read_journal
from penstock.storage.writing.segment_writing import SegmentWriter

logger = logging.getLogger(__name__)


class LogStore:
    """Logs of one data directory; created by `open`, which also connects the parts of the store."""

    def __init__(
        self,
        parts: StoreParts,
        new_uuid: Callable[[], UUID],
        lock: int,
        replicated: Callable[[TopicPartition], bool] | None,
    ) -> None:
        self.config_of = parts.config_of
        self._parts = parts
        self._who_knows = replicated
        self._replicated = replicated or (lambda where: False)
        self._files = parts.segment_files.files
        self._root = parts.root
        self._new_uuid = new_uuid
        self._lock = lock
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._deleted: dict[TopicPartition, int] = {}
        """Number of the last checkpoint that may contain a deleted log, by partition."""
        self._removed: dict[TopicPartition, int] = {}
        """Number of deleted logs whose directories are not renamed yet, by partition."""
        self._closed = False
        self._call_soon: Callable[..., object] | None = None
        self._writer = Worker("penstock-journal")
        self._segment_worker = Worker("penstock-segments")
        self._syncer = Worker("penstock-checkpoint")
        self.partitions: Mapping[TopicPartition, PartitionLog] = MappingProxyType(self._logs)
        self._recovered_entries = 0
        self._clean_offsets = CleanOffsets(self._files, self._root, self._syncer.drain)

    @classmethod
    def open(
        cls,
        directory: Path,
        settings: StorageSettings,
        *,
        clock: Clock,
        config_of: Callable[[str], LogConfig],
        files: Files = MACHINE_FILES,
        randomness: Randomness = SYSTEM_RANDOMNESS,
        replicated: Callable[[TopicPartition], bool] | None = lambda where: False,
    ) -> LogStore:
        """Create or recover the store of a directory. Blocks.

        `replicated` returns whether other replicas have a partition's acknowledged batches. A
        possible loss of such a partition is reported in `lost`, and its owner handles it. Of all
        other partitions, every complete batch is kept; see `recovery`. If `replicated` is None, it
        is unknown which partitions have replicas.

        Raises:
            StoreLocked: another process has the directory open.
            CorruptLog: journal or checkpoint are damaged, and `replicated` is None.
            DiskFull, OSError: the disk is full, or the directory cannot be used.
        """
        root = os.path.abspath(directory)
        make_directories(files, os.path.join(root, JOURNAL_DIRECTORY))
        lock = lock_directory(root, files)
        try:
            counters = Counters()
            parts = StoreParts(
                root=root,
                settings=settings,
                clock=clock,
                config_of=config_of,
                segment_files=SegmentFiles(
                    files,
                    counters,
                    open_files_max=settings.open_files_max,
                    index_cache_bytes=INDEX_CACHE_BYTES,
                ),
                queue=AppendQueue(settings.pending_bytes_max),
                tails=TailCache(settings.tail_cache_bytes),
                changes=Changes(),
                counters=counters,
            )
            store = cls(parts, randomness.uuid, lock, replicated)
            store._recover()
        except BaseException as error:
            files.close(lock)
            if isinstance(error, OSError) and (full := disk_full(error, root)):
                raise full from error
            raise
        return store

    # -- life --------------------------------------------------------------------------------

    def attach(self, call_soon_threadsafe: Callable[..., object]) -> None:
        """Attach the event loop; the store may use threads from now on."""
        self._call_soon = call_soon_threadsafe
        for worker in (self._writer, self._segment_worker, self._syncer):
            worker.attach(call_soon_threadsafe)
        self._maintenance.attach(call_soon_threadsafe)
        self._cleaner.attach(call_soon_threadsafe)

    def close(self) -> None:
        """Commit queued appends, write and sync everything, and record the clean shutdown."""
        if self._closed:
            return
        self._closed = True
        self._maintenance.close()
        self._cleaner.close()
        self._drain()
        for worker in (self._writer, self._segment_worker, self._syncer):
            worker.close()
        self._committer.close()
        if self._parts.queue.failed is None:
            self._committer.commit()
            self._checkpoint_cleanly()
        error = LogDeleted(f"the store {self._root} is closed")
        for log in self._logs.values():
            log.state.closed = log.state.closed or error
        self._journal.close()
        self._parts.segment_files.descriptors.close()
        self._files.close(self._lock)

    def _checkpoint_cleanly(self) -> None:
        failures: list[StorageError | None] = []
        self._checkpointer.start(failures.append)
        if failures == [None]:
            self._checkpointer.close()
        else:
            logger.error("the store was not closed cleanly: %s", failures)

    def _drain(self) -> None:
        workers = self._writer, self._segment_worker, self._syncer
        self._committer.commit()
        while any(worker.outstanding for worker in workers):
            for worker in workers:
                worker.drain()

    def _wait_idle(self) -> None:
        """Wait until no group and no checkpoint is running; queued work stays queued."""
        workers = self._writer, self._segment_worker, self._syncer
        while any(worker.outstanding for worker in workers):
            for worker in workers:
                worker.drain()

    @property
    def lost(self) -> Mapping[TopicPartition, str]:
        """Replicated partitions that may lack synced batches, with the reason.

        A loss is reported after every restart until `LogReplica.set_limbo` is durable. Damage in a
        log's own files is reported while it exists, once the log is loaded.
        """
        lost = {
            where: log.replica.lost for where, log in self._logs.items() if self._replicated(where)
        }
        return {where: reason for where, reason in lost.items() if reason is not None}

    @property
    def damages(self) -> Mapping[TopicPartition, list[str]]:
        """Descriptions of unrepaired damage in loaded logs, by partition."""
        found = {where: log.repair.damages for where, log in self._logs.items() if log.state.loaded}
        return {where: reasons for where, reasons in found.items() if reasons}

    @property
    def set_aside(self) -> list[str]:
        return set_aside(self._files, self._root)

    @property
    def directory(self) -> str:
        return self._root

    @property
    def dirty_ratios(self) -> Mapping[TopicPartition, float]:
        return self._cleaner.dirty_ratios

    def clean_offset(self, tp: TopicPartition) -> int:
        """Return the offset below which no key has two records; 0 if unknown."""
        return self._clean_offsets.of(tp)

    @property
    def uncleanable(self) -> Mapping[TopicPartition, str]:
        """Partitions whose compaction failed and is not retried before the next start, with the
        reason."""
        return self._cleaner.uncleanable

    @property
    def failed(self) -> StorageError | None:
        """Permanent error after a failed sync, which all appends raise; None without one."""
        return self._parts.queue.failed

    # -- appends -----------------------------------------------------------------------------

    def append_each(
        self,
        logs: Sequence[PartitionLog],
        batches: Sequence[memoryview],
        *,
        config: LogConfig,
        now_ms: int,
    ) -> list[AppendResult | None]:
        """Append one batch to each of different logs of one topic, at a fraction of single calls.

        Return the results, in the order of the logs. A result is None if the batch needs
        `PartitionLog.append`, for example because it is invalid, a duplicate, transactional or
        larger than 16 KiB; then nothing was appended to its log. The batches are copied.
        """
        # Imported on first use, because a broker starts without NumPy.
        from penstock.storage.log.wide import append_each

        return append_each([log.state for log in logs], batches, config, now_ms)

    def flush(self, on_durable: OnDurable, requests: int = 1) -> None:
        """Call `on_durable(None)` once everything appended so far is durable by `log.flush.policy`.

        After a failure `on_durable` is called with the error, and the appends since the last
        success are undone. `commit_pending` starts the commit. `requests` is the number of requests
        that `on_durable` answers.
        """
        self._committer.flush(on_durable, requests)

    @property
    def policy(self) -> str:
        """`log.flush.policy`."""
        return self._parts.settings.log_flush_policy

    def commit_pending(self) -> None:
        self._committer.commit()

    def before_failure(self, callback: Callable[[], None]) -> None:
        """Call `callback` before queued appends are undone; it calls `flush` for its own."""
        self._committer.before_failure = callback

    @property
    def kept_producers(self) -> set[int]:
        """Producer ids that never expire; the caller adds and removes ids in this set.

        Nothing expires before the first `housekeeping`.
        """
        return self._maintenance.kept_producers

    @property
    def on_advance(self) -> Callable[[Collection[LogOwner]], None]:
        """Callback that receives the owners whose readable end rose, after `flush` callbacks."""
        return self._committer.on_advance

    @on_advance.setter
    def on_advance(self, callback: Callable[[Collection[LogOwner]], None]) -> None:
        self._committer.on_advance = callback

    # -- partitions --------------------------------------------------------------------------

    def create(self, tp: TopicPartition, *, topic_id: UUID, leader_epoch: int) -> PartitionLog:
        """Create the log of a partition, or return the existing one of this topic id.

        The call syncs nothing. The store's directory is synced before the first append becomes
        durable, and with every checkpoint, which also contains the topic id. If a log of this name
        was deleted just before, the call waits for a checkpoint. Otherwise recovery could take the
        journal entries of the deleted log for those of the new one.

        Raises:
            TopicIdMismatch: a log of another topic id exists; delete it first.
            StorageError: the directory or the checkpoint cannot be written.
        """
        self._check_open()
        log = self._logs.get(tp)
        if log is not None:
            if log.topic_id != topic_id:
                raise TopicIdMismatch(f"{tp} exists with topic id {log.topic_id}, not {topic_id}")
            if leader_epoch > log.leader_epoch:
                log.set_leader_epoch(leader_epoch)
            return log
        while tp in self._removed:
            self._wait_idle()
            self._cleaner.wait_stopped()
        if self._deleted.get(tp, -1) >= self._parts.counters.checkpoints:
            self._checkpoint_now()
        files = self._files
        directory = os.path.join(self._root, directory_name(tp))
        try:
            try:
                files.make_directory(directory, mode=0o755)
            except FileExistsError:
                self._set_aside(tp)
                files.make_directory(directory, mode=0o755)
            path = os.path.join(directory, METADATA_FILE)
            write_file(files, path, encode_partition_metadata(topic_id), sync=False)
        except OSError as error:
            failure = write_error(error, directory, f"cannot create {directory}")
            if isinstance(failure, StorageFailed) and self.failed is None:
                self._parts.queue.fail(failure)
                logger.critical("the log rejects all appends from now on: %s", failure)
            raise failure from error
        self._committer.root_synced = False
        log = self._add(tp, topic_id, RecoveryPoint(0, 0, 0, 0, 0, leader_epoch, 0))
        self._parts.changes.of(log.state)
        return log

    def _add(
        self, tp: TopicPartition, topic_id: UUID, recovery_point: RecoveryPoint
    ) -> PartitionLog:
        log = self._logs[tp] = PartitionLog(self._parts, self._calls, tp, topic_id, recovery_point)
        return log

    def delete(self, tp: TopicPartition) -> None:
        """Delete the log of a partition.

        Its buffers are released when the running writes end. Its directory is renamed after the
        running checkpoint, and removed later. Only the creation of a partition of the same name
        waits for the rename. A crash before the rename restores the partition.
        """
        self._check_open()
        log = self._logs.pop(tp, None)
        if log is None:
            return
        log.state.closed = LogDeleted(f"{tp} was deleted")
        self._parts.queue.forget(log.state)
        done = self._parts.counters.checkpoints
        while self._deleted and self._deleted[oldest := next(iter(self._deleted))] < done:
            del self._deleted[oldest]
        self._deleted.pop(tp, None)
        self._deleted[tp] = done + self._checkpointer.running
        self._removed[tp] = self._removed.get(tp, 0) + 1
        remove = partial(self._remove, log)
        self._writer.submit(_nothing, lambda *_: self._segment_worker.submit(_nothing, remove))

    def _remove(self, log: PartitionLog, *_: object) -> None:
        tp = log.topic_partition
        self._segment_writer.forget(log.state)
        name = deleted_directory_name(tp, self._new_uuid())
        then = partial(self._is_removed, tp)
        self._cleaner.forget(log, partial(self._maintenance.remove_log, log.state, name, then))

    def _is_removed(self, tp: TopicPartition) -> None:
        self._committer.root_synced = False
        self._removed[tp] -= 1
        if not self._removed[tp]:
            del self._removed[tp]

    def _checkpoint_now(self) -> None:
        """Wait for a checkpoint of everything that is committed; raises StorageError."""
        self._wait_idle()
        ended: list[StorageError | None] = []
        self._checkpointer.start(ended.append)
        self._wait_idle()
        if ended != [None]:
            raise (ended and ended[0]) or StorageError("a checkpoint did not end")

    # -- upkeep ------------------------------------------------------------------------------

    @property
    def housekeeping_seconds(self) -> float:
        """Interval of `housekeeping` calls: `log.cleaner.backoff.ms`, between 0.1 and 1 s."""
        return min(1.0, max(0.1, self._parts.settings.log_cleaner_backoff_ms / 1000))

    def housekeeping(self, now_ms: int) -> None:
        """Do a bounded part of retention, expiry, checkpoints, compaction and file removal."""
        if not self._closed:
            self._maintenance.run(now_ms)
            self._cleaner.run(now_ms)

    def sweep(self, tiered: Iterable[TopicPartition]) -> None:
        self._maintenance.sweep(tiered)

    def checkpoint(self, then: Callable[[StorageError | None], None] | None = None) -> None:
        self._checkpointer.start(then)

    def samples(self) -> Iterable[Sample]:
        parts, journal, cleaner = self._parts, self._journal, self._cleaner
        counters, queue = parts.counters, parts.queue
        counters.journal_written_bytes = journal.written_bytes
        counters.journal_syncs = journal.syncs
        counters.compaction_max_dirty_ratio = max(cleaner.dirty_ratios.values(), default=0.0)
        counters.compaction_idle_seconds = cleaner.idle_ms / 1000
        counters.compaction_uncleanable_partitions = len(cleaner.uncleanable)
        counters.failed = int(queue.failed is not None)
        counters.partitions = len(self._logs)
        counters.open_files = len(parts.segment_files.descriptors)
        counters.tail_cache_bytes = parts.tails.size_bytes
        counters.index_cache_bytes = parts.segment_files.indexes.size_bytes
        counters.pending_bytes = queue.pending_bytes
        counters.unwritten_bytes = queue.unwritten_bytes
        counters.journal_files = journal.file_count
        counters.journal_files_in_use = journal.files_in_use
        counters.recovered_entries = self._recovered_entries
        return counters.samples()

    # -- recovery ----------------------------------------------------------------------------

    def _recover(self) -> None:
        checkpoint = self._read_checkpoint()
        journal_directory = os.path.join(self._root, JOURNAL_DIRECTORY)
        replays = Replays(self._files)
        state = read_journal(
            self._files,
            journal_directory,
            checkpoint,
            replays,
            lambda where: not self._replicated(where),
        )
        lost = state.lost is not None or checkpoint.unknown
        if state.lost is not None:
            self._doubt(state.lost)
        self._recovered_entries = state.entries
        settings = self._parts.settings
        self._journal = Journal(
            self._files,
            journal_directory,
            file_bytes=settings.journal_file_bytes,
            files_max=settings.journal_files_max,
            sequence=state.sequence,
            generation=state.generation,
            checksum=state.checksum,
            existing=state.files,
            checkpoint_sequence=checkpoint.sequence,
            bytes_since_checkpoint=state.size_bytes,
        )
        self._wire(checkpoint.sequence)
        whole = not lost and (checkpoint.clean or checkpoint.journaled)
        all_known = self._find_partitions(checkpoint, replays, lost=lost, lazily=whole)
        self._maintenance.find_deleted()
        if not (whole and all_known):
            # A repeated recovery could find less, so save this one now.
            self._checkpoint_now()
        if state.entries:
            logger.info("recovered %d journal entries in %s", state.entries, self._root)
        self._journal.prepare()
        self._checkpointer.save_recovery_points()

    def _doubt(self, reason: CorruptLog) -> None:
        """Report damage of journal or checkpoint, which may affect any log."""
        if self._who_knows is None:
            raise reason
        logger.error("acknowledged batches may be lost: %s", reason)

    def _wire(self, sequence: int) -> None:
        parts, journal = self._parts, self._journal
        self._segment_writer = SegmentWriter(parts, journal, self._segment_worker)
        self._committer = Committer(parts, journal, self._segment_writer, self._writer)
        self._checkpointer = Checkpointer(
            parts, journal, self._segment_writer, self._syncer, self._states, sequence
        )
        self._maintenance = LogMaintenance(
            parts, journal, self._checkpointer, self._syncer, self._logs
        )
        self._cleaner = LogCleaner(
            parts, self._checkpointer, self._syncer, self._logs, self._clean_offsets,
            self._new_uuid, self._maintenance.remove_later,
        )  # fmt: skip
        self._calls = StoreCalls(
            self._segment_writer.write_now, self._checkpointer.save_recovery_points,
            self._wait_idle, self._cleaner.lower_clean_offset, self._committer.write_through,
        )  # fmt: skip
        self._committer.on_written = self._maintenance.journal_grew
        self._committer.make_room = self._make_room

    def _states(self) -> Iterator[LogState]:
        return (log.state for log in self._logs.values())

    def _make_room(self) -> None:
        self._checkpointer.start(self._committer.room_was_made)

    def _read_checkpoint(self) -> Checkpoint:
        found = read_checkpoint(self._files, self._root)
        for error in found.damaged.values():
            logger.error("%s", error)
        names = self._files.names_in(self._root)
        checkpoint = found.checkpoint or Checkpoint(0, False, False, {})
        if found.checkpoint is None and (found.damaged or any(map(parse_directory_name, names))):
            reason = "; ".join(map(str, found.damaged.values())) or "the file is missing"
            self._doubt(CorruptLog(Path(self._root, CHECKPOINT_FILE), 0, reason))
            checkpoint = checkpoint._replace(unknown=True)
        keep_damaged(self._files, found)
        return checkpoint

    def _find_partitions(
        self, checkpoint: Checkpoint, replays: Replays, *, lost: bool, lazily: bool
    ) -> bool:
        """Add all logs of the directory; load logs whose state is not completely known.

        Without `lazily`, all logs are loaded. Returns False if the effect of a deletion may be
        lost: the journal has rows of a missing log, or a log that is in neither journal nor
        checkpoint has records.
        """
        stray_records = False
        directories = Directories(self._files, self._root, checkpoint, replays)
        found, strays = directories.find()
        for where in strays:
            self._set_aside(where)
        if directories.made or strays:
            self._committer.root_synced = False
        for where, topic_id, point, replay, known in found:
            if lost and self._replicated(where):
                point = point.with_standing(point.standing._replace(lost=True))
            exact = EXACT if known and checkpoint.journaled and not lost else 0
            flags = point.flags & ~EXACT | exact
            log = self._add(where, topic_id, point._replace(flags=flags)).state
            unknown = not known
            known = known and not point.flags & HAS_TRANSACTIONS
            if lost:
                replay = self._in_doubt(log, replay, replays, unknown=checkpoint.unknown)
            if replay is not None:
                log.recovers(replay)
                if replay.lowest_end is not None:
                    log.tail.cut_sequence = self._journal.sequence
                self._checkpointer.recovered.append(log)
                known = known and replay.simple
            if not (lazily and known):
                log.load()
            if lost and not self._replicated(where):
                continue_log(log, point, unknown=checkpoint.unknown)
            stray_records = stray_records or (unknown and log.size_bytes > 0)
        return len(self._checkpointer.recovered) == len(replays.logs) and not stray_records

    def _in_doubt(
        self, log: LogState, replay: LogReplay | None, replays: Replays, *, unknown: bool
    ) -> LogReplay | None:
        """Return the journal rows to replay into a log that may lack acknowledged batches.

        If no other replica has the log, all complete batches in its files are kept. If the
        checkpoint is lost (`unknown`), only rows that append after the end of the files are
        replayed.
        """
        if self._replicated(log.topic_partition) and not unknown:
            return replay
        replay = replay or replays.nothing()
        replay.least_end = last_whole(self._files, log.directory)
        if unknown:
            replay.keep_above(replay.least_end)
        return replay

    def _set_aside(self, tp: TopicPartition) -> None:
        """Rename the directory of an unknown topic; remove it later if it has no segments."""
        source = os.path.join(self._root, directory_name(tp))
        try:
            entries = self._files.names_in(source)
        except NotADirectoryError:
            return
        name = stray_directory_name(tp, self._new_uuid())
        if not any(entry.endswith(".log") for entry in entries):
            name = deleted_directory_name(tp, self._new_uuid())
        logger.warning("%s does not belong to a known topic: renamed to %s", source, name)
        self._files.rename(source, os.path.join(self._root, name))

    def _check_open(self) -> None:
        if self._closed:
            raise LogDeleted(f"the store {self._root} is closed")


def _nothing() -> None:
    """Do nothing: an empty job, whose callback runs once the worker has ended all earlier jobs."""


def lock_directory(root: str, files: Files) -> int:
    """Lock a store's directory; return the lock file, whose closing releases the lock.

    Raises:
        StoreLocked: another process uses the directory.
    """
    path = os.path.join(root, LOCK_FILE)
    try:
        return files.lock(path)
    except BlockingIOError as error:
        raise StoreLocked(f"{path} is locked: another process uses the directory") from error
