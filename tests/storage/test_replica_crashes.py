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
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.records import split_batches
from penstock.storage import LogConfig
from tests.faulty_files import FaultyFiles
from tests.storage.batches import Harness, abandon, offsets, read_all, stamped

PARTITIONS = 3
"""The last one gets promises, and never a record."""
STEPS = 60
PRODUCER = 7


class Replica(NamedTuple):
    """What a replica's disk is. `epoch` is the script's alone: the one that it appends in."""

    batches: tuple[bytes, ...] = ()
    promised: int = -1
    limbo: int = -1
    epoch: int = 1

    @property
    def end(self) -> int:
        return split_batches(self.batches[-1])[0].next_offset if self.batches else 0


State = tuple[Replica, ...]


class Commit(NamedTuple):
    """What the disk holds from some call on, at the latest after `after`."""

    before: int
    after: int
    state: State


def opened(directory: Path, files: FaultyFiles) -> Harness:
    return Harness(
        directory,
        files=files,
        config=LogConfig(segment_bytes=500, index_interval_bytes=100, retention_ms=-1),
        journal_file_bytes=1 << 14,
        journal_files_max=2,
    )


class Script:
    """One run over a directory, as the dice will have it."""

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
                    self.promise,
                    self.commit,
                    self.checkpoint,
                    self.write,
                    self.restart,
                ],
                [8, 3, 3, 6, 1, 1, 1],
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
            log.promise(replica.promised)
        else:
            replica = replica._replace(limbo=self.dice.randint(-1, 9))
            log.set_limbo(replica.limbo)
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
        assert log.append_replica(memoryview(b"".join(run)), now_ms=1) == end
        self.put(partition, replica._replace(batches=(*replica.batches, *run), epoch=epoch))

    def cut(self) -> None:
        partition = self.dice.randrange(PARTITIONS - 1)
        replica = self.state[partition]
        offset = self.dice.randint(0, replica.end)
        kept = [one for one in replica.batches if split_batches(one)[0].next_offset <= offset]
        end = self.harness.log(partition).truncate(offset, floor=0)
        left = replica._replace(batches=tuple(kept))
        assert end == left.end
        self.put(partition, left)

    def commit(self) -> None:
        before = len(self.files.operations)
        assert self.harness.commit() is None
        self.commits.append(Commit(before, len(self.files.operations), self.state))

    def checkpoint(self) -> None:
        self.harness.store.checkpoint()

    def write(self) -> None:
        self.harness.log(self.dice.randrange(PARTITIONS)).write_segments()

    def restart(self) -> None:
        self.commit()
        if self.dice.random() < 0.5:
            self.harness.reopen()
        else:
            self.harness.crash()


def found(harness: Harness) -> State:
    """What the logs hold, looked at in every way there is."""
    state = []
    for partition in range(PARTITIONS):
        log = harness.log(partition)
        assert log.damage is None
        data = read_all(log, max_bytes=700)
        batches, position, epochs = list[bytes](), 0, list[tuple[int, int]]()
        for header in split_batches(data):
            batches.append(data[position : position + header.size_bytes])
            position += header.size_bytes
            if not epochs or epochs[-1][0] != header.partition_leader_epoch:
                epochs.append((header.partition_leader_epoch, header.base_offset))
        end = log.log_end_offset
        assert log.durable_offset == end == (split_batches(data)[-1].next_offset if data else 0)
        assert [one for one in log.epochs.entries if one[1] < end and one[0]] == epochs
        produced = [h for h in split_batches(data) if h.producer_id == PRODUCER]
        assert [p.last_sequence for p in log.producers()] == [
            h.last_sequence for h in produced[-1:]
        ]
        for offset in range(end):
            (buffer,) = log.read(offset, max_bytes=1, end_offset=end).buffers
            base, following = offsets(bytes(buffer))[0]
            assert base <= offset < following
        state.append(Replica(tuple(batches), log.promised, log.limbo, 0))
    return tuple(state)


def same(one: State, other: State) -> bool:
    return [replica._replace(epoch=0) for replica in one] == [
        replica._replace(epoch=0) for replica in other
    ]


def check(directory: Path, commits: list[Commit], count: int) -> None:
    """Recover what a crash after so many calls has left, twice, and go on with it."""
    acknowledged = [commit for commit in commits if commit.after <= count][-1]
    allowed = [acknowledged.state] + [
        one.state for one in commits if one.before < count < one.after
    ]
    harness = opened(directory, FaultyFiles(root=directory))
    state = found(harness)
    assert any(same(state, one) for one in allowed), f"power lost after call {count}"
    harness.crash()
    assert found(harness) == state
    for partition, replica in enumerate(state):
        log = harness.log(partition)
        log.promise(99)
        log.append_replica(stamped(2, replica.end, 99, fill=255), now_ms=1)
    assert harness.commit() is None
    harness.crash()
    after = found(harness)
    for replica, before in zip(after, state, strict=True):
        assert replica.batches[:-1] == before.batches
        assert (replica.end, replica.promised) == (before.end + 2, 99)
        assert replica.limbo == before.limbo
    harness.store.close()


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
        check(directory, script.commits, count)
        shutil.rmtree(directory)


@pytest.mark.parametrize("seed", range(3))
def test_a_replica_is_what_some_commit_made_of_it(tmp_path: Path, seed: int) -> None:
    crash_at(tmp_path, seed, 40)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 130))
def test_a_replica_is_what_some_commit_made_of_it_everywhere(tmp_path: Path, seed: int) -> None:
    crash_at(tmp_path, seed, 2)
