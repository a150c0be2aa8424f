"""Objects as files: what is synced when, what a failing disk leads to, where keys cannot lead."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import PenstockError
from penstock.base.files import BUFFERS_PER_CALL_MAX
from penstock.objects import (
    DirectoryStore,
    ObjectExists,
    ObjectNotFound,
    StoreClosed,
    StoreFailed,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from penstock.objects.directory import PARTIAL, PARTIAL_AGE_MS
from penstock.objects.port import LIST_PAGE_OBJECTS
from tests.faulty_files import FaultyFiles


def made(files: FaultyFiles) -> list[str]:
    """The calls that matter to what is durable, in their order."""
    return [name for name in files.calls if name not in {"open_file", "size", "close"}]


class Times:
    """A clock that is set."""

    def __init__(self, now_ms: int) -> None:
        self.at_ms = now_ms

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic(self) -> float:
        return self.at_ms / 1000


def partials(root: Path) -> list[str]:
    return sorted(os.listdir(root / PARTIAL))


async def test_an_object_is_synced_before_and_its_directory_after_the_link(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = DirectoryStore(tmp_path, files=files)
    files.calls.clear()
    await store.put("wal/7/a", [b"12", b"34"])
    assert made(files) == [
        "create", "write_at", "sync_file",
        "make_directory", "sync_directory", "open_directory",
        "make_directory", "sync_directory", "open_directory",
        "link", "sync_directory", "remove",
    ]  # fmt: skip
    files.calls.clear()
    await store.put("wal/7/b", [b"56"])
    assert made(files) == [
        "create", "write_at", "sync_file", "open_directory", "open_directory", "link",
        "sync_directory", "remove",
    ]  # fmt: skip
    assert partials(tmp_path) == []
    assert (tmp_path / "wal/7/a").read_bytes() == b"1234"
    await store.close()


async def test_a_directory_that_another_made_is_synced_once_more(tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    files = FaultyFiles()
    store = DirectoryStore(tmp_path, files=files)
    files.calls.clear()
    await store.put("wal/a", [b"1"])
    assert files.calls.count("sync_directory") == 2
    await store.close()


async def test_short_writes_are_gone_on_with(tmp_path: Path) -> None:
    files = FaultyFiles(write_bytes_max=7)
    store = DirectoryStore(tmp_path, files=files)
    pieces = [bytes([number]) * number for number in range(1, 30)]
    await store.put("a", pieces)
    assert (tmp_path / "a").read_bytes() == b"".join(pieces)
    await store.close()


async def test_more_pieces_than_one_call_takes(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    pieces = [b"%d," % number for number in range(3 * BUFFERS_PER_CALL_MAX)]
    await store.put("a", pieces)
    assert await store.get("a", 0, len(b"".join(pieces))) == b"".join(pieces)
    await store.close()


@pytest.mark.parametrize("call", ["sync_file", "sync_directory"])
async def test_a_failed_sync_is_final_until_the_store_is_reopened(
    tmp_path: Path, call: str
) -> None:
    files = FaultyFiles()
    store = DirectoryStore(tmp_path, files=files)
    await store.put("before", [b"1"])
    files.fail = lambda name, path: errno.EIO if name == call else None
    with pytest.raises(StoreFailed, match=r"sync of .* failed"):
        await store.put("a", [b"1"])
    files.fail = lambda name, path: None
    files.calls.clear()
    with pytest.raises(StoreFailed, match=r"sync of .* failed"):
        await store.put("b", [b"1"])
    assert files.calls == []
    assert bytes(await store.get("before", 0, 1)) == b"1"
    assert partials(tmp_path) == []
    await store.close()
    again = DirectoryStore(tmp_path)
    await again.put("b", [b"1"])
    await again.close()


@pytest.mark.parametrize(
    ("call", "number", "expected"),
    [
        ("create", errno.ENOSPC, StoreFull),
        ("write_at", errno.ENOSPC, StoreFull),
        ("write_at", errno.EDQUOT, StoreFull),
        ("sync_file", errno.ENOSPC, StoreFull),
        ("sync_directory", errno.ENOSPC, StoreFull),
        ("link", errno.ENOSPC, StoreFull),
        ("make_directory", errno.ENOSPC, StoreFull),
        ("create", errno.EMFILE, StoreUnavailable),
        ("open_directory", errno.ENFILE, StoreUnavailable),
        ("write_at", errno.EIO, StoreUnavailable),
        ("write_at", errno.ESTALE, StoreUnavailable),
        ("create", errno.EROFS, StoreRefused),
        ("create", errno.EACCES, StoreRefused),
        ("link", errno.EPERM, StoreRefused),
        ("write_at", errno.EFBIG, StoreRefused),
    ],
)
async def test_a_failed_put_leaves_nothing_and_the_next_may_succeed(
    tmp_path: Path, call: str, number: int, expected: type[PenstockError]
) -> None:
    files = FaultyFiles()
    store = DirectoryStore(tmp_path, files=files)
    files.fail = lambda name, path: number if name == call else None
    with pytest.raises(expected, match=f"{tmp_path}.*wal/a.*{os.strerror(number)}") as raised:
        await store.put("wal/a", [b"1"])
    assert type(raised.value) is expected
    files.fail = lambda name, path: None
    assert partials(tmp_path) == []
    await store.put("wal/b", [b"1"])
    assert bytes(await store.get("wal/b", 0, 1)) == b"1"
    await store.close()


async def test_a_real_full_disk_is_reported() -> None:
    if not os.path.exists("/dev/full"):
        pytest.fail("this machine has no /dev/full")

    def write_to_full(number: int, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "write_at":
            with open("/dev/full", "wb", buffering=0) as full:
                full.write(arguments[1][0])

    root = Path("/dev/shm") / f"penstock-{os.getpid()}-full"
    store = DirectoryStore(root, files=FaultyFiles(write_to_full))
    try:
        with pytest.raises(StoreFull, match="No space left on device"):
            await store.put("a", [b"1"])
    finally:
        await store.close()
        (root / PARTIAL).rmdir()
        root.rmdir()


NO_DESCRIPTOR = """
import asyncio, errno, os, resource, sys
from pathlib import Path
from penstock.objects import DirectoryStore, StoreUnavailable

async def refused(call):
    try:
        await call
    except StoreUnavailable as error:
        assert "Raise the limit of open files" in str(error)
    else:
        raise AssertionError("there was a descriptor")

async def main():
    store = DirectoryStore(Path(sys.argv[1]))
    await store.put("a", [b"1"])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        while True:
            held.append(os.dup(0))
    except OSError as error:
        assert error.errno == errno.EMFILE
    await refused(store.get("a", 0, 1))
    await refused(store.put("b", [b"1"]))
    for descriptor in held:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert bytes(await store.get("a", 0, 1)) == b"1"
    await store.put("b", [b"1"])
    await store.close()

asyncio.run(main())
"""


def test_no_free_descriptor_is_a_clear_error_and_passes(tmp_path: Path) -> None:
    """In a process of its own: this one's descriptors belong to many."""
    command = [sys.executable, "-c", NO_DESCRIPTOR, str(tmp_path)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [PARTIAL, "a", "b"]


def opened(root: Path) -> int:
    """Return the number of open descriptors at or below a root."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # others close theirs meanwhile
            found += Path(os.readlink(f"/proc/self/fd/{number}")).is_relative_to(root)
    return found


async def test_descriptors_do_not_leak(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    await store.put("a/b", [b"1"])
    assert opened(tmp_path) == 2
    for number in range(20):
        await store.put(f"a/{number}", [b"1"])
        with pytest.raises(ObjectExists):
            await store.put("a/b", [b"1"])
        with pytest.raises(ObjectNotFound):
            await store.get("a/none", 0, 1)
        with pytest.raises(ObjectNotFound):
            await store.get("none/none", 0, 1)
        assert [info.key async for info in store.list("")]
    assert opened(tmp_path) == 2
    await store.close()
    assert opened(tmp_path) == 0


async def test_symlinks_lead_nowhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    root = tmp_path / "root"
    store = DirectoryStore(root)
    (root / "link").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    with pytest.raises(StoreRefused):
        await store.get("link/secret", 0, 1)
    with pytest.raises(StoreRefused):
        await store.get("file", 0, 1)
    with pytest.raises(StoreRefused):
        await store.put("link/new", [b"1"])
    with pytest.raises(StoreRefused):
        await store.delete(["link/secret"])
    with pytest.raises(ObjectNotFound):
        await store.head("file")
    with pytest.raises(ObjectExists):
        await store.put("file", [b"1"])
    assert [info.key async for info in store.list("")] == []
    assert sorted(os.listdir(outside)) == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"
    await store.close()


async def test_only_old_partials_are_removed_at_an_opening(tmp_path: Path) -> None:
    now_ms = 1_800_000_000_000
    await DirectoryStore(tmp_path).close()
    ages = {"old": PARTIAL_AGE_MS, "young": PARTIAL_AGE_MS - 1000, "ahead": -5000}
    for name, age_ms in ages.items():
        path = tmp_path / PARTIAL / name
        path.write_bytes(b"half")
        os.utime(path, ns=((now_ms - age_ms) * 1_000_000,) * 2)
    store = DirectoryStore(tmp_path, clock=Times(now_ms))
    assert store.removed_partials == 1
    assert partials(tmp_path) == ["ahead", "young"]
    assert [info.key async for info in store.list("")] == []
    await store.close()


async def test_two_stores_share_a_directory(tmp_path: Path) -> None:
    one, other = DirectoryStore(tmp_path), DirectoryStore(tmp_path)
    await asyncio.gather(*(one.put(f"x/{n}", [b"one"]) for n in range(20)),
                         *(other.put(f"y/{n}", [b"other"]) for n in range(20)))  # fmt: skip
    assert bytes(await other.get("x/7", 0, 3)) == b"one"
    with pytest.raises(ObjectExists):
        await one.put("y/7", [b"1"])
    assert len([info async for info in one.list("")]) == 40
    await one.close()
    await other.close()


async def test_directories_removed_by_others_are_made_again(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    await store.put("a/b", [b"1"])
    await store.delete(["a/b"])
    (tmp_path / "a").rmdir()
    with pytest.raises(StoreUnavailable):
        await store.put("a/c", [b"1"])
    await store.put("a/d", [b"1"])
    assert (tmp_path / "a/d").exists()
    await store.close()


async def test_long_listings_come_in_pages(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    names = [f"{number:05}" for number in range(LIST_PAGE_OBJECTS * 2 + 1)]
    for name in names:
        (tmp_path / name).touch()
    assert [info.key async for info in store.list("")] == names
    await store.close()


async def test_a_closed_store_answers_nothing(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    await store.close()
    with pytest.raises(StoreClosed):
        await store.put("a", [b"1"])
    with pytest.raises(StoreClosed):
        await store.get("a", 0, 1)


def test_a_root_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreRefused, match="cannot open") as raised:
        DirectoryStore(tmp_path / "file")
    assert str(tmp_path) in str(raised.value)
