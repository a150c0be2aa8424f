"""A log against a plain list: appends, reads, rolls, retention, crashes in any order."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.records import split_batches
from penstock.storage import LogConfig
from tests.faulty_files import FaultyFiles
from tests.storage.batches import FakeClock, Harness, batch, read_all

Stored = tuple[int, int, bytes]
"""Base offset, next offset, and the batch from its checksum on."""


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
        self.sequences = [0, 0]
        self.accepted_sequences = [0, 0]
        self.starts = [0, 0]

    def end(self, partition: int) -> int:
        batches = self.accepted[partition] or self.durable[partition]
        return batches[-1][1] if batches else 0

    @rule(
        partition=st.integers(0, 1),
        count=st.integers(1, 4),
        size=st.sampled_from([30, 90, 180]),
        fill=st.integers(0, 255),
        idempotent=st.booleans(),
    )
    def append(self, partition: int, count: int, size: int, fill: int, idempotent: bool) -> None:
        now = self.harness.clock.ms
        if idempotent:
            sequence = self.accepted_sequences[partition]
            data = batch(
                count, size=size, fill=fill, timestamp=now,
                producer_id=77, epoch=0, sequence=sequence,
            )  # fmt: skip
            self.accepted_sequences[partition] += count
        else:
            data = batch(count, size=size, fill=fill, timestamp=now)
        base = self.harness.append(data, partition)
        assert base == self.end(partition)
        self.accepted[partition].append((base, base + count, bytes(data)[17:]))

    @rule()
    def commit(self) -> None:
        assert self.harness.commit() is None
        self.write_model()

    def write_model(self) -> None:
        for partition in range(2):
            self.durable[partition] += self.accepted[partition]
            self.accepted[partition] = []
        self.sequences = list(self.accepted_sequences)

    def forget_accepted(self) -> None:
        self.accepted = [[], []]
        self.accepted_sequences = list(self.sequences)

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
            self.harness.log(partition).write_segments()

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

    @precondition(lambda self: self.sequences[0] > 0 and not any(self.accepted))
    @rule()
    def repeat_the_last_of_the_producer(self) -> None:
        log = self.harness.log(0)
        for entry in log.producers():
            assert entry.last_sequence == self.sequences[0] - 1

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "harness"):
            return
        for partition in range(2):
            log = self.harness.log(partition)
            durable = self.durable[partition]
            assert log.damage is None
            assert log.durable_offset == (durable[-1][1] if durable else 0)
            assert log.log_end_offset == self.end(partition)
            assert log.log_start_offset >= self.starts[partition]
            self.starts[partition] = log.log_start_offset
            data = read_all(log, max_bytes=700)
            found = []
            position = 0
            for header in split_batches(data):
                after = position + header.size_bytes
                batch_bytes = data[position + 17 : after]
                found.append((header.base_offset, header.next_offset, batch_bytes))
                position = after
            expected = [one for one in durable if one[1] > log.log_start_offset]
            assert found == expected
            self.epochs_never_fall(data)

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
