"""Full disks, failing syncs, small journals: refused cleanly, recovered from."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.base.ids import TopicPartition
from penstock.storage import (
    AppendBacklog,
    DiskFull,
    LogConfig,
    LogStore,
    StorageError,
    StorageFailed,
)
from tests.faulty_files import FaultyFiles
from tests.machine import disk_of, lacking, system_tool
from tests.storage.batches import TOPIC_ID, Harness, Owner, abandon, batch, offsets, read_all


def failing_sync(suffix: str) -> Callable[[str, str], int | None]:
    """Syncs of files with a suffix fail."""
    return lambda name, path: errno.EIO if name == "sync_file" and path.endswith(suffix) else None


@pytest.mark.parametrize("room", [0, 1, 100, 4096, 100_000])
def test_a_start_on_a_full_disk_names_the_place_and_the_remedy(tmp_path: Path, room: int) -> None:
    files = FaultyFiles()
    files.room = room
    with pytest.raises(DiskFull, match="free some space there") as refused:
        Harness(tmp_path, files=files)
    assert str(tmp_path) in str(refused.value)
    files.room = None
    harness = Harness(tmp_path, files=files)
    assert harness.put(batch()) == 0
    harness.store.close()


@pytest.mark.parametrize("room", [0, 1, 100, 4096, 5000, 100_000])
def test_a_full_disk_refuses_whole_groups_and_recovers(tmp_path: Path, room: int) -> None:
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    harness.put(batch(2, producer_id=5, epoch=0, sequence=0))
    log = harness.log()
    for _ in range(2):
        harness.append(batch(3, size=300_000, producer_id=5, epoch=0, sequence=2))
        harness.append(batch(size=300_000))
        files.room = room
        error = harness.commit()
        assert isinstance(error, DiskFull)
        assert error.code == "kafka_storage_error"
        assert str(tmp_path) in str(error)
        assert (log.log_end_offset, log.durable_offset) == (2, 2)
        assert offsets(read_all(log)) == [(0, 2)]
        assert harness.store.failed is None
    files.room = None
    assert harness.put(batch(3, producer_id=5, epoch=0, sequence=2)) == 2
    expected = read_all(log)
    harness.crash()
    assert read_all(harness.log()) == expected
    assert harness.put(batch()) == 5
    harness.store.close()


@pytest.mark.parametrize("room", [0, 1, 100])
def test_a_lone_append_of_policy_os_is_refused_whole_and_may_be_repeated(
    tmp_path: Path, room: int
) -> None:
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files, log_flush_policy="os")
    assert harness.put(batch(2, producer_id=5, epoch=0, sequence=0)) == 0
    log = harness.log()
    for _ in range(2):
        harness.append(batch(3, size=200, producer_id=5, epoch=0, sequence=2))
        files.room = room
        assert isinstance(harness.commit(), DiskFull)
        assert (log.log_end_offset, log.durable_offset, log.state.unwritten_bytes) == (2, 2, 0)
    files.room = None
    assert harness.put(batch(3, size=200, producer_id=5, epoch=0, sequence=2)) == 2
    assert harness.put(batch()) == 5
    expected = read_all(log)
    harness.store.close()
    harness = Harness(tmp_path, log_flush_policy="os")
    assert read_all(harness.log()) == expected
    harness.store.close()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO])
@pytest.mark.parametrize("create", [False, True])
def test_a_disk_that_takes_nothing_any_more_is_read(
    tmp_path: Path, number: int, *, create: bool
) -> None:
    """Also files that are not open: on a read-only one they cannot be opened to be written."""
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    harness.put(batch(2))
    done: list[StorageError | None] = []
    harness.store.checkpoint(done.append)
    assert done == [None]
    expected = read_all(harness.log())
    harness.crash()
    log = harness.log()
    refused = {"make_directory", "write_at", *(["open"] if number == errno.EROFS else [])}
    files.fail = lambda name, path: number if name in refused else None
    if create:
        with pytest.raises(StorageFailed, match="cannot create"):
            harness.store.create(TopicPartition("other", 0), topic_id=TOPIC_ID, leader_epoch=0)
    else:
        harness.append(batch())
        assert isinstance(harness.commit(), StorageFailed)
    assert os.strerror(number) in str(harness.store.failed)
    assert read_all(log) == expected
    with pytest.raises(StorageFailed):
        harness.append(batch())
    files.fail = lambda name, path: None
    harness.crash()
    assert read_all(harness.log()) == expected
    assert harness.put(batch()) == 2
    harness.store.close()


def test_a_refused_group_does_not_come_back_after_a_crash(tmp_path: Path) -> None:
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files, journal_file_bytes=1 << 20)
    harness.put(batch(2))
    for _ in range(10):
        harness.append(batch(size=150_000))
    files.room = 1_200_000
    assert isinstance(harness.commit(), DiskFull)
    files.room = None
    harness.crash()
    assert offsets(read_all(harness.log())) == [(0, 2)]
    assert harness.put(batch()) == 2
    harness.crash()
    assert harness.log().durable_offset == 3
    harness.store.close()


def test_segments_that_cannot_be_written_wait_in_memory_and_journal(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.full = lambda path: path.endswith(".log")
    harness = Harness(tmp_path, files=files)
    files.room = 1000
    for number in range(20):
        harness.put(batch(size=50_000, fill=number))
    log = harness.log()
    assert len(offsets(read_all(log))) == 20
    failures: list[StorageError | None] = []
    harness.store.checkpoint(failures.append)
    assert isinstance(failures[0], DiskFull)
    assert harness.store.failed is None
    files.room = None
    harness.store.checkpoint(failures.append)
    assert failures[1] is None
    expected = read_all(log)
    harness.crash()
    assert read_all(harness.log()) == expected
    harness.store.close()


def test_unwritten_appends_are_bounded_and_retried(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.full = lambda path: path.endswith(".log")
    harness = Harness(tmp_path, files=files, pending_bytes_max=1 << 20)
    files.room = 0
    for number in range(5):
        harness.put(batch(size=200_000, fill=number))
    with pytest.raises(DiskFull):
        harness.append(batch(size=200_000))
    assert harness.log().durable_offset == 5
    files.room = None
    harness.store.housekeeping(harness.clock.ms)
    assert harness.put(batch()) == 5
    assert len(offsets(read_all(harness.log()))) == 6
    harness.store.close()


def test_a_large_append_that_its_segment_cannot_take_is_refused(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.full = lambda path: path.endswith(".log")
    harness = Harness(tmp_path, files=files)
    harness.put(batch(2, size=300_000))
    path = tmp_path / "orders-0" / "00000000000000000000.log"
    size = path.stat().st_size
    files.room = 100_000
    for _ in range(2):
        harness.append(batch(3, size=300_000, fill=1))
        harness.append(batch(1, fill=2))
        assert isinstance(harness.commit(), DiskFull)
        assert harness.log().log_end_offset == 2
        assert path.stat().st_size == size
    files.room = None
    assert harness.put(batch(4, size=400_000, fill=3)) == 2
    expected = read_all(harness.log(), max_bytes=1 << 20)
    assert offsets(expected) == [(0, 2), (2, 6)]
    for way in (harness.crash, harness.reopen):
        way()
        assert read_all(harness.log(), max_bytes=1 << 20) == expected
    harness.store.close()


def test_a_large_append_is_written_once(tmp_path: Path) -> None:
    """The journal has where it is, beside a small one that it has whole."""
    harness = Harness(tmp_path)
    harness.append(batch(2, size=1_000_000, fill=1))
    harness.append(batch(1, fill=2))
    harness.append(batch(3, size=1_000_000, fill=3), partition=1)
    assert harness.commit() is None
    assert harness.store._journal.written_bytes == 4096
    expected = [read_all(harness.log(partition), max_bytes=4 << 20) for partition in range(2)]
    harness.crash()
    assert harness.store._recovered_entries == 1
    assert [
        read_all(harness.log(partition), max_bytes=4 << 20) for partition in range(2)
    ] == expected
    harness.store.close()


@pytest.mark.parametrize("fails", [False, True])
async def test_large_appends_of_a_group_are_synced_side_by_side(
    tmp_path: Path, fails: bool
) -> None:
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    await attached(harness)
    for number in range(4):
        for partition in range(6):
            harness.append(batch(2, size=300_000, fill=number), partition)
        if fails and number == 3:
            files.fail = failing_sync("orders-4/00000000000000000000.log")
        error = await committed(harness.store)
        assert isinstance(error, StorageFailed) if fails and number == 3 else error is None
    files.fail = lambda name, path: None
    harness.store._drain()
    harness.crash()
    for partition in range(6):
        kept = offsets(read_all(harness.log(partition), max_bytes=1 << 20))
        assert kept == [(base, base + 2) for base in range(0, 6 if fails else 8, 2)]
    harness.store.close()


async def test_a_log_deleted_while_its_group_waits_for_room(tmp_path: Path) -> None:
    harness = Harness(tmp_path, journal_file_bytes=1 << 16, journal_files_max=2)
    await attached(harness)
    for number in range(40):
        for partition in range(2):
            harness.append(batch(size=30_000, fill=number), partition)
        waiting = asyncio.ensure_future(committed(harness.store))
        await asyncio.sleep(0)
        if number % 3 == 0:
            harness.store.delete(harness.log(0).topic_partition)
        assert await waiting is None
    harness.store._drain()
    harness.crash()
    assert harness.log(1).durable_offset == 40
    assert len(offsets(read_all(harness.log(1)))) == 40
    harness.store.close()


def test_a_failed_sync_is_final(tmp_path: Path) -> None:
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    harness.put(batch(2))
    files.fail = failing_sync(".journal")
    harness.append(batch())
    assert isinstance(harness.commit(), StorageFailed)
    files.fail = lambda name, path: None
    log = harness.log()
    with pytest.raises(StorageFailed):
        log.append(batch(), now_ms=1)
    assert isinstance(harness.commit(), StorageFailed)
    assert harness.store.failed is not None
    assert log.durable_offset == 2
    harness.store.close()
    again = Harness(tmp_path)
    assert again.log().durable_offset in (2, 3)
    again.put(batch())
    again.store.close()


def test_a_failed_sync_of_a_segment_keeps_the_journal(tmp_path: Path) -> None:
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    harness.put(batch(2))
    files.fail = failing_sync(".log")
    failures: list[StorageError | None] = []
    harness.store.checkpoint(failures.append)
    assert isinstance(failures[0], StorageFailed)
    with pytest.raises(StorageFailed):
        harness.append(batch())
    harness.store.close()
    (tmp_path / "orders-0" / "00000000000000000000.log").write_bytes(b"")
    again = Harness(tmp_path)
    assert offsets(read_all(again.log())) == [(0, 2)]
    again.store.close()


def test_a_small_journal_makes_room_by_checkpoints(tmp_path: Path) -> None:
    harness = Harness(tmp_path, journal_file_bytes=1 << 16, journal_files_max=2)
    for number in range(60):
        harness.put(batch(size=30_000, fill=number), number % 2)
    assert harness.store._journal.file_count <= 3
    harness.append(batch(size=500_000))
    assert harness.commit() is None
    before = [read_all(harness.log(n)) for n in range(2)]
    harness.crash()
    assert [read_all(harness.log(n)) for n in range(2)] == before
    harness.store.close()


def test_queued_appends_are_bounded(tmp_path: Path) -> None:
    harness = Harness(tmp_path, pending_bytes_max=1 << 20)
    for _ in range(2):
        harness.append(batch(size=500_000))
    with pytest.raises(AppendBacklog):
        harness.append(batch(size=500_000))
    assert harness.commit() is None
    harness.append(batch(size=500_000))
    harness.store.close()
    harness = Harness(tmp_path)
    assert harness.log().durable_offset == 3
    harness.store.close()


async def attached(harness: Harness) -> None:
    """Let the store use its threads, with this loop."""
    harness.store.attach(asyncio.get_running_loop().call_soon_threadsafe)


async def committed(store: LogStore) -> StorageError | None:
    future: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()
    store.flush(future.set_result)
    store.commit_pending()
    return await future


@pytest.mark.parametrize("policy", ["group", "interval", "os"])
async def test_with_threads(tmp_path: Path, policy: str) -> None:
    harness = Harness(
        tmp_path,
        journal_file_bytes=1 << 20,
        journal_files_max=2,
        log_checkpoint_bytes=1 << 20,
        log_flush_policy=policy,
        log_flush_interval_ms=5,
    )
    await attached(harness)
    advanced: list[int] = []
    harness.store.on_advance = lambda owners: advanced.append(len(owners))
    for partition in range(4):
        harness.log(partition).state.owner = Owner([])
    for number in range(30):
        waiting = []
        for partition in range(4):
            harness.append(batch(size=40_000 + number, fill=number), partition)
            waiting.append(committed(harness.store))
        assert await asyncio.gather(*waiting) == [None] * 4
        assert {harness.log(n).durable_offset for n in range(4)} == {number + 1}
    assert sum(advanced) == 120
    before = [read_all(harness.log(n)) for n in range(4)]
    assert len(offsets(before[0])) == 30
    harness.store.close()
    harness = Harness(tmp_path)
    assert [read_all(harness.log(n)) for n in range(4)] == before
    harness.store.close()


async def test_a_group_that_fails_on_the_thread_takes_the_next_one_with_it(tmp_path: Path) -> None:
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    await attached(harness)
    harness.append(batch(size=400_000))
    files.room = 10
    first = asyncio.ensure_future(committed(harness.store))
    await asyncio.sleep(0)
    harness.append(batch())
    second = asyncio.ensure_future(committed(harness.store))
    assert isinstance(await first, DiskFull)
    assert isinstance(await second, DiskFull)
    assert harness.log().log_end_offset == 0
    files.room = None
    harness.append(batch(size=400_000))
    assert await committed(harness.store) is None
    assert harness.log().durable_offset == 1
    harness.store.close()


class SlowSyncer(FaultyFiles):
    """Keeps a checkpoint's small files back until a directory is renamed, or for a moment."""

    def __init__(self) -> None:
        super().__init__(self._hold, self._see)
        self.renamed = threading.Event()

    def _hold(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        small = name == "open" and str(arguments[0]).endswith(".tmp")
        if small and threading.current_thread() is not threading.main_thread():
            self.renamed.wait(0.3)

    def _see(self, number: int, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        if name == "rename" and os.path.isdir(arguments[1]):
            self.renamed.set()


async def test_deleting_while_a_checkpoint_waits_for_the_segments(tmp_path: Path) -> None:
    harness = Harness(tmp_path, files=SlowSyncer())
    await attached(harness)
    harness.append(batch(size=400_000))
    assert await committed(harness.store) is None
    harness.store.checkpoint()
    harness.store.delete(harness.log().topic_partition)
    harness.store._drain()
    assert harness.store.failed is None
    harness.append(batch(), 1)
    assert await committed(harness.store) is None
    harness.store.close()


async def test_deleting_while_a_group_is_under_way(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    await attached(harness)
    for _ in range(3):
        harness.append(batch(size=300_000), 0)
        harness.append(batch(size=300_000), 1)
        waiting = asyncio.ensure_future(committed(harness.store))
        await asyncio.sleep(0)
        harness.store.delete(harness.log(0).topic_partition)
        assert await waiting is None
        assert harness.log(0).log_end_offset == 0
    assert harness.log(1).durable_offset == 3
    harness.store.close()


@pytest.mark.parametrize("policy", ["interval", "os"])
@pytest.mark.parametrize(("config", "due"), [
    (LogConfig(), [0, 0, 0, 0]),
    (LogConfig(flush_messages=4), [0, 1, 0, 1]),
    (LogConfig(flush_ms=0), [1, 1, 1, 1]),
])  # fmt: skip
def test_topics_may_ask_for_syncs(
    tmp_path: Path, policy: str, config: LogConfig, due: list[int]
) -> None:
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files, config=config, log_flush_policy=policy)
    harness.log()
    found = []
    for _ in due:
        before = files.syncs
        harness.put(batch(2))
        found.append(files.syncs - before)
    assert found == due
    harness.store.close()


@pytest.mark.parametrize("policy", ["interval", "os"])
async def test_flush_ms_syncs_in_time(tmp_path: Path, policy: str) -> None:
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files, config=LogConfig(flush_ms=5), log_flush_policy=policy)
    await attached(harness)
    harness.append(batch())
    assert await committed(harness.store) is None
    before = files.syncs
    async with asyncio.timeout(60):
        while files.syncs == before:
            await asyncio.sleep(0.001)
    harness.store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of eight megabytes."""
    with disk_of("8m", tmp_path / "disk") as directory:
        yield directory


def test_a_real_full_disk(small_disk: Path) -> None:
    harness = Harness(small_disk / "data")
    log = harness.log()
    error: StorageError | None = None
    while error is None:
        harness.append(batch(size=300_000 if log.log_end_offset % 2 else 100_000))
        error = harness.commit()
    assert isinstance(error, DiskFull)
    count = log.durable_offset
    assert 5 < count < 40
    assert log.log_end_offset == count
    before = read_all(log, max_bytes=1 << 20)
    abandon(harness.store)
    for journal in (small_disk / "data" / "journal").iterdir():
        assert journal.stat().st_size <= 8 << 20
    subprocess.run(["mount", "-o", "remount,size=32m", str(small_disk)], check=True)
    again = Harness(small_disk / "data")
    assert read_all(again.log(), max_bytes=1 << 20) == before
    assert again.put(batch()) == count
    again.store.close()


EIO_SCRIPT = """
import sys
from pathlib import Path
from tests.storage.batches import Harness, batch

harness = Harness(Path(sys.argv[1]))
harness.put(batch())
for _ in range(5):
    try:
        harness.append(batch())
    except Exception as error:
        print("refused", type(error).__name__)
        continue
    print(type(harness.commit()).__name__, harness.log().durable_offset)
"""


def test_eio_from_the_kernel(tmp_path: Path) -> None:
    """Inject EIO into one fdatasync of the process with `strace`; the log must stop."""
    strace = system_tool("strace", "strace")
    root = Path(__file__).resolve().parents[2]
    command = [
        strace, "-f", "-qq", "-o", str(tmp_path / "trace"), "-e", "trace=fdatasync",
        "-e", "inject=fdatasync:error=EIO:when=8",
        sys.executable, "-c", EIO_SCRIPT, str(tmp_path / "data"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    if "ptrace" in done.stderr.lower():
        lacking("strace may not trace here")
    lines = done.stdout.split("\n")[:-1]
    assert "StorageFailed" in done.stdout, done.stdout + done.stderr
    failed = next(n for n, line in enumerate(lines) if line.startswith("StorageFailed"))
    assert all(line.startswith("NoneType") for line in lines[:failed])
    assert set(lines[failed + 1 :]) <= {"refused StorageFailed"}
    again = Harness(tmp_path / "data")
    assert again.log().durable_offset >= failed + 1
    again.store.close()


async def test_a_checkpoint_does_not_cover_a_group_that_is_not_applied(tmp_path: Path) -> None:
    """The thread has synced a group that is not applied to the loop's logs: its segments are not
    written, so the journal must keep it if the power fails after the checkpoint."""
    root = tmp_path / "root"
    root.mkdir()
    files = FaultyFiles(root=root)
    harness = Harness(root, files=files)
    harness.put(batch(size=30))
    await attached(harness)
    harness.append(batch(size=400_000))
    waiting = asyncio.ensure_future(committed(harness.store))
    await asyncio.sleep(0)
    before = harness.store._journal.durable_sequence
    assert harness.store._writer._finished.wait(60)
    assert harness.store._journal.durable_sequence > before
    harness.store._syncer._call_soon = None  # the checkpoint is done here and now
    harness.store._segment_worker._call_soon = None
    harness.store.checkpoint()
    assert await waiting is None
    found = tmp_path / "found"
    files.disk_after().after_power_loss().put(found)
    harness.store.close()
    again = Harness(found)
    assert again.log().durable_offset == 2
    again.store.close()
