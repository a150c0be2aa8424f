"""The SQLite form on its own: durability, migrations, one owner, failures with their cause."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from penstock.base.errors import BugError
from penstock.control import (
    CommittedOffset,
    ControlBusy,
    ControlUnavailable,
    DatabaseDamaged,
    DatabaseFull,
    DatabaseLocked,
    DatabaseStopped,
    IncompatibleDatabase,
    RecordChange,
    SqliteControlPlane,
    StaleRecord,
)
from penstock.control.drivers.sqlite_writer import (
    CHECKPOINT_OPERATIONS,
    LOOP_COMMIT_SECONDS_MAX,
    LOOP_ROWS_MAX,
)
from penstock.control.values.errors import WAITING_OPERATIONS_MAX

A = UUID(int=1)
PAGE_BYTES, FRAME_HEADER_BYTES = 4096, 24


async def fill(plane: SqliteControlPlane) -> None:
    await plane.register_broker(broker_id=1, host="h", port=1, rack=None, incarnation=A)
    await plane.create_topic(
        name="t", topic_id=A, partitions=[[1], [1]], configs={"retention.ms": "9"}
    )
    await plane.set_broker_configs(broker="1", configs={"x": "y"}, expected=None)
    await plane.commit_offsets(
        group_id="g", offsets=[CommittedOffset(topic_id=A, topic="t", partition=0, offset=4)]
    )
    await plane.save_records(
        [RecordChange(kind="group", key="g", expected_version=0, rows={"": b"s"})]
    )
    await plane.allocate_producer_ids(10)


async def test_everything_is_there_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    first = SqliteControlPlane(path)
    await first.start()
    await fill(first)
    image = await first.image()
    await first.close()

    second = SqliteControlPlane(path)
    await second.start()
    # Whoever was registered is gone: the file has one owner, and that is another one now.
    assert await second.image() == replace(image, brokers=())
    assert [o.offset for o in await second.committed_offsets("g", None)] == [4]
    assert [(row.key, row.value) for row in await second.records("group", ["g"])] == [("g", b"s")]
    assert (await second.allocate_producer_ids(1)).start == 10
    broker = await second.register_broker(
        broker_id=1, host="h", port=1, rack=None, incarnation=UUID(int=2)
    )
    assert broker.epoch == 2
    await second.close()


async def test_a_second_owner_is_refused_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.control.drivers.sqlite_writer.BUSY_TIMEOUT_SECONDS", 0.1)
    path = tmp_path / "metadata.sqlite"
    owner = SqliteControlPlane(path)
    await owner.start()
    with pytest.raises(DatabaseLocked, match=r"metadata\.sqlite failed: database is locked"):
        await SqliteControlPlane(path).start()
    await owner.allocate_producer_ids(1)
    await owner.close()


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    plane = SqliteControlPlane(path)
    await plane.start()
    await plane.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()
    with pytest.raises(IncompatibleDatabase, match="at schema version 999"):
        await SqliteControlPlane(path).start()


async def test_a_foreign_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    with pytest.raises(IncompatibleDatabase, match="of another program"):
        await SqliteControlPlane(path).start()


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(DatabaseDamaged, match="not a database"):
        await SqliteControlPlane(path).start()


async def test_a_full_disk_fails_the_change_and_nothing_else(tmp_path: Path) -> None:
    plane = SqliteControlPlane(tmp_path / "metadata.sqlite")
    await plane.start()
    await plane.create_topic(name="a", topic_id=A, partitions=[[1]], configs={})
    before = await plane.image()

    def limit(connection: sqlite3.Connection) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")

    await plane._writer.run(limit)
    with pytest.raises(DatabaseFull, match="full"):
        await plane.create_topic(
            name="b", topic_id=UUID(int=2), partitions=[[1]] * 5000, configs={}
        )
    assert await plane.image() is before
    await plane._writer.run(lambda connection: connection.execute("PRAGMA max_page_count = 100000"))
    await plane.create_topic(name="b", topic_id=UUID(int=2), partitions=[[1]] * 5000, configs={})
    assert sorted((await plane.image()).topics) == ["a", "b"]
    await plane.close()


async def test_a_failed_sync_stops_the_database_permanently(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    plane = SqliteControlPlane(path)
    await plane.start()
    await plane.create_topic(name="a", topic_id=A, partitions=[[1]], configs={})
    before = await plane.image()

    def fail(connection: sqlite3.Connection) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error

    async def create() -> None:
        await plane.create_topic(name="b", topic_id=UUID(int=2), partitions=[[1]], configs={})

    results = await asyncio.gather(create(), plane._writer.run(fail), return_exceptions=True)
    assert [type(result) for result in results][1] is DatabaseStopped
    with pytest.raises(DatabaseStopped, match="disk I/O error"):
        await create()
    assert (await plane.image()) is before or results[0] is None
    await plane.close()
    await plane.start()
    await plane.delete_topic(A)
    await plane.close()


async def test_a_row_that_is_refused_fails_its_operation_alone(tmp_path: Path) -> None:
    plane = SqliteControlPlane(tmp_path / "metadata.sqlite")
    await plane.start()

    def violate(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO counters VALUES ('next_producer_id', 9)")

    def stumble(connection: sqlite3.Connection) -> None:
        raise KeyError("a fault of ours")

    results = await asyncio.gather(
        plane._writer.run(violate),
        plane._writer.run(stumble),
        plane.allocate_producer_ids(1),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [BugError, KeyError, range]
    await plane.close()


async def test_the_queue_is_bounded(tmp_path: Path) -> None:
    plane = SqliteControlPlane(tmp_path / "metadata.sqlite")
    await plane.start()
    entered, go_on = threading.Event(), threading.Event()

    def wait(connection: sqlite3.Connection) -> None:
        entered.set()
        go_on.wait(30)

    first = asyncio.ensure_future(plane._writer.run(wait))
    await asyncio.to_thread(entered.wait, 30)
    calls = [
        asyncio.ensure_future(plane.offset_group_ids()) for _ in range(WAITING_OPERATIONS_MAX + 1)
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # what a turn has gathered is queued at its end
    go_on.set()
    results = await asyncio.gather(first, *calls, return_exceptions=True)
    assert [type(result) for result in results if isinstance(result, Exception)] == [ControlBusy]
    await plane.close()


async def test_a_closed_plane_says_so(tmp_path: Path) -> None:
    plane = SqliteControlPlane(tmp_path / "metadata.sqlite")
    with pytest.raises(ControlUnavailable, match="not open"):
        await plane.image()
    await plane.start()
    await plane.close()
    with pytest.raises(ControlUnavailable, match="closed"):
        await plane.allocate_producer_ids(1)


async def test_a_cancelled_caller_does_not_affect_others(tmp_path: Path) -> None:
    plane = SqliteControlPlane(tmp_path / "metadata.sqlite")
    await plane.start()
    task = asyncio.ensure_future(plane.allocate_producer_ids(5))
    await asyncio.sleep(0)
    task.cancel()
    assert (await plane.allocate_producer_ids(5)).start in {0, 5}
    await plane.close()


async def on_threads(plane: SqliteControlPlane, *rows: int | None) -> list[bool]:
    """Return whether a turn's operations, of so many rows, run on the writer's thread."""

    def where(connection: sqlite3.Connection) -> bool:
        return threading.current_thread() is not threading.main_thread()

    return list(await asyncio.gather(*[plane._writer.run(where, rows=row) for row in rows]))


async def test_a_small_operation_that_is_alone_is_committed_on_the_loop(tmp_path: Path) -> None:
    plane = SqliteControlPlane(tmp_path / "metadata.sqlite")
    await plane.start()
    plane._writer._commit_seconds = 0.0  # type: ignore[attr-defined]
    assert await on_threads(plane, LOOP_ROWS_MAX) == [False]
    assert await on_threads(plane, LOOP_ROWS_MAX + 1) == [True]
    assert await on_threads(plane, None) == [True]
    assert await on_threads(plane, 1, LOOP_ROWS_MAX - 1) == [False, False]
    assert await on_threads(plane, 1, LOOP_ROWS_MAX) == [True, True]
    assert await on_threads(plane, 1, None) == [True, True]
    await plane.close()


@pytest.mark.parametrize("rows", [1, None], ids=["on the loop", "on the thread"])
@pytest.mark.parametrize("refused", [1, 2])
async def test_a_rejected_operation_undoes_itself_alone(
    tmp_path: Path, rows: int | None, refused: int
) -> None:
    plane = SqliteControlPlane(tmp_path / "metadata.sqlite")
    await plane.start()
    await plane._writer.run(lambda connection: connection.execute("CREATE TABLE seen (n)"))
    plane._writer._commit_seconds = 0.0  # type: ignore[attr-defined]

    def add(connection: sqlite3.Connection, number: int) -> int:
        connection.execute("INSERT INTO seen VALUES (?)", (number,))
        if number <= refused:
            raise StaleRecord("group", "g", 0, number)
        return number

    calls = [plane._writer.run(partial(add, number=number), rows=rows) for number in (1, 2, 3)]
    outcomes = await asyncio.gather(*calls[:refused], return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StaleRecord] * refused
    others = range(refused + 1, 4)
    assert await asyncio.gather(*calls[refused:]) == list(others)
    found = await plane._writer.run(
        lambda connection: connection.execute("SELECT n FROM seen ORDER BY n").fetchall()
    )
    assert found == [(number,) for number in others]
    await plane.close()


async def test_a_repeated_commit_of_an_offset_writes_one_page(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    plane = SqliteControlPlane(path)
    await plane.start()
    await fill(plane)
    sizes = []
    for number in range(10):
        one = CommittedOffset(topic_id=A, topic="t", partition=0, offset=number)
        await plane.commit_offsets(group_id="g", offsets=[one])
        sizes.append(Path(f"{path}-wal").stat().st_size)
    assert sizes[-1] - sizes[0] == 9 * (PAGE_BYTES + FRAME_HEADER_BYTES)
    await plane.close()


async def test_a_transaction_is_synced_if_one_of_its_operations_is(tmp_path: Path) -> None:
    plane = SqliteControlPlane(tmp_path / "metadata.sqlite")
    await plane.start()

    def synchronous(connection: sqlite3.Connection) -> str:
        return {1: "NORMAL", 2: "FULL"}[connection.execute("PRAGMA synchronous").fetchone()[0]]

    for synced, expected in [
        ([False], "NORMAL"),
        ([True], "FULL"),
        ([False, False], "NORMAL"),
        ([False, True], "FULL"),
        ([True, False], "FULL"),
        ([False], "NORMAL"),
    ]:
        plane._writer._commit_seconds = 0.0  # type: ignore[attr-defined]
        on_loop = [plane._writer.run(synchronous, rows=1, synced=each) for each in synced]
        assert await asyncio.gather(*on_loop) == [expected] * len(synced)
        on_thread = await plane._writer.run(synchronous, synced=synced[-1])
        assert on_thread == ("FULL" if synced[-1] else "NORMAL")
    await plane.close()


async def test_no_operation_overtakes_one_that_the_thread_has(tmp_path: Path) -> None:
    plane = SqliteControlPlane(tmp_path / "metadata.sqlite")
    await plane.start()
    entered, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def wait(connection: sqlite3.Connection) -> None:
        entered.set()
        go_on.wait(30)
        order.append("first")

    first = asyncio.ensure_future(plane._writer.run(wait))
    await asyncio.to_thread(entered.wait, 30)
    second = asyncio.ensure_future(
        plane._writer.run(lambda connection: order.append("second"), rows=1)
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(first, second)
    assert order == ["first", "second"]
    await plane.close()


async def test_after_a_slow_commit_the_thread_has_the_next_one(tmp_path: Path) -> None:
    plane = SqliteControlPlane(tmp_path / "metadata.sqlite")
    await plane.start()
    pause = threading.Event()
    await plane._writer.run(lambda connection: pause.wait(2 * LOOP_COMMIT_SECONDS_MAX))
    assert await on_threads(plane, 1) == [True]
    await plane.close()


async def test_what_fails_on_the_loop_fails_as_on_the_thread(tmp_path: Path) -> None:
    plane = SqliteControlPlane(tmp_path / "metadata.sqlite")
    await plane.start()

    def fail(connection: sqlite3.Connection) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error

    plane._writer._commit_seconds = 0.0  # type: ignore[attr-defined]
    with pytest.raises(DatabaseStopped, match="disk I/O error"):
        await plane._writer.run(fail, rows=1)
    with pytest.raises(DatabaseStopped, match="disk I/O error"):
        await plane.allocate_producer_ids(1)
    await plane.close()


async def test_the_write_ahead_log_is_copied_back(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    plane = SqliteControlPlane(path)
    await plane.start()
    sizes = []
    for _ in range(4):
        for number in range(CHECKPOINT_OPERATIONS + 1):
            change = RecordChange(
                kind="group", key=f"g{number}", expected_version=0, rows={"": bytes(2_000)}
            )
            await plane.save_records([change])
        sizes.append(Path(f"{path}-wal").stat().st_size)
    assert sizes[-1] < 2 * sizes[0], sizes
    await plane.close()


COMMITTER = """
import asyncio, sys
from pathlib import Path
from uuid import UUID
from penstock.control import CommittedOffset, SqliteControlPlane

async def main() -> None:
    plane = SqliteControlPlane(Path(sys.argv[1]))
    await plane.start()
    found = await plane.committed_offsets("g", None)
    number = found[0].offset if found else 0
    while True:
        number += 1
        one = CommittedOffset(topic_id=UUID(int=1), topic="t", partition=0, offset=number)
        await plane.commit_offsets_of([("g", [one])], synced=bool(int(sys.argv[2])))
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("synced", ["0", "1"], ids=["not synced", "synced"])
async def test_what_was_answered_outlives_a_kill(tmp_path: Path, synced: str) -> None:
    path = tmp_path / "metadata.sqlite"
    answered = 0
    for run in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", COMMITTER, str(path), synced], stdout=subprocess.PIPE, text=True
        )
        stream = process.stdout
        assert stream is not None
        for _ in range(20 + 7 * run):
            answered = int(stream.readline())
        os.kill(process.pid, signal.SIGKILL)
        rest = stream.read().split("\n")
        answered = max([answered, *(int(line) for line in rest[:-1] if line)])
        process.wait()
        stream.close()
    plane = SqliteControlPlane(path)
    await plane.start()
    (found,) = await plane.committed_offsets("g", None)
    assert found.offset in {answered, answered + 1}
    await plane.close()
