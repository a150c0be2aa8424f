"""Compaction by its own threads, while a log is appended to, read, cut, retained and deleted."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path

import pytest

from penstock.storage import StorageError
from tests.storage.compaction.keyed import Keyed, Pair, batches_of, folded

KEYS = 7


class Busy:
    """A log that a loop with threads looks after, and what it must hold."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.place = Keyed(
            directory, log_cleaner_threads=2, log_checkpoint_bytes=1 << 16,
            log_cleaner_io_buffer_size=1 << 14,
        )  # fmt: skip
        self.place.configure(segment_bytes=3000, delete_retention_ms=1 << 50)

    async def work(self, steps: int) -> None:
        place, store = self.place, self.place.harness.store
        store.attach(asyncio.get_running_loop().call_soon_threadsafe)
        for _ in range(steps):
            for _ in range(self.dice.randint(1, 6)):
                await self.send()
            place.log.state.roll()
            if self.dice.random() < 0.5:
                ended: asyncio.Future[StorageError | None] = asyncio.Future()
                store.checkpoint(ended.set_result)
                if self.dice.random() < 0.5:
                    assert await ended is None
            place.harness.clock.ms += 1
            store.housekeeping(place.now_ms)
            await asyncio.sleep(0.001 * self.dice.randint(0, 3))
            if self.dice.random() < 0.2:
                place.check()

    async def send(self) -> None:
        place, count = self.place, self.dice.randint(1, 5)
        some: list[Pair] = []
        for _ in range(count):
            value = None if self.dice.random() < 0.2 else self.dice.randbytes(50)
            some.append((b"key %d" % self.dice.randrange(KEYS), value))
        place.send(some, codec=self.dice.choice([0, 0, 4]), producer_id=self.dice.choice([-1, 3]))

    async def settle(self) -> None:
        """Until nothing more is compacted."""
        place, store = self.place, self.place.harness.store
        seen = -1
        while place.passes > seen or any(slot.log for slot in store._cleaner._slots):
            seen = place.passes
            ended: asyncio.Future[StorageError | None] = asyncio.Future()
            store.checkpoint(ended.set_result)
            assert await ended is None
            place.harness.clock.ms += 1
            store.housekeeping(place.now_ms)
            await asyncio.sleep(0.005)
        assert not store.uncleanable


@pytest.mark.parametrize("seed", range(3))
async def test_appends_and_reads_continue_during_passes(tmp_path: Path, seed: int) -> None:
    busy = Busy(tmp_path, seed)
    await busy.work(60)
    await busy.settle()
    records = busy.place.check()
    assert busy.place.passes > 3
    assert len({record.key for record in records}) == KEYS
    busy.place.harness.crash()
    busy.place.check()
    busy.place.harness.store.close()


async def test_a_log_is_deleted_and_made_again_during_passes(tmp_path: Path) -> None:
    busy = Busy(tmp_path, 9)
    where = busy.place.log.topic_partition
    for _ in range(6):
        await busy.work(8)
        busy.place.harness.store.delete(where)
        busy.place.sent = []
    await busy.work(10)
    await busy.settle()
    busy.place.check()
    busy.place.harness.store.close()
    assert not list(tmp_path.glob("orders-0/*.cleaned"))


async def test_a_cut_waits_for_a_swap(tmp_path: Path) -> None:
    busy = Busy(tmp_path, 4)
    place = busy.place
    for _ in range(8):
        await busy.work(6)
        log, store = place.log, place.harness.store
        clean = store._clean_offsets.of(log.topic_partition)
        if any(slot.log for slot in store._cleaner._slots):
            clean = log.log_end_offset  # a pass under way may know of all that is closed
            for _ in range(3):
                await busy.send()
        ends = [batch.next_offset for batch in batches_of(log) if batch.next_offset >= clean][-8:]
        view = folded([sent.record for sent in place.sent if sent.record.offset < ends[0]])
        end = log.replica.truncate(ends[0], floor=0)
        place.sent = [sent for sent in place.sent if sent.record.offset < end]
        answers: list[StorageError | None] = []
        place.harness.store.flush(answers.append)
        place.harness.store.commit_pending()
        while not answers:
            await asyncio.sleep(0.001)
        assert answers == [None]
        assert log.log_end_offset == end
        assert view == place.view()
    await busy.settle()
    place.harness.crash()
    assert place.log.state.damage is None
    place.harness.store.close()


@pytest.mark.parametrize("changes", [True, False])
def test_a_cut_stops_a_pass_that_read_beyond_it(tmp_path: Path, changes: bool) -> None:
    """Also one that would leave all as it is: it would call clean what comes after the cut."""
    place = Keyed(tmp_path)
    place.configure(segment_bytes=250)
    for number in range(6):
        place.send([(b"key %d" % number, b"old")])
    cut = place.send([(b"key 0" if changes else b"another key", b"new")])
    place.settle()
    store = place.harness.store
    worker, called = store._cleaner._slots[0].worker, threading.Event()
    worker.attach(lambda _: called.set())
    store.housekeeping(place.now_ms)
    assert called.wait(30)  # what the first step has made waits for its turn
    assert place.log.replica.truncate(cut, floor=0) == cut
    assert place.harness.commit() is None
    place.sent = [sent for sent in place.sent if sent.record.offset < cut]
    place.send([(b"key 1", b"newer")])
    place.send([(b"key 1", None)])
    place.settle()
    worker.drain()
    assert store._clean_offsets.of(place.log.topic_partition) <= cut
    place.check()
    place.compact()
    place.harness.clock.ms += 5000
    place.send([(b"key 2", b"newer")])
    place.compact()
    place.check()
    store.close()
