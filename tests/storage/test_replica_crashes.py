"""Power lost between any two file calls of a replica: what is found is what some turn committed.

A script of appends, cuts, promises, commits, checkpoints and restarts runs over files that are
recorded. What every commit made of the logs is noted with the calls before and after it: a crash at
a call finds what the last commit before it left, or what the one under way is about to. Never
anything else, for whatever part of the unsynced bytes and names survives; and finding it changes
nothing.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.records import split_batches
from penstock.storage import LogConfig
from penstock.storage.files.producers import BATCHES_VERSION, SnapshotEntry, encode_snapshot
from tests.faulty_files import FaultyFiles
from tests.storage.batches import Harness, abandon, offsets, read_all, stamped

PARTITIONS = 3
"""The last one gets promises, and never a record."""
STEPS = 60
PRODUCER = 7


class Replica(NamedTuple):
    """Durable state of a replica. `epoch` is the script's: the epoch of its appends."""

    batches: tuple[bytes, ...] = ()
    start: int = 0
    promised: int = -1
    limbo: int = -1
    epoch: int = 1
    carried: int = -1
    """The last sequence of the producer that it was told of when it began."""

    @property
    def end(self) -> int:
        return next_offset(self.batches[-1]) if self.batches else self.start

    @property
    def held(self) -> tuple[object, ...]:
        """Return the observable part of the state."""
        batches = tuple(batch for batch in self.batches if next_offset(batch) > self.start)
        return batches, self.start, self.end, self.promised, self.limbo


def next_offset(batch: bytes) -> int:
    return split_batches(batch)[0].next_offset


def last_sequence(batches: Sequence[bytes]) -> int:
    headers = [split_batches(batch)[0] for batch in batches]
    return max(
        [header.last_sequence for header in headers if header.producer_id == PRODUCER], default=-1
    )


State = tuple[Replica, ...]


class Commit(NamedTuple):
    """State of the disk from call `before` on, at the latest after call `after`."""

    before: int
    after: int
    state: State


def opened(directory: Path, files: FaultyFiles) -> Harness:
    return Harness(
        directory,
        files=files,
        config=LogConfig(
            segment_bytes=500, index_interval_bytes=100, retention_ms=-1, file_delete_delay_ms=0
        ),
        journal_file_bytes=1 << 14,
        journal_files_max=2,
        log_retention_check_interval_ms=1,
    )


class Script:
    """Random run over a directory."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.files = FaultyFiles(root=directory)
        self.harness = opened(directory, self.files)
        self.state: State = (Replica(),) * PARTITIONS
        self.commits = [Commit(0, 0, self.state)]
        self.fill = 0

    def run(self) -> None:
        for _ in range(STEPS):
            step = self.dice.choices(
                [
                    self.append,
                    self.cut,
                    self.begin,
                    self.promise,
                    self.commit,
                    self.checkpoint,
                    self.write,
                    self.restart,
                    self.delete_records,
                    self.upkeep,
                ],
                [16, 6, 2, 6, 12, 2, 2, 2, 1, 1],
            )[0]
            step()
        self.commit()
        abandon(self.harness.store)

    def put(self, partition: int, replica: Replica) -> None:
        self.state = (*self.state[:partition], replica, *self.state[partition + 1 :])

    def promise(self) -> None:
        partition = self.dice.randrange(PARTITIONS)
        replica, log = self.state[partition], self.harness.log(partition)
        if self.dice.random() < 0.5:
            replica = replica._replace(promised=replica.promised + self.dice.randint(0, 2))
            log.replica.promise(replica.promised)
        else:
            replica = replica._replace(limbo=self.dice.randint(-1, 9))
            log.replica.set_limbo(replica.limbo)
        self.put(partition, replica)

    def append(self) -> None:
        partition = self.dice.randrange(PARTITIONS - 1)
        replica = self.state[partition]
        end, epoch, run = replica.end, replica.epoch, list[bytes]()
        for _ in range(self.dice.randint(1, 3)):
            epoch += self.dice.random() < 0.2
            count = self.dice.randint(1, 3)
            self.fill += 1
            known = {"producer_id": PRODUCER, "epoch": 0, "sequence": end}
            data = stamped(
                count, end, epoch, fill=self.fill, size=self.dice.choice([30, 90, 200]),
                **(known if self.dice.random() < 0.5 else {}),
            )  # fmt: skip
            run.append(bytes(data))
            end += count
        log = self.harness.log(partition)
        now_ms = self.harness.clock.ms
        assert log.replica.append(memoryview(b"".join(run)), now_ms=now_ms) == end
        self.put(partition, replica._replace(batches=(*replica.batches, *run), epoch=epoch))

    def cut(self) -> None:
        partition = self.dice.randrange(PARTITIONS - 1)
        replica = self.state[partition]
        offset = self.dice.randint(0, replica.end)
        kept = [batch for batch in replica.batches if next_offset(batch) <= offset]
        left = replica._replace(batches=tuple(kept))
        if (next_offset(kept[-1]) if kept else 0) < replica.start:
            return
        assert self.harness.log(partition).replica.truncate(offset, floor=0) == left.end
        self.put(partition, left)

    def begin(self) -> None:
        """Restart the log at its end or behind it, with a producer's earlier batches."""
        partition = self.dice.randrange(PARTITIONS - 1)
        replica = self.state[partition]
        start = replica.end + self.dice.randint(0, 3)
        data = b""
        if sent := self.dice.choice([0, 5]):
            entry = SnapshotEntry(PRODUCER, 0, start - 1, start - 1, 0, self.harness.clock.ms)
            data = encode_snapshot([entry], BATCHES_VERSION)
        self.harness.log(partition).replica.start_at(start, producers=data, floor=0)
        self.put(
            partition,
            replica._replace(batches=(), start=start, carried=start - 1 if sent else -1),
        )

    def delete_records(self) -> None:
        """Durable at once, by the points of the last checkpoint."""
        partition = self.dice.randrange(PARTITIONS - 1)
        log = self.harness.log(partition)
        start = self.dice.randint(log.log_start_offset, log.durable_offset)
        before = len(self.files.operations)
        assert log.delete_records(start) == start
        if start == self.state[partition].start:
            return
        self.put(partition, self.state[partition]._replace(start=start))
        durable = list(self.commits[-1].state)
        durable[partition] = durable[partition]._replace(start=start)
        self.commits.append(Commit(before, len(self.files.operations), tuple(durable)))

    def upkeep(self) -> None:
        self.harness.clock.ms += 10
        self.harness.store.housekeeping(self.harness.clock.ms)

    def commit(self) -> None:
        before = len(self.files.operations)
        assert self.harness.commit() is None
        self.commits.append(Commit(before, len(self.files.operations), self.state))

    def checkpoint(self) -> None:
        self.harness.store.checkpoint()

    def write(self) -> None:
        self.harness.log(self.dice.randrange(PARTITIONS)).state.write_segments()

    def restart(self) -> None:
        self.commit()
        if self.dice.random() < 0.5:
            self.harness.reopen()
        else:
            self.harness.crash()


def found(harness: Harness) -> State:
    """Read the logs in every possible way."""
    state = []
    for partition in range(PARTITIONS):
        log = harness.log(partition)
        assert log.state.damage is None
        data = read_all(log, max_bytes=700)
        batches, position = list[bytes](), 0
        start, end = log.log_start_offset, log.log_end_offset
        for header in split_batches(data):
            batches.append(data[position : position + header.size_bytes])
            position += header.size_bytes
            for offset in (max(header.base_offset, start), header.last_offset):
                assert log.latest_epoch_at(offset) == header.partition_leader_epoch
        assert log.durable_offset == end
        begun = [epoch for epoch, offset in log.state.epochs.entries if offset < end and epoch]
        assert begun == sorted({batch.partition_leader_epoch for batch in split_batches(data)})
        for offset in range(start, end):
            (buffer,) = log.read(offset, max_bytes=1, end_offset=end).buffers
            base, following = offsets(bytes(buffer))[0]
            assert base <= offset < following
        replica = Replica(tuple(batches), start, log.replica.promised, log.replica.limbo)
        assert replica.end == end
        state.append(replica)
    return tuple(state)


def remembered(harness: Harness) -> list[int]:
    """The producer's last sequence in each log, -1 for none."""
    return [
        max([producer.last_sequence for producer in harness.log(partition).producers()], default=-1)
        for partition in range(PARTITIONS)
    ]


def check(directory: Path, commits: list[Commit], count: int, dice: random.Random) -> None:
    """Recover from a crash after `count` calls, twice, and continue."""
    acknowledged = [commit for commit in commits if commit.after <= count][-1]
    allowed = [commit.state for commit in commits if commit.before < count < commit.after]
    allowed.append(acknowledged.state)
    files = FaultyFiles(root=directory)
    harness = opened(directory, files)
    state = found(harness)
    held = [replica.held for replica in state]
    match = [candidate for candidate in allowed if [replica.held for replica in candidate] == held]
    assert match, f"power lost after call {count}"
    for sequence, replica in zip(remembered(harness), match[0], strict=True):
        below = [batch for batch in replica.batches if next_offset(batch) <= replica.start]
        expected = max(replica.carried, last_sequence(replica.batches))
        assert sequence == expected or expected == last_sequence(below)
    broken_off(directory, files, state, dice)
    harness.crash()
    assert found(harness) == state
    for partition, replica in enumerate(state):
        log = harness.log(partition)
        log.replica.promise(99)
        log.replica.append(stamped(2, replica.end, 99, fill=255), now_ms=1)
    assert harness.commit() is None
    harness.crash()
    for after, before in zip(found(harness), state, strict=True):
        assert after.batches[:-1] == before.batches
        assert (after.end, after.promised) == (before.end + 2, 99)
        assert after.limbo == before.limbo
    harness.store.close()


def broken_off(directory: Path, files: FaultyFiles, state: State, dice: random.Random) -> None:
    """Lose the power in the middle of a recovery: the next one finds the same."""
    count = dice.randint(0, len(files.operations))
    image = files.disk_after(count).after_power_loss(dice if dice.random() < 0.7 else None)
    again = directory.with_name(f"{directory.name}-again")
    image.put(again)
    harness = opened(again, FaultyFiles(root=again))
    assert found(harness) == state, f"after {count} calls of the recovery"
    abandon(harness.store)
    shutil.rmtree(again)


def crash_at(tmp_path: Path, seed: int, step: int) -> None:
    root = tmp_path / "root"
    root.mkdir()
    script = Script(root, seed)
    script.run()
    disk = script.files.disk_after(0)
    dice = random.Random(seed)
    first = dice.randrange(step)
    for count, operation in enumerate(script.files.operations, 1):
        disk.apply(operation)
        if count % step != first:
            continue
        directory = tmp_path / f"after-{count}"
        image = disk.after_power_loss(dice if dice.random() < 0.7 else None)
        image.put(directory)
        check(directory, script.commits, count, dice)
        shutil.rmtree(directory)


@pytest.mark.parametrize("seed", range(3))
def test_a_replica_recovers_to_the_state_of_a_commit(tmp_path: Path, seed: int) -> None:
    crash_at(tmp_path, seed, 40)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 108))
def test_a_replica_recovers_to_the_state_of_a_commit_everywhere(tmp_path: Path, seed: int) -> None:
    crash_at(tmp_path, seed, 2)
