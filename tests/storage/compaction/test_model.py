"""Compaction against what was sent: appends, transactions, passes that are under way, readers,
crashes and cuts in any order."""

from __future__ import annotations

import shutil
import tempfile
from collections import deque
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.storage.compaction.cleaner import _Slot
from penstock.storage.files.worker import Worker
from tests.machine import MEMORY
from tests.storage.compaction.keyed import (
    COMPACTED,
    Keyed,
    Pair,
    batches_of,
    fetched,
    folded,
    stable_offset,
)

KEYS = [b"a", b"b", b"c", b"a key that is longer than the others, by much"]
PRODUCERS = (1, 2)
STEP_MS_MAX = 200
"""By how much records of a batch may be younger than it."""

pairs = st.lists(
    st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.binary(max_size=40))),
    min_size=1,
    max_size=5,
)


class Reader:
    """A consumer of committed records that keeps the last value of each key."""

    def __init__(self) -> None:
        self.offset = 0
        self.began_ms = -1
        self.view: dict[bytes, bytes] = {}


class CompactionMachine(RuleBasedStateMachine):
    """State machine of one log. The compaction thread is real; its results are applied by a
    rule."""

    @initialize(
        segment_bytes=st.sampled_from([500, 500, 900, 2000]),
        interval=st.sampled_from([0, 150, 4096]),
        min_lag_ms=st.sampled_from([0, 0, 500]),
    )
    def start(self, segment_bytes: int, interval: int, min_lag_ms: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="compaction-model-", dir=MEMORY))
        self.place = Keyed(self.directory)
        self.place.configure(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            min_compaction_lag_ms=min_lag_ms,
        )
        self.attach()
        self.readers = [Reader()]
        self.reach = 0

    def attach(self) -> None:
        """Have what the cleaner's thread has done wait in a queue."""
        self.done: deque[object] = deque()
        self.place.harness.store._cleaner.attach(self.done.append)

    # -- what is sent ------------------------------------------------------------------------

    @rule(
        batches=st.lists(pairs, min_size=1, max_size=6),
        codec=st.sampled_from([0, 0, 0, 4]),
        producer=st.sampled_from([-1, 7]),
        step=st.integers(0, STEP_MS_MAX // 4),
    )
    def send(self, batches: list[list[Pair]], codec: int, producer: int, step: int) -> None:
        now = self.place.now_ms
        for some in batches:
            times = [now + step * place for place in range(len(some))]
            self.place.send(some, codec=codec, producer_id=producer, timestamps=times)

    @rule(
        batches=st.lists(st.tuples(pairs, st.sampled_from(PRODUCERS)), max_size=3),
        ended=st.lists(st.tuples(st.sampled_from(PRODUCERS), st.booleans()), max_size=2),
    )
    def transact(
        self, batches: list[tuple[list[Pair], int]], ended: list[tuple[int, bool]]
    ) -> None:
        for some, producer in batches:
            self.place.send(some, producer_id=producer, transactional=True)
        for producer, commits in ended:
            self.place.end(producer, commits=commits)

    @rule(ms=st.sampled_from([1, 300, 1000, 1000, 90_000_000]))
    def pass_time(self, ms: int) -> None:
        self.place.harness.clock.ms += ms

    # -- what is done to it ------------------------------------------------------------------

    @rule(steps=st.lists(st.sampled_from("skt"), min_size=1, max_size=3))
    def work(self, steps: list[str]) -> None:
        """Segments close; what is due begins; what the thread has done is taken."""
        for step in steps:
            if step == "s":
                self.place.settle()
            elif step == "k":
                self.place.harness.store.housekeeping(self.place.now_ms)
            else:
                self.wait()
                self.worker._collect()

    @property
    def slot(self) -> _Slot:
        return self.place.harness.store._cleaner._slots[0]

    @property
    def worker(self) -> Worker:
        return self.slot.worker

    def wait(self) -> None:
        """Until the thread has nothing to do."""
        while self.worker.outstanding > len(self.worker._results):
            self.worker._finished.wait()
            self.worker._finished.clear()

    @rule()
    def compact(self) -> None:
        """Everything, at once."""
        place = self.place
        place.settle()
        before = -1
        while place.passes > before:
            before = place.passes
            place.harness.store.checkpoint()
            place.harness.store.housekeeping(place.now_ms)
            self.worker.drain()
        place.check_clean()

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.note_reach(self.slot.log is not None)
        if clean:
            self.place.harness.reopen()
        else:
            self.wait()
            self.worker._jobs.put(None)
            self.place.harness.crash()
        self.attach()

    @precondition(lambda self: self.place.log.log_end_offset > 0)
    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        """A start that moves cuts away what was sent below."""
        log = self.place.log
        start = log.log_start_offset
        log.delete_records(start + int((stable_offset(log) - start) * share * 0.3))
        self.readers = []

    @precondition(lambda self: not self.place.open and self.place.log.log_end_offset > 0)
    @rule(count=st.integers(1, 10))
    def cut(self, count: int) -> None:
        """An election that gives something up, a pass that has not begun to swap included.

        A cut of compacted offsets would lose keys, whose older records are gone.
        """
        log, slot = self.place.log, self.slot
        clean = self.place.harness.store._clean_offsets.of(log.topic_partition)
        self.note_reach(slot.work is not None and len(slot.segments) < len(slot.work._plan.sources))
        lowest = max(log.log_start_offset, self.place.marked + 1, clean, self.reach)
        ends = [batch.next_offset for batch in batches_of(log)][-1 - count :]
        end = log.replica.truncate(
            next((offset for offset in ends if offset >= lowest), ends[-1]), floor=0
        )
        assert self.place.harness.commit() is None
        self.place.sent = [sent for sent in self.place.sent if sent.record.offset < end]
        self.readers = [reader for reader in self.readers if reader.offset <= end]

    def note_reach(self, swaps: bool) -> None:
        """Record the end of a pass that swaps, or may have begun to."""
        if swaps:
            self.reach = max(self.reach, self.slot.end_offset)

    # -- what is seen ------------------------------------------------------------------------

    @rule(number=st.integers(0, 2), max_bytes=st.sampled_from([1, 150, 100_000]))
    def read_on(self, number: int, max_bytes: int) -> None:
        if number >= len(self.readers):
            if self.place.log.log_start_offset == 0:
                self.readers.append(Reader())
            return
        reader, log = self.readers[number], self.place.log
        if reader.began_ms < 0:
            reader.began_ms = self.place.now_ms
        if self.place.now_ms - reader.began_ms >= COMPACTED.delete_retention_ms:
            # It may have missed tombstones.
            del self.readers[number]
            return
        if reader.offset < stable_offset(log):
            records, reader.offset = fetched(log, reader.offset, max_bytes)
            folded(records, reader.view)
        if reader.offset >= stable_offset(log):
            assert reader.view == self.place.view()
            reader.began_ms = -1 if reader.offset == 0 else self.place.now_ms

    @invariant()
    def is_as_it_must_be(self) -> None:
        place = self.place
        if place.log.log_start_offset:
            start = place.log.log_start_offset
            place.sent = [sent for sent in place.sent if sent.record.offset >= start]
        records = place.check()
        there = {record.offset for record in records}
        newest = {sent.record.key: sent.record for sent in place.committed()}
        for record in newest.values():
            young = place.now_ms < record.timestamp + COMPACTED.delete_retention_ms - STEP_MS_MAX
            assert record.value is not None or record.offset in there or not young
        assert not place.harness.store.uncleanable
        assert place.log.state.damage is None

    def teardown(self) -> None:
        if hasattr(self, "place"):
            self.place.harness.store.close()
            shutil.rmtree(self.directory)


CompactionMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)
TestCompaction = CompactionMachine.TestCase


class MuchCompaction(CompactionMachine):
    """More of the same, for which `--hypothesis-profile search` has others each time."""


MuchCompaction.TestCase.settings = settings(CompactionMachine.TestCase.settings, max_examples=2_000)
TestMuchCompaction = pytest.mark.long(pytest.mark.timeout(1_800)(MuchCompaction.TestCase))
