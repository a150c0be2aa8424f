"""Group commits whose callbacks are registered at the end of the turn."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from penstock.partitions import GroupCommits, LocalPartition
from penstock.partitions.local import CROWDED_REQUESTS, SAMPLED_REQUESTS
from penstock.records.appends import AppendResult, Outcome
from penstock.storage import DiskFull
from tests.faulty_files import FaultyFiles
from tests.storage.batches import Harness, batch


def test_an_append_that_another_groups_failure_undid_is_not_acknowledged(tmp_path: Path) -> None:
    """The store fails between an append and the end of the turn, at which it is flushed."""
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    turn: list[Callable[[], None]] = []
    commits = GroupCommits(harness.store)
    commits.attach(turn.append)
    partition = LocalPartition(harness.log(), commits)
    outcomes: list[Outcome] = []

    def append() -> None:
        records = memoryview(bytearray(batch(2)))
        now_ms = harness.clock.ms
        partition.append(records, now_ms=now_ms, acks=-1, lease=None, done=outcomes.append)

    append()
    files.fail = lambda name, path: errno.ENOSPC if name == "write_at" else None
    assert isinstance(harness.commit(), DiskFull)
    files.fail = lambda name, path: None
    append()
    for end in turn:
        end()
    failed, stored = outcomes
    assert isinstance(failed, DiskFull)
    assert isinstance(stored, AppendResult)
    assert stored.base_offset == 0
    assert partition.high_watermark == harness.log().log_end_offset == 2
    harness.store.close()


def test_requests_that_need_no_commit_are_counted_by_samples(tmp_path: Path) -> None:
    harness = Harness(tmp_path, log_flush_policy="os")
    commits = GroupCommits(harness.store)
    soon: list[Callable[[], None]] = []
    commits.attach(soon.append)
    assert commits.at_once

    def turn(requests: int) -> bool:
        for _ in range(requests):
            commits.count_alone()
        for call in soon:
            call()
        ended = bool(soon)
        soon.clear()
        return ended

    assert [turn(1) for _ in range(2 * SAMPLED_REQUESTS)] == 2 * (
        [False] * (SAMPLED_REQUESTS - 1) + [True]
    )
    assert not commits.crowded
    turns = 0
    while not commits.crowded:
        turn(CROWDED_REQUESTS)
        turns += 1
        assert turns <= CROWDED_REQUESTS * SAMPLED_REQUESTS
    assert turn(1)
    assert not commits.crowded
    harness.store.close()
