"""A store over a disk in memory, what is done to it, and what a crash at each call may leave.

Every step notes, of each partition that it changes, what the log is then and how many calls had
been made before; and each commit, how many had been made when it was acknowledged. From both
follows what may be there after a crash at a call: what was acknowledged last, or anything that was
asked for since.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from tests.storage.batches import FakeClock, Harness, batch, read_all, stamped

from penstock.base.ids import TopicPartition
from penstock.records import split_batches
from penstock.records.header import TRANSACTIONAL_FLAG
from penstock.records.transactions import UNGUARDED, Marker
from penstock.storage import LogConfig, PartitionLog, StorageError
from penstock.storage.files.producers import BATCHES_VERSION, SnapshotEntry, encode_snapshot
from penstock.storage.log.tiering import SegmentCopy
from sim.disk import Disk
from sim.storage.archive import ROOT as ARCHIVE
from sim.storage.archive import Archive
from sim.storage.keys import keyed_batch
from sim.storage.logs import PRODUCER, Log, Violation, next_offset
from sim.storage.recording import Point, RecordedDisk

ROOT = Path("/data/log")
TOPIC = "orders"
CONFIG = LogConfig(
    segment_bytes=500,
    index_interval_bytes=100,
    retention_ms=-1,
    file_delete_delay_ms=0,
    record_validation="headers",
)


class Noted(NamedTuple):
    """What a partition was asked to be, after so many calls; None for absent."""

    calls: int
    log: Log | None


class Allowed(NamedTuple):
    """What a partition may be after a crash: the first of these was acknowledged."""

    logs: tuple[Log | None, ...]


class Bounds(NamedTuple):
    """How a store is set up."""

    policy: str = "group"
    journal_file_bytes: int = 1 << 14
    journal_files_max: int = 2
    config: LogConfig = CONFIG
    journal_append_bytes_max: int = 1 << 18


class World:
    """See the module's text. Partitions are numbers; a partition is made by its first step."""

    def __init__(
        self, seed: int = 0, bounds: Bounds | None = None, begins: Disk | None = None
    ) -> None:
        self.dice = random.Random(seed)
        self.bounds = bounds or Bounds()
        self.disk = RecordedDisk(begins)
        self.clock = FakeClock()
        self.notes: dict[int, list[Noted]] = {}
        self.acknowledged: dict[int, list[tuple[int, int]]] = {}
        """Of each partition: after so many calls, the note that was acknowledged."""
        self.archive: Archive | None = None
        self.archived: list[tuple[int, str, bytes]] = []
        """Objects: how many calls had been made when one was there, its path, what is in it."""
        self.falling = False
        """Whether later batches have earlier timestamps."""
        self._fill = 0
        self._topics = 0
        self.harness = open_store(self.disk, self.bounds, clock=self.clock)

    # -- what may be there -------------------------------------------------------------------

    def allowed(self, calls: int) -> dict[int, Allowed]:
        """What each partition may be, if the power is lost after so many calls."""
        found = {}
        for partition, notes in self.notes.items():
            acknowledged = self.acknowledged.get(partition, [])
            first = max([note for at, note in acknowledged if at <= calls], default=0)
            logs = [note.log for note in notes[first + 1 :] if note.calls < calls]
            found[partition] = Allowed(tuple(dict.fromkeys([notes[first].log, *logs])))
        return found

    @property
    def points(self) -> list[Point]:
        return self.disk.points

    def now(self, partition: int) -> Log:
        """What a partition is; it is made if there is none."""
        notes = self.notes.setdefault(partition, [Noted(0, None)])
        log = notes[-1].log
        if log is None:
            self._topics += 1
            log = Log(UUID(int=self._topics))
            self.note(partition, log)
            where = TopicPartition(TOPIC, partition)
            self.harness.store.create(where, topic_id=log.topic_id, leader_epoch=0)
        return log

    def note(self, partition: int, log: Log | None, calls: int | None = None) -> None:
        notes = self.notes[partition]
        notes.append(Noted(self.disk.count if calls is None else calls, log))

    def acknowledge(self, partitions: list[int] | None = None) -> None:
        """What was asked for is there from now on."""
        for partition in self.notes if partitions is None else partitions:
            note = len(self.notes[partition]) - 1
            log = self.notes[partition][note].log
            # One that was only made may be forgotten: its first append makes it again.
            if log is None or log != Log(log.topic_id):
                self.acknowledged.setdefault(partition, []).append((self.disk.count, note))

    def log(self, partition: int) -> PartitionLog:
        return self.harness.store.partitions[TopicPartition(TOPIC, partition)]

    # -- steps -------------------------------------------------------------------------------

    def append(
        self, partition: int = 0, *, count: int = 2, size: int = 60, producer: bool = True,
        commit: bool = True,
    ) -> None:  # fmt: skip
        """As its leader."""
        held = self.now(partition)
        log = self.log(partition)
        data = self._batch(count, size, producer, log)
        log.append(data, now_ms=self.clock.ms)
        self.note(partition, held._replace(batches=(*held.batches, bytes(data))))
        if commit:
            self.commit()

    def lead(self, partition: int = 0) -> None:
        """Begin a leader epoch."""
        self.now(partition)
        log = self.log(partition)
        log.set_leader_epoch(log.leader_epoch + 1)

    def replicate(
        self, partition: int = 0, *, counts: tuple[int, ...] = (2,), risen: int = 0, size: int = 60,
        producer: bool = True, commit: bool = True,
    ) -> None:  # fmt: skip
        """Batches as a leader stamped them, in one call."""
        held = self.now(partition)
        log = self.log(partition)
        epoch = max(log.leader_epoch, 0)
        end, run = held.end, list[bytes]()
        for place, count in enumerate(counts):
            epoch += risen * (place == 0)
            self._fill += 1
            known = {"producer_id": PRODUCER, "epoch": 0, "sequence": end} if producer else {}
            stamp = self._stamp()
            run.append(
                bytes(stamped(count, end, epoch, fill=self._fill, size=size, timestamp=stamp,
                              **known))
            )  # fmt: skip
            end += count
        log.replica.append(memoryview(b"".join(run)), now_ms=self.clock.ms)
        for appended in run:
            held = held._replace(batches=(*held.batches, appended))
            self.note(partition, held)
        if commit:
            self.commit()

    def _stamp(self) -> int:
        return self.clock.ms + (-self._fill if self.falling else self._fill)

    def _batch(self, count: int, size: int, producer: bool, log: PartitionLog) -> memoryview:
        self._fill += 1
        known = {}
        if producer:
            sequence = max(
                [
                    producer.last_sequence
                    for producer in log.producers()
                    if producer.producer_id == PRODUCER
                ],
                default=-1,
            )
            known = {"producer_id": PRODUCER, "epoch": 0, "sequence": sequence + 1}
        stamp = self._stamp()
        return batch(count, fill=self._fill, size=size, timestamp=stamp, **known)

    def transact(self, partition: int, producer_id: int, *, commit: bool = True) -> None:
        """A batch of a transaction."""
        held = self.now(partition)
        log = self.log(partition)
        self._fill += 1
        last = {producer.producer_id: producer.last_sequence for producer in log.producers()}
        data = batch(
            2, fill=self._fill, timestamp=self._stamp(), producer_id=producer_id,
            epoch=0, sequence=last.get(producer_id, -1) + 1, attributes=TRANSACTIONAL_FLAG,
        )  # fmt: skip
        log.append(data, now_ms=self.clock.ms, guard=UNGUARDED)
        self.note(partition, held._replace(batches=(*held.batches, bytes(data))))
        if commit:
            self.commit()

    def end_transaction(
        self, partition: int, producer_id: int, *, commits: bool, commit: bool = True
    ) -> None:
        held = self.now(partition)
        log = self.log(partition)
        placed = log.transactions.append_marker(
            Marker(producer_id, 0, 1, commits), now_ms=self.clock.ms
        )
        if placed.duplicate:
            return
        read = log.read(placed.base_offset, max_bytes=1, end_offset=1 << 62, appended=True)
        marker = b"".join(bytes(buffer) for buffer in read.buffers)
        self.note(partition, held._replace(batches=(*held.batches, marker)))
        if commit:
            self.commit()

    def put(
        self, partition: int, keys: Sequence[int], *, value: bytes | None = b"value",
        commit: bool = True,
    ) -> None:  # fmt: skip
        """Records with keys."""
        held = self.now(partition)
        self._fill += 1
        value = value and value + b" %d" % self._fill
        data = keyed_batch(keys, value, now_ms=self.clock.ms)
        self.log(partition).append(data, now_ms=self.clock.ms)
        self.note(partition, held._replace(batches=(*held.batches, bytes(data))))
        if commit:
            self.commit()

    def compact(self, partition: int) -> None:
        """All that may be compacted; what each of the segments leaves is noted when it is there."""
        self.roll(partition)
        self.harness.store._parts.changes.of(self.log(partition).state)
        self.checkpoint()
        cleaner = self.harness.store._cleaner
        worker, ended = cleaner._slots[0].worker, list[object]()
        cleaner.attach(ended.append)
        self.harness.store.housekeeping(self.clock.ms)
        while worker.outstanding:
            while not worker._results:
                worker._finished.wait()
                worker._finished.clear()
            calls, more = self.disk.count, worker.outstanding
            worker._collect_one()
            while worker.outstanding and not worker._results and more:
                worker._finished.wait()
                worker._finished.clear()
            held = self.now(partition)
            data = read_all(self.log(partition), max_bytes=1 << 20)
            batches, at = list[bytes](), 0
            for header in split_batches(data):
                batches.append(data[at : at + header.size_bytes])
                at += header.size_bytes
            self.note(partition, held._replace(batches=tuple(batches)), calls)
            self.acknowledge([partition])
        worker.close()

    def truncate(self, partition: int, offset: int, *, commit: bool = True) -> None:
        held = self.now(partition)
        kept = tuple(batch for batch in held.batches if next_offset(batch) <= offset)
        calls = self.disk.count
        end = self.log(partition).replica.truncate(offset, floor=0)
        held = held._replace(batches=kept)
        if held.end != end:
            raise AssertionError(f"cut to {end}, not {held.end}")
        self.note(partition, held, calls)
        if commit:
            self.commit()

    def begin(self, partition: int, start: int, *, told: bool, commit: bool = True) -> None:
        """Anew, with what a producer had sent below if it is `told`."""
        held = self.now(partition)
        data = b""
        if told:
            entry = SnapshotEntry(PRODUCER, 0, start - 1, start - 1, 0, self.clock.ms)
            data = encode_snapshot([entry], BATCHES_VERSION)
        calls = self.disk.count
        self.log(partition).replica.start_at(start, producers=data, floor=0)
        carried = start - 1 if told else -1
        self.note(partition, held._replace(batches=(), start=start, carried=carried), calls)
        if commit:
            self.commit()

    def promise(self, partition: int, step: int = 1, *, commit: bool = True) -> None:
        held = self.now(partition)
        held = held._replace(promised=held.promised + step)
        self.log(partition).replica.promise(held.promised)
        self.note(partition, held)
        if commit:
            self.commit()

    def limbo(self, partition: int, epoch: int, *, commit: bool = True) -> None:
        held = self.now(partition)._replace(limbo=epoch)
        self.log(partition).replica.set_limbo(epoch)
        self.note(partition, held)
        if commit:
            self.commit()

    def delete_records(self, partition: int, start: int) -> None:
        """Durable at once, of what was durable before."""
        held, calls = self.now(partition), self.disk.count
        if self.log(partition).delete_records(start) == held.start:
            return
        self.note(partition, held._replace(start=start), calls)
        self.acknowledge([partition])

    def upkeep(self, later_ms: int = 10) -> None:
        """Housekeeping: retention moves starts, and is durable at once."""
        self.clock.ms += later_ms
        calls = self.disk.count
        self.harness.store.housekeeping(self.clock.ms)
        for partition, notes in self.notes.items():
            held = notes[-1].log
            if held is not None and (start := self.log(partition).log_start_offset) > held.start:
                tiered = self.log(partition).state.tiered_offset
                if self.archived and start > tiered:
                    raise Violation(f"{partition} begins at {start}, the archive ends at {tiered}")
                self.note(partition, held._replace(start=start), calls)

    def upload(self, partition: int) -> None:
        """Copy closed segments to the archive, one after the other, and say so when each is there.

        The row that says so is the control plane's; here it is a note.
        """
        log = self.log(partition)
        for segment in log.tiering.closed_segments(log.state.tiered_offset):
            copy = SegmentCopy(
                log.tiering.files, segment.path, position=0, end=segment.size_bytes,
                base_offset=segment.base_offset, next_offset=segment.next_offset,
                interval_bytes=CONFIG.index_interval_bytes,
            )  # fmt: skip
            pieces = []
            while (piece := copy.piece()) is not None:
                pieces.append(bytes(piece))
            copy.close()
            key = f"{partition}-{segment.base_offset}"
            self.archive = self.archive or Archive(self.disk)
            self.archive.store(key, pieces)
            self.archived.append((self.disk.count, str(ARCHIVE / key), b"".join(pieces)))
            log.state.tiered_offset = segment.next_offset

    def archive_at(self, calls: int) -> dict[str, bytes]:
        """Objects that were there after so many calls, by their paths."""
        return {path.lstrip("/"): data for at, path, data in self.archived if at <= calls}

    def delete(self, partition: int) -> None:
        self.now(partition)
        self.note(partition, None)
        self.harness.store.delete(TopicPartition(TOPIC, partition))

    def commit(self) -> None:
        error = self.harness.commit()
        if error is not None:
            raise AssertionError(f"a commit failed: {error}")
        if self.bounds.policy == "group":
            self.acknowledge()

    def checkpoint(self) -> None:
        """Where nothing waits, all that was asked for is there after it."""
        ended: list[StorageError | None] = []
        self.harness.store.checkpoint(ended.append)
        if ended != [None]:
            raise AssertionError(f"a checkpoint ended with {ended}")
        if not self.harness.store._parts.queue.pending:
            self.acknowledge()

    def write(self, partition: int) -> None:
        self.now(partition)
        self.log(partition).state.write_segments()

    def roll(self, partition: int) -> None:
        self.now(partition)
        self.log(partition).state.roll()

    def restart(self, *, clean: bool) -> None:
        """Stop and start; what was committed is there."""
        self.commit()
        if clean:
            self.harness.reopen()
        else:
            self.harness.crash()
        self.acknowledge()


def open_store(disk: Disk, bounds: Bounds, *, clock: FakeClock | None = None) -> Harness:
    """A store over a disk."""
    return Harness(
        ROOT,
        files=disk,
        config=bounds.config,
        clock=clock,
        journal_file_bytes=bounds.journal_file_bytes,
        journal_files_max=bounds.journal_files_max,
        journal_append_bytes_max=bounds.journal_append_bytes_max,
        log_retention_check_interval_ms=1,
        log_cleaner_backoff_ms=0,
        log_flush_policy=bounds.policy,
        tail_cache_bytes=1 << 16,
    )


Step = Callable[[World], None]


def base_offsets(log: Log) -> list[int]:
    return [split_batches(batch)[0].base_offset for batch in log.batches]
