"""Sweeper: removed and kept entries; a kill at any of its calls leaves a valid tree."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.base.errors import InvalidError
from penstock.base.metrics import render
from penstock.outbox.errors import RootUnavailable
from penstock.outbox.gc.pointer_index import Looked, TopicPointers
from penstock.outbox.gc.sweeper import Sweeper, SweepReport, SweepRules, Verdict
from penstock.outbox.gc.tree import TreeFiles
from penstock.outbox.layout import temporary_name
from penstock.outbox.pointer import Pointer
from tests.faulty_files import open_below
from tests.machine import MEMORY
from tests.outbox.shelf import AT_MS, HOUR_MS, Shelf
from tests.outbox.sweep_kills import Failing, Scene

ROOT = Path(__file__).resolve().parents[2]
DAY_MS = 24 * HOUR_MS
RULES = SweepRules(retention_ms=DAY_MS, orphan_age_ms=HOUR_MS, unreferenced_grace_ms=DAY_MS)
AGES = ("retention_ms", "orphan_age_ms", "unreferenced_grace_ms")
OLD_MS = 3 * DAY_MS


def sweep(
    shelf: Shelf,
    *,
    groups: Sequence[str] | None = ("g",),
    topic: bool = True,
    rules: SweepRules = RULES,
    execute: bool = True,
    **more: Any,
) -> SweepReport:
    pointers = TopicPointers(shelf.client, shelf.topic, groups) if topic else None
    return Sweeper(shelf.root, pointers=pointers, rules=rules, execute=execute, **more).sweep()


def commit(shelf: Shelf, offset: int, *, group: str = "g", partition: int = 0) -> None:
    shelf.client.commit_offsets(group, {(shelf.topic, partition): offset})


def files(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if not p.is_dir())


def orphan(shelf: Shelf, pointer: Pointer, age_ms: int, token: str = "abc") -> Path:
    file = shelf.path(pointer).parent / temporary_name(token, 1)
    file.write_bytes(b"half")
    shelf.age(file, age_ms)
    return file


def test_only_what_all_groups_have_read_and_retention_has_passed(shelf: Shelf) -> None:
    old = [shelf.add(b"%d" % n, age_ms=OLD_MS) for n in range(4)]
    young = shelf.add(b"young", age_ms=HOUR_MS)
    commit(shelf, 5)
    commit(shelf, 2, group="slow")
    report = sweep(shelf, groups=None)
    assert sorted(report.groups) == ["g", "slow"]
    assert files(shelf.root) == sorted(p.file_path for p in (*old[2:], young))
    assert (report.removed_payloads, report.waiting, report.young) == (2, 3, 0)
    assert report.removed_bytes == 2
    commit(shelf, 5, group="slow")
    report = sweep(shelf, groups=None)
    assert files(shelf.root) == [young.file_path]
    assert (report.removed_payloads, report.waiting, report.young) == (2, 0, 1)


def test_named_groups_count_and_no_others(shelf: Shelf) -> None:
    shelf.add(age_ms=OLD_MS)
    commit(shelf, 1)
    commit(shelf, 0, group="slow")
    assert sweep(shelf, groups=["g", "new"]).waiting == 1
    assert sweep(shelf, groups=["g"]).removed_payloads == 1


def test_without_any_group_nothing_is_consumed(shelf: Shelf) -> None:
    shelf.add(age_ms=OLD_MS)
    assert sweep(shelf, groups=None).waiting == 1


def test_offsets_of_an_earlier_topic_of_the_name_count_for_nothing(shelf: Shelf) -> None:
    shelf.add(age_ms=OLD_MS)
    commit(shelf, 100)
    assert sweep(shelf).waiting == 1


def test_a_topic_of_many_partitions(shelf: Shelf) -> None:
    pointers = [shelf.file(b"%d" % n, age_ms=OLD_MS) for n in range(6)]
    shelf.publish(*pointers[:3], partition=0)
    shelf.publish(*pointers[3:], partition=1)
    commit(shelf, 1)
    commit(shelf, 2, partition=1)
    report = sweep(shelf)
    assert (report.removed_payloads, report.waiting) == (3, 3)
    kept = [pointers[n].file_path for n in (1, 2, 5)]
    assert files(shelf.root) == sorted(kept)


def test_a_second_pointer_that_waits_keeps_the_payload(shelf: Shelf) -> None:
    pointer = shelf.add(age_ms=OLD_MS)
    shelf.publish(pointer)
    shelf.publish(pointer, partition=1)
    commit(shelf, 2)
    assert sweep(shelf).waiting == 1
    commit(shelf, 1, partition=1)
    assert sweep(shelf).removed_payloads == 1


def test_a_dry_run_removes_nothing_and_says_what_it_would(shelf: Shelf) -> None:
    pointer = shelf.add(b"12345", age_ms=OLD_MS)
    orphan(shelf, pointer, OLD_MS)
    commit(shelf, 1)
    before = files(shelf.root)
    report = sweep(shelf, execute=False)
    assert files(shelf.root) == before
    assert (report.removed_payloads, report.removed_bytes) == (1, 5)
    assert (report.removed_temporaries, report.removed_temporary_bytes) == (1, 4)
    assert sorted(what for what, _ in report.notes) == ["payload", "temporary"]


def test_unreferenced_payloads_are_reported_and_removed_when_asked(shelf: Shelf) -> None:
    forgotten = shelf.file(b"forgotten", age_ms=OLD_MS)
    shelf.file(b"in grace", age_ms=DAY_MS + HOUR_MS)
    shelf.file(b"new")
    report = sweep(shelf)
    assert (report.unreferenced, report.unreferenced_bytes) == (1, 9)
    assert report.notes == [("unreferenced", forgotten.file_path)]
    assert len(files(shelf.root)) == 3
    report = sweep(shelf, rules=replace(RULES, remove_unreferenced=True))
    assert report.removed_payloads == 1
    assert not shelf.path(forgotten).exists()
    assert len(files(shelf.root)) == 2


def test_pointers_that_the_log_no_longer_has(shelf: Shelf) -> None:
    pointer = shelf.add(age_ms=OLD_MS)
    shelf.add(b"rest")
    commit(shelf, 2)
    shelf.client.delete_records(shelf.topic, {0: 1})
    assert sweep(shelf).unreferenced == 1
    assert shelf.path(pointer).exists()


def test_orphans_and_empty_directories(shelf: Shelf) -> None:
    old, young = shelf.file(age_ms=1), shelf.file(age_ms=1)
    for pointer, age in ((old, 2 * HOUR_MS), (young, 1)):
        shelf.path(pointer).unlink()
        orphan(shelf, pointer, age)
    (shelf.root / "p2/year=2026/month=05/day=24/hour=00").mkdir(parents=True)
    (shelf.root / "old/year=2026/month=05/day=24/hour=00").mkdir(parents=True)
    shelf.age(shelf.root / "old/year=2026/month=05/day=24/hour=00", OLD_MS)
    report = sweep(shelf, topic=False)
    assert report.removed_temporaries == 1
    assert not shelf.path(old).parent.exists()
    assert shelf.path(young).parent.exists()
    assert (shelf.root / "p2/year=2026/month=05/day=24/hour=00").exists()
    assert not (shelf.root / "old").exists()
    assert report.removed_directories == 6


def test_payloads_stay_without_a_topic(shelf: Shelf) -> None:
    pointer = shelf.file(age_ms=OLD_MS)
    sweep(shelf, topic=False)
    assert files(shelf.root) == [pointer.file_path]


def test_what_is_not_the_outboxs_is_left_alone(shelf: Shelf, tmp_path: Path) -> None:
    pointer = shelf.add(age_ms=OLD_MS)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / temporary_name("abc", 1)).write_bytes(b"x")
    batch = shelf.path(pointer).parent
    hour = batch.parent
    (batch / "data.bin.sidecar").write_bytes(b"x")
    (batch / "data.bin.tmp.").write_bytes(b"x")
    (batch / "data.bin.tmp.abc.1.more").write_bytes(b"x")
    (hour / "notes.txt").write_bytes(b"x")
    (hour / "batch-linked").symlink_to(outside)
    (hour.parent / "hour=99x").mkdir()
    (shelf.root / "linked").symlink_to(outside.parent, target_is_directory=True)
    os.mkfifo(batch / temporary_name("pipe", 1))
    for path in (*batch.iterdir(), hour / "notes.txt", outside / temporary_name("abc", 1)):
        os.utime(path, (1, 1))
    commit(shelf, 1)
    before = set(files(shelf.root)) | set(files(outside))
    report = sweep(shelf)
    assert before - (set(files(shelf.root)) | set(files(outside))) == {pointer.file_path}
    assert report.walked.foreign == 8
    assert report.walked.failures == 0


@pytest.mark.parametrize("entries_max", [1, 2, 7, 1_000])
def test_windows_come_to_the_same(shelf: Shelf, entries_max: int) -> None:
    pointers = [
        shelf.file(age_ms=OLD_MS, partition_id=f"p{n % 3}", at_ms=AT_MS + n % 4 * HOUR_MS)
        for n in range(24)
    ]
    for pointer in pointers:
        orphan(shelf, pointer, OLD_MS)
    shelf.publish(*pointers)
    commit(shelf, 20)
    report = sweep(shelf, index_entries_max=entries_max)
    assert files(shelf.root) == sorted(p.file_path for p in pointers[20:])
    assert (report.removed_payloads, report.waiting, report.removed_temporaries) == (20, 4, 24)
    assert report.payloads == 24
    assert report.windows == -(-24 // entries_max)


class Racing(TreeFiles):
    """Tree calls that run a function right before a file's last check."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.meanwhile = meanwhile
        self.looked = 0

    def stat(self, directory: int, name: str) -> os.stat_result:
        self.looked += 1
        if self.looked == 2:
            self.meanwhile()
        return super().stat(directory, name)


def test_a_file_that_took_the_name_stays(shelf: Shelf) -> None:
    pointer = shelf.add(age_ms=OLD_MS)
    commit(shelf, 1)
    path = shelf.path(pointer)

    def replace_it() -> None:
        path.unlink()
        path.write_bytes(b"payload")

    report = sweep(shelf, files=Racing(replace_it))
    assert path.read_bytes() == b"payload"
    assert report.removed_payloads == 0


def test_what_others_remove_meanwhile_is_no_failure(shelf: Shelf) -> None:
    pointer = shelf.add(age_ms=OLD_MS)
    commit(shelf, 1)
    report = sweep(shelf, files=Racing(lambda: shelf.path(pointer).unlink()))
    assert (report.removed_payloads, report.walked.failures) == (0, 0)


@given(
    age_ms=st.integers(-1_000, 300),
    referenced=st.booleans(),
    consumed=st.booleans(),
    retention_ms=st.integers(0, 100),
    grace_ms=st.integers(0, 100),
)
def test_the_rules_by_columns_are_the_rules(
    age_ms: int, referenced: bool, consumed: bool, retention_ms: int, grace_ms: int
) -> None:
    rules = SweepRules(retention_ms=retention_ms, orphan_age_ms=0, unreferenced_grace_ms=grace_ms)
    consumed = consumed and referenced
    known = Looked(referenced=np.array([referenced]), consumed=np.array([consumed]))
    verdict = int(rules.judge_payloads(np.array([10_000 - age_ms]), known, now_ms=10_000)[0])
    if referenced and not consumed:
        expected = Verdict.WAITING
    elif consumed:
        expected = Verdict.CONSUMED if age_ms >= retention_ms else Verdict.YOUNG
    else:
        old = age_ms >= retention_ms + grace_ms
        expected = Verdict.UNREFERENCED if old else Verdict.YOUNG
    assert verdict == expected
    assert rules.removes(verdict) is (expected is Verdict.CONSUMED)


def test_metrics_add_up_over_sweeps(shelf: Shelf) -> None:
    orphan(shelf, shelf.add(b"12345", age_ms=OLD_MS), OLD_MS)
    shelf.add(age_ms=OLD_MS)
    commit(shelf, 1)
    pointers = TopicPointers(shelf.client, shelf.topic, ["g"])
    Sweeper(shelf.root, pointers=pointers, rules=RULES).sweep()
    sweeper = Sweeper(shelf.root, pointers=pointers, rules=RULES, execute=True)
    for _ in range(2):
        sweeper.sweep()
    exposed = render(sweeper.counts.samples()).decode()
    for line in ("sweeps_total 2.0", "swept_payloads_total 1.0", "swept_bytes_total 5.0",
                 "swept_temporaries_total 1.0", "waiting_payloads 1.0"):  # fmt: skip
        assert f"penstock_outbox_{line}" in exposed


def test_two_sweepers_after_each_other_and_a_root_that_is_none(shelf: Shelf) -> None:
    shelf.add(age_ms=OLD_MS)
    commit(shelf, 1)
    assert sweep(shelf).removed_payloads == 1
    assert sweep(shelf).payloads == 0
    with pytest.raises(RootUnavailable):
        Sweeper(shelf.root / "none").sweep()


@pytest.mark.parametrize("name", AGES)
def test_ages_below_zero_are_refused(name: str) -> None:
    with pytest.raises(InvalidError, match=name):
        replace(RULES, **cast("dict[str, Any]", {name: -1}))


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """Return a directory in memory if possible, for hundreds of trees."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as made:
        yield Path(made)


@pytest.mark.parametrize("after", [False, True])
def test_an_error_at_every_call_removes_nothing_wrong(quick_path: Path, after: bool) -> None:
    for number in itertools.count(1):
        made = Scene(quick_path / str(number))
        failing = Failing(number, after=after)
        report = made.sweeper(failing).sweep()
        assert open_below(quick_path) == []
        made.check_stays()
        assert report.walked.failures == failing.fired
        made.sweeper().sweep()
        made.check_gone()
        if not failing.fired:
            break
    assert number > 80


@pytest.mark.long
@pytest.mark.timeout(300)
def test_killed_at_every_call(quick_path: Path) -> None:
    """Real kills before and after every call, each followed by a sweep that completes the work."""
    command = [sys.executable, "-m", "tests.outbox.sweep_kills", str(quick_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    kills = int(done.stdout)
    assert kills >= 160


@pytest.mark.timeout(300)
def test_killed_beside_a_live_writer(quick_path: Path) -> None:
    command = [sys.executable, "-m", "tests.outbox.sweep_kills_live", str(quick_path), "30"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    kills, written = map(int, done.stdout.split())
    assert kills == 30
    assert written > 250
