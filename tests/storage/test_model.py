"""A log against a plain list: appends of leaders and replicas, cuts, promises, reads, rolls,
retention, crashes in any order."""

from __future__ import annotations

import shutil
import tempfile
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.base.errors import BugError
from penstock.records import split_batches, stamp
from penstock.storage import LogConfig, PartitionLog
from tests.faulty_files import FaultyFiles
from tests.storage.batches import FakeClock, Harness, batch, read_all


class Stored(NamedTuple):
    """A batch: its offsets, what it is from its checksum on, and the producer's last sequence."""

    base_offset: int
    next_offset: int
    content: bytes
    last_sequence: int | None


class LogMachine(RuleBasedStateMachine):
    """Two partitions; the model knows what was committed and what only accepted."""

    @initialize(
        segment_bytes=st.sampled_from([250, 600, 1 << 20]),
        interval=st.sampled_from([0, 150, 4096]),
        tail=st.sampled_from([1 << 16, 1 << 20]),
        policy=st.sampled_from(["group", "group", "interval", "os"]),
    )
    def start(self, segment_bytes: int, interval: int, tail: int, policy: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="storage-model-"))
        self.files = FaultyFiles()
        self.policy = policy
        self.harness = Harness(
            self.directory,
            config=LogConfig(
                segment_bytes=segment_bytes,
                index_interval_bytes=interval,
                retention_ms=5000,
                segment_ms=1 << 40,
                file_delete_delay_ms=0,
            ),
            clock=FakeClock(),
            files=self.files,
            tail_cache_bytes=tail,
            journal_file_bytes=1 << 14,
            journal_files_max=3,
            log_retention_check_interval_ms=1,
            log_flush_policy=policy,
        )
        self.durable: list[list[Stored]] = [[], []]
        self.accepted: list[list[Stored]] = [[], []]
        self.starts = [0, 0]
        self.durable_standings = [(-1, -1), (-1, -1)]
        self.standings = [(-1, -1), (-1, -1)]

    def end(self, partition: int) -> int:
        batches = self.accepted[partition]
        return batches[-1].next_offset if batches else 0

    def last_sequence(self, partition: int) -> int:
        known = [append.last_sequence for append in self.accepted[partition]]
        return next((sequence for sequence in reversed(known) if sequence is not None), -1)

    @rule(
        partition=st.integers(0, 1),
        count=st.integers(1, 4),
        size=st.sampled_from([30, 90, 180]),
        fill=st.integers(0, 255),
        idempotent=st.booleans(),
    )
    def append(self, partition: int, count: int, size: int, fill: int, idempotent: bool) -> None:
        data, last = self.batch(partition, count, size, fill, idempotent)
        base = self.harness.append(data, partition)
        assert base == self.end(partition)
        self.accepted[partition].append(Stored(base, base + count, bytes(data)[17:], last))

    def batch(
        self, partition: int, count: int, size: int, fill: int, idempotent: bool
    ) -> tuple[memoryview, int | None]:
        now = self.harness.clock.ms
        if not idempotent:
            return batch(count, size=size, fill=fill, timestamp=now), None
        sequence = self.last_sequence(partition) + 1
        data = batch(
            count, size=size, fill=fill, timestamp=now,
            producer_id=77, epoch=0, sequence=sequence,
        )  # fmt: skip
        return data, sequence + count - 1

    @precondition(lambda self: self.policy == "group")
    @rule(
        partition=st.integers(0, 1),
        counts=st.lists(st.integers(1, 4), min_size=1, max_size=3),
        risen=st.integers(0, 2),
        size=st.sampled_from([30, 90, 180]),
        fill=st.integers(0, 255),
        idempotent=st.booleans(),
    )
    def append_replica(
        self,
        partition: int,
        counts: list[int],
        risen: int,
        size: int,
        fill: int,
        idempotent: bool,
    ) -> None:
        log = self.harness.log(partition)
        epoch = max(log.leader_epoch, 0)
        run = b""
        for place, count in enumerate(counts):
            data, last = self.batch(partition, count, size, fill + place, idempotent)
            base = self.end(partition)
            stamp(data, 0, base, len(data) - 12, epoch + risen * (place > 0))
            run += bytes(data)
            self.accepted[partition].append(Stored(base, base + count, bytes(data)[17:], last))
        assert log.replica.append(memoryview(run), now_ms=1) == self.end(partition)

    @precondition(lambda self: self.policy == "group")
    @rule(partition=st.integers(0, 1), share=st.floats(0, 1))
    def truncate(self, partition: int, share: float) -> None:
        log = self.harness.log(partition)
        start = log.log_start_offset
        offset = start + int((self.end(partition) - start) * share)
        kept = [append for append in self.accepted[partition] if append.next_offset <= offset]
        end = kept[-1].next_offset if kept else 0
        if end < start:
            with pytest.raises(BugError):
                log.replica.truncate(offset, floor=0)
            return
        assert log.replica.truncate(offset, floor=end) == end
        self.accepted[partition] = kept

    @precondition(lambda self: self.policy == "group")
    @rule(partition=st.integers(0, 1), step=st.integers(0, 2), limbo=st.integers(-1, 5))
    def promise(self, partition: int, step: int, limbo: int) -> None:
        log = self.harness.log(partition)
        log.replica.promise(log.replica.promised + step)
        log.replica.set_limbo(limbo)
        self.standings[partition] = (log.replica.promised, limbo)

    @rule()
    def commit(self) -> None:
        assert self.harness.commit() is None
        self.write_model()

    def write_model(self) -> None:
        self.durable = [list(batches) for batches in self.accepted]
        self.durable_standings = list(self.standings)

    def forget_accepted(self) -> None:
        self.accepted = [list(batches) for batches in self.durable]
        self.standings = list(self.durable_standings)

    @rule(room=st.integers(0, 5000))
    def commit_with_a_full_disk(self, room: int) -> None:
        self.files.room = room
        error = self.harness.commit()
        self.files.room = None
        if error is None:
            self.write_model()
        else:
            self.forget_accepted()
            assert self.harness.store.failed is None

    @rule()
    def crash(self) -> None:
        self.harness.crash()
        self.forget_accepted()

    @rule()
    def reopen(self) -> None:
        self.harness.reopen()
        self.write_model()

    @rule()
    def checkpoint(self) -> None:
        self.harness.store.checkpoint()

    @rule(partition=st.integers(0, 1))
    def write_segments(self, partition: int) -> None:
        if self.policy != "os":
            self.harness.log(partition).state.write_segments()

    @rule(partition=st.integers(0, 1))
    def new_epoch(self, partition: int) -> None:
        log = self.harness.log(partition)
        log.set_leader_epoch(log.leader_epoch + 1)

    @rule(step=st.integers(0, 4000))
    def time_passes(self, step: int) -> None:
        self.harness.clock.ms += step
        self.harness.store.housekeeping(self.harness.clock.ms)

    @rule(partition=st.integers(0, 1), share=st.floats(0, 1))
    def delete_records(self, partition: int, share: float) -> None:
        log = self.harness.log(partition)
        start, end = log.log_start_offset, log.durable_offset
        assert log.delete_records(start + int((end - start) * share)) >= start

    @invariant()
    def remembers_the_producer(self) -> None:
        if not hasattr(self, "harness"):
            return
        for partition in range(2):
            for entry in self.harness.log(partition).producers():
                assert entry.last_sequence == self.last_sequence(partition)

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "harness"):
            return
        for partition in range(2):
            log = self.harness.log(partition)
            durable, accepted = self.durable[partition], self.accepted[partition]
            # While a cut waits, what will be cut can be read no more.
            both = zip(durable, accepted, strict=False)
            readable = [append for append, _ in takewhile(lambda pair: pair[0] == pair[1], both)]
            assert log.state.damage is None
            assert log.durable_offset == (readable[-1].next_offset if readable else 0)
            assert log.log_end_offset == self.end(partition)
            assert (log.replica.promised, log.replica.limbo) == self.standings[partition]
            assert log.log_start_offset >= self.starts[partition]
            self.starts[partition] = log.log_start_offset
            data = read_all(log, max_bytes=700)
            found = []
            position = 0
            for header in split_batches(data):
                after = position + header.size_bytes
                found.append((header.base_offset, header.next_offset, data[position + 17 : after]))
                position = after
            expected = [
                append[:3] for append in readable if append.next_offset > log.log_start_offset
            ]
            assert found == expected
            self.epochs_never_fall(data)
            self.epochs_are_those_of_the_records(log, data)

    def epochs_are_those_of_the_records(self, log: PartitionLog, data: bytes) -> None:
        for header in split_batches(data):
            assert log.latest_epoch_at(header.last_offset) == header.partition_leader_epoch

    def epochs_never_fall(self, data: bytes) -> None:
        epochs = [header.partition_leader_epoch for header in split_batches(data)]
        assert epochs == sorted(epochs)

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.store.close()
            shutil.rmtree(self.directory)


LogMachine.TestCase.settings = settings(
    max_examples=30,
    stateful_step_count=25,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.target],
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLogMachine = LogMachine.TestCase
