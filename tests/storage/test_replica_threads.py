"""A replica's appends, cuts and promises while groups, segments and checkpoints are under way."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from penstock.records import split_batches
from penstock.storage import LogConfig, StorageError
from tests.faulty_files import FaultyFiles
from tests.storage.batches import Harness, read_all, stamped

PARTITIONS = 3


class Replicas:
    """Logs used by a loop with threads, and what they must be."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.files = FaultyFiles()
        self.harness = Harness(
            directory,
            files=self.files,
            config=LogConfig(segment_bytes=1 << 18, retention_ms=-1),
            journal_file_bytes=1 << 19,
            journal_files_max=2,
            log_checkpoint_bytes=1 << 19,
            tail_cache_bytes=1 << 18,
        )
        self.batches: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.epoch = 1
        self.waiting: list[asyncio.Future[StorageError | None]] = []

    def end(self, partition: int) -> int:
        batches = self.batches[partition]
        return split_batches(batches[-1])[0].next_offset if batches else 0

    def append(self) -> None:
        partition = self.dice.randrange(PARTITIONS)
        run, end = b"", self.end(partition)
        for _ in range(self.dice.randint(1, 3)):
            count, size = self.dice.randint(1, 3), self.dice.choice([40, 500, 30_000, 150_000])
            data = bytes(stamped(count, end, self.epoch, fill=self.dice.randrange(256), size=size))
            run += data
            self.batches[partition].append(data)
            end += count
        log = self.harness.log(partition)
        assert log.replica.append(memoryview(run), now_ms=1) == end

    def cut(self) -> None:
        partition = self.dice.randrange(PARTITIONS)
        end = self.end(partition)
        offset = max(0, end - self.dice.randint(0, 12))
        log = self.harness.log(partition)
        kept = [
            batch
            for batch in self.batches[partition]
            if split_batches(batch)[0].next_offset <= offset
        ]
        self.batches[partition] = kept
        assert log.replica.truncate(offset, floor=0) == self.end(partition)
        self.epoch += 1

    def promise(self) -> None:
        self.harness.log(self.dice.randrange(PARTITIONS)).replica.promise(self.epoch)

    def commit(self) -> None:
        future: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()
        self.harness.store.flush(future.set_result)
        self.harness.store.commit_pending()
        self.waiting.append(future)

    def check(self) -> None:
        for partition in range(PARTITIONS):
            log = self.harness.log(partition)
            assert log.durable_offset == log.log_end_offset == self.end(partition)
            assert read_all(log, max_bytes=1 << 20) == b"".join(self.batches[partition])
            for offset in range(max(0, log.log_end_offset - 9), log.log_end_offset):
                assert log.latest_epoch_at(offset) > 0


@pytest.mark.parametrize("seed", range(3))
async def test_cuts_in_between(tmp_path: Path, seed: int) -> None:
    replicas = Replicas(tmp_path, seed)
    replicas.harness.store.attach(asyncio.get_running_loop().call_soon_threadsafe)
    for number in range(250):
        steps = [replicas.append, replicas.cut, replicas.promise, replicas.commit]
        replicas.dice.choices(steps, [5, 2, 1, 4])[0]()
        if replicas.dice.random() < 0.2:
            await asyncio.sleep(0)
        if number % 50 == 49:
            replicas.commit()
            assert set(await asyncio.gather(*replicas.waiting)) == {None}
            replicas.waiting.clear()
            replicas.check()
    replicas.harness.reopen()
    replicas.check()
    replicas.harness.store.close()


async def test_a_cut_of_appends_that_fail(tmp_path: Path) -> None:
    """The group that is with the thread finds no room: what was cut of it is gone either way."""
    replicas = Replicas(tmp_path, 0)
    harness, log = replicas.harness, replicas.harness.log()
    log.replica.append(stamped(4, 0, 1), now_ms=1)
    assert harness.commit() is None
    harness.store.attach(asyncio.get_running_loop().call_soon_threadsafe)
    log.replica.append(stamped(2, 4, 1, size=300_000), now_ms=1)
    replicas.files.room = 10
    replicas.commit()
    assert log.replica.truncate(5, floor=0) == 4
    replicas.files.room = None
    (answer,) = await asyncio.gather(*replicas.waiting)
    assert isinstance(answer, StorageError)
    assert (log.log_end_offset, log.durable_offset) == (4, 4)
    assert log.replica.append(stamped(1, 4, 2), now_ms=1) == 5
    replicas.commit()
    assert await replicas.waiting[-1] is None
    harness.reopen()
    assert harness.log().log_end_offset == 5
    harness.store.close()
