"""Commits: each batch once under replays, races and kills; upkeep keeps the table small."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.lake.commits import EXPIRE_COMMITS, LakeTable, Mark, appended, catalog_of
from penstock.lake.target import LakeMismatch, LakeUnavailable, Target
from penstock.lake.upsert import Upsert
from tests.lake.oracle import assert_files_once, assert_same, assert_stored, stored, target


def batch_of(number: int, rows: int = 10) -> pa.Table:
    return pa.table({"batch": [number] * rows, "id": range(number * rows, (number + 1) * rows)})


def unless_there(batch: int) -> Callable[[Mark | None], bool]:
    return lambda mark: mark is None or mark.batch < batch


def write(lake: LakeTable, batch: int, rows: pa.Table | None = None) -> bool:
    """Write a batch as a sink does; return whether it was not there yet."""
    given = batch_of(batch) if rows is None else rows
    lake.prepare(given.schema)
    files = lake.writer().write(given)
    return lake.commit(Mark(batch=batch), unless_there(batch), appended(files)) is not None


def test_a_batch_is_committed_once(tmp_path: Path) -> None:
    lake = LakeTable(target(tmp_path), application="a")
    assert lake.mark() is None
    assert [write(lake, batch) for batch in (0, 0, 1, 0, 2)] == [True, False, True, False, True]
    other = LakeTable(target(tmp_path), application="b")
    assert other.mark() is None
    assert write(other, 0, batch_of(3))
    assert not write(LakeTable(target(tmp_path), application="a"), 2)
    assert lake.mark(fresh=True) == Mark(batch=2)  # kept by the snapshot of another application
    assert_stored(lake, pa.concat_tables([batch_of(number) for number in range(4)]))
    assert_files_once(lake)


def test_snapshots_of_other_writers_keep_the_marks(tmp_path: Path) -> None:
    lake = LakeTable(target(tmp_path), application="a")
    write(lake, 7)
    foreign = catalog_of(target(tmp_path)).load_table("db.orders")
    foreign.append(batch_of(8))
    assert lake.mark(fresh=True) == Mark(batch=7)
    assert not write(lake, 7)
    assert write(lake, 9)
    assert_stored(lake, pa.concat_tables([batch_of(number) for number in (7, 8, 9)]))


def test_writers_that_commit_at_once_lose_and_repeat_nothing(tmp_path: Path) -> None:
    lake = LakeTable(target(tmp_path), application="setup")
    lake.prepare(batch_of(0).schema)

    def run(name: str) -> list[bool]:
        mine = LakeTable(target(tmp_path), application=name)
        return [write(mine, batch) for batch in range(4)]

    # Two drivers of each application write the same batches.
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(run, ["a", "a", "b", "b"]))
    for first, second in (done[:2], done[2:]):
        assert [one + two for one, two in zip(first, second, strict=True)] == [1] * 4
    assert_stored(lake, pa.concat_tables([batch_of(number) for number in range(4)] * 2))
    assert_files_once(lake)


def test_upkeep_bounds_snapshots_manifests_and_files(tmp_path: Path) -> None:
    lake = LakeTable(target(tmp_path), application="a", snapshots_kept=10)
    count = 2 * EXPIRE_COMMITS + 1
    for batch in range(count):
        write(lake, batch)
    table = stored(lake)
    assert len(table.snapshots()) <= 10 + EXPIRE_COMMITS
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) < 16
    expected = pa.concat_tables([batch_of(batch) for batch in range(count)])
    assert_stored(lake, expected)
    stray = lake.writer().write(batch_of(99))[0].file_path.removeprefix("file://")
    before = len(list(tmp_path.rglob("*.*")))
    assert lake.remove_orphans() == []  # nothing is old enough
    deleted = lake.remove_orphans(older_than_hours=0)
    assert stray in deleted
    assert len(list(tmp_path.rglob("*.*"))) == before - len(deleted)
    assert len(deleted) > count - 10 - EXPIRE_COMMITS  # manifest lists of expired snapshots too
    assert_stored(lake, expected)
    assert_files_once(lake)
    assert write(lake, count)
    assert lake.remove_orphans(older_than_hours=0) is not None


def test_tables_of_other_tools_keep_their_snapshots(tmp_path: Path) -> None:
    catalog = catalog_of(target(tmp_path))
    catalog.create_namespace("db")
    catalog.create_table("db.orders", schema=batch_of(0).schema)
    lake = LakeTable(target(tmp_path), application="a", snapshots_kept=2)
    count = EXPIRE_COMMITS + 2
    for batch in range(count):
        write(lake, batch)
    assert len(stored(lake).snapshots()) == count
    given = catalog.load_table("db.orders")
    assert given.properties == {}  # properties of Penstock's commits stay in memory


def test_tables_of_version_3_are_read(tmp_path: Path) -> None:
    lake = LakeTable(target(tmp_path), application="a")
    write(lake, 0)
    metadata = json.loads(Path(stored(lake).metadata_location.removeprefix("file://")).read_text())
    newer = tmp_path / "newer.metadata.json"
    newer.write_text(json.dumps({**metadata, "format-version": 3, "next-row-id": 0}))
    catalog_of(target(tmp_path)).register_table("db.newer", newer.as_uri())
    lake = LakeTable(target(tmp_path, "db.newer"), application="a")
    assert lake.mark() == Mark(batch=0)
    assert stored(lake).format_version == 3
    assert_stored(lake, batch_of(0))
    with pytest.raises(LakeMismatch, match="version 3, which pyiceberg reads"):
        lake.prepare(batch_of(1).schema)


def test_a_catalogue_in_postgresql(postgres_url: str, tmp_path: Path) -> None:
    server, schema = postgres_url.split("?search_path=")
    uri = f"{server}?options=-csearch_path%3D{schema}"
    lake = LakeTable(target(tmp_path, uri=uri), application="a")
    assert [write(lake, batch) for batch in (0, 1, 1)] == [True, True, False]
    assert_stored(lake, pa.concat_tables([batch_of(0), batch_of(1)]))


def test_errors_name_the_catalogue(tmp_path: Path) -> None:
    gone = LakeTable(target(tmp_path, uri=f"sqlite:///{tmp_path}/no/c.db"), application="a")
    with pytest.raises(LakeUnavailable, match=r"table db.orders: .*unable to open database"):
        gone.open()
    with pytest.raises(LakeMismatch, match="catalog default cannot be opened"):
        LakeTable(Target(table="db.t", catalog=(("type", "nothing"),)), application="a").open()
    refused = {"type": "rest", "uri": "http://127.0.0.1:9"}
    with pytest.raises(LakeUnavailable, match="Connection refused"):
        LakeTable(Target.of("db.t", refused, Path), application="a").open()


def write_until_killed(folder: Path, mode: str, batches: int, steps: Connection) -> None:
    """Write batches from the last committed one on; send a word before and after each commit."""
    lake = LakeTable(target(folder), application="a", partition_by=("truncate(50, id)",))
    mark = lake.mark()
    for batch in range(0 if mark is None else mark.batch + 1, batches):
        rows = batch_of(batch)
        lake.prepare(rows.schema)
        change = appended(lake.writer().write(rows))
        if mode == "upsert":
            both = pa.concat_tables([batch_of(batch - 1), rows]) if batch else rows
            change = Upsert(name="db.orders", rows=both, keys=("id",)).change(lake.writer())
        steps.send("files")
        lake.commit(Mark(batch=batch), unless_there(batch), change)
        steps.send("commit")
    steps.send("end")


@pytest.mark.parametrize(
    ("mode", "kills"),
    [
        ("append", 3),
        ("upsert", 2),
        pytest.param("append", 250, marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
        pytest.param("upsert", 250, marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
def test_kills_at_any_moment_lose_and_repeat_nothing(tmp_path: Path, kills: int, mode: str) -> None:
    drawn, batches = random.Random(kills), 3 * kills
    processes = get_context("forkserver")
    processes.set_forkserver_preload(["tests.lake.test_commits"])
    for kill in range(kills + 1):
        steps, theirs = processes.Pipe(duplex=False)
        child = processes.Process(target=write_until_killed, args=(tmp_path, mode, batches, theirs))
        child.start()
        theirs.close()
        if kill < kills:
            for _ in range(drawn.randrange(1, 5)):
                assert steps.recv() != "end"
            # The kill hits somewhere in the next commit.
            steps.poll(drawn.uniform(0, 0.03))
            os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        assert child.exitcode == (-signal.SIGKILL if kill < kills else 0)
        steps.close()
    lake = LakeTable(target(tmp_path), application="a")
    expected = pa.concat_tables([batch_of(batch) for batch in range(batches)])
    assert_same(expected, stored(lake).scan().to_arrow())
    assert_files_once(lake)
    lake.remove_orphans(older_than_hours=0)
    assert_same(expected, stored(lake).scan().to_arrow())
