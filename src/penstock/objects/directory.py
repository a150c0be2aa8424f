"""Object stores in a directory, local to one broker or shared by all, and in memory, for tests.

A put writes `.partial/<name>` and syncs it. It then links the file to the path of its key, and
syncs the directory of the link. Directories above it are synced once each. An object is therefore
visible only as a whole, and is on disk when `put` returns. A link never replaces an object.
Files in `.partial` that are older than `PARTIAL_AGE_MS` are leftovers of a crash. They are removed
when a store is opened. Other brokers may be writing younger files.

Paths are opened directory by directory from the root, without following symlinks. After a failed
sync, except on a full disk, the store accepts no objects until it is reopened. The kernel may have
dropped the bytes, and a second sync would succeed (the "fsyncgate" of 2018).

Empty directories of deleted objects stay. The keys `a` and `a/b` cannot both exist.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import stat
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from penstock.base.files import MACHINE_FILES, Files, read_range, write_all
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.objects.port import (
    LIST_PAGE_OBJECTS,
    Buffer,
    ObjectExists,
    ObjectInfo,
    ObjectNotFound,
    ObjectTruncated,
    StoreFailed,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    check_key,
    check_prefix,
    check_range,
)
from penstock.objects.settings import DIRECTORY_THREADS
from penstock.objects.threads import Threads

DIRECTORY_WAITING_MAX: Final = 4096
"""Calls that may wait for a thread. Further ones fail with `StoreThrottled`."""
PARTIAL_AGE_MS: Final = 3_600_000
"""Age from which opening a store removes an unfinished file.

No write takes that long, but other brokers may be writing younger files.
"""
PARTIAL_REMOVALS_MAX: Final = 10_000
"""Unfinished files that opening a store checks and removes."""
DURABLE_DIRECTORIES_MAX: Final = 65_536
"""Directories remembered as synced. Beyond it, all are forgotten and synced again."""

T = TypeVar("T")
PARTIAL: Final = ".partial"
_ABSENT: Final = frozenset({errno.ENOENT, errno.EISDIR})
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_REFUSED: Final = frozenset(
    {
        errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG,
        errno.EFBIG, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS,
        errno.EXDEV, errno.EINVAL, errno.EEXIST,
    }
)  # fmt: skip


class DirectoryStore:
    """Object store below one root directory, which is created if it is missing.

    Raises:
        StoreRefused: the root cannot be created or opened.
    """

    def __init__(
        self,
        root: Path,
        *,
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
        files: Files = MACHINE_FILES,
        threads_max: int = DIRECTORY_THREADS,
    ) -> None:
        self.root = root
        self._files = files
        self._threads = Threads(
            "object-store", threads_max=threads_max, waiting_max=DIRECTORY_WAITING_MAX
        )
        self._stem = randomness.uuid().hex
        self._numbers = itertools.count()
        self._durable: set[str] = set()
        self._failed: str | None = None
        with self._errors("open", str(root)):
            root.mkdir(parents=True, exist_ok=True)
            self._root = self._files.open_directory(root)
            with suppress(FileExistsError):
                self._files.make_directory(PARTIAL, self._root)
            self._partial = self._files.open_directory(PARTIAL, self._root)
            self.removed_partials = self._remove_partials(clock.now_ms())

    async def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        check_key(key)
        self._check_writable()
        await self._threads.run(lambda: self._put(key, pieces))

    async def upload(self, key: str, pieces: AsyncIterator[Buffer]) -> int:
        check_key(key)
        self._check_writable()
        name = self._new_name()
        size = 0
        try:
            file = await self._whole(lambda: self._create(name, key))
            try:
                async for piece in pieces:
                    size = await self._whole(partial(self._write, key, file, size, piece))
                await self._whole(lambda: self._finish(key, file, size))
            finally:
                await self._whole(lambda: self._files.close(file))
            await self._whole(lambda: self._publish(name, key))
        finally:
            await self._whole(lambda: self._discard(name))
        return size

    async def _whole(self, job: Callable[[], T]) -> T:
        """Run a job on a thread.

        After a cancellation, wait for its end, because the job uses a file.
        """
        task = asyncio.ensure_future(self._threads.run(job))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise

    async def get(self, key: str, start: int, size_bytes: int) -> memoryview:
        check_range(key, start, size_bytes)
        return await self._threads.run(lambda: self._get(key, start, size_bytes))

    async def head(self, key: str) -> ObjectInfo:
        check_key(key)
        return await self._threads.run(lambda: self._head(key))

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        await self._threads.run(lambda: self._delete(keys))

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        found = self._walk(prefix[: prefix.rfind("/") + 1], prefix, after)

        def page() -> list[ObjectInfo]:
            with self._errors("list", prefix):
                return list(itertools.islice(found, LIST_PAGE_OBJECTS))

        while infos := await self._threads.run(page):
            for info in infos:
                yield info

    async def close(self) -> None:
        await self._threads.close()
        root, self._root = self._root, -1
        partial, self._partial = self._partial, -1
        if root >= 0 and not self._threads.outstanding:
            self._files.close(root)
            self._files.close(partial)

    def _put(self, key: str, pieces: Sequence[Buffer]) -> None:
        name = self._new_name()
        try:
            file = self._create(name, key)
            try:
                size = self._write(key, file, 0, *pieces)
                self._finish(key, file, size)
            finally:
                self._files.close(file)
            self._publish(name, key)
        finally:
            self._discard(name)

    def _new_name(self) -> str:
        return f"{self._stem}-{next(self._numbers)}"

    def _create(self, name: str, key: str) -> int:
        with self._errors("write", key):
            return self._files.create(name, self._partial)

    def _write(self, key: str, file: int, position: int, *pieces: Buffer) -> int:
        views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
        with self._errors("write", key):
            return write_all(self._files, file, position, views)

    def _finish(self, key: str, file: int, size: int) -> None:
        """Sync a completely written file, and check its size."""
        with self._errors("write", key):
            self._sync(lambda: self._files.sync_file(file), f"object {key}")
            written = self._files.size(file)
        if written != size:
            raise StoreUnavailable(f"object {key} has {written} of {size} written bytes")

    def _discard(self, name: str) -> None:
        with suppress(OSError):
            self._files.remove(name, self._partial)

    def _publish(self, name: str, key: str) -> None:
        with (
            self._errors("write", key),
            self._directory(key, make=True) as (directory, target),
        ):
            self._check_writable()
            try:
                self._files.link(name, target, self._partial, directory)
            except FileExistsError:
                # A file server that repeats a call after a lost response finds its own link.
                if os.stat(name, dir_fd=self._partial, follow_symlinks=False).st_nlink < 2:
                    raise ObjectExists(key) from None
            self._sync(lambda: self._files.sync_directory(directory), f"the directory of {key}")

    def _get(self, key: str, start: int, size_bytes: int) -> memoryview:
        with self._errors("read", key, absent=key), self._directory(key) as (directory, name):
            file = self._files.open_file(name, directory)
            try:
                content = read_range(self._files, file, size_bytes, start)
                if len(content) < size_bytes:
                    size, left = self._files.size(file), memoryview(content) or None
                    raise ObjectTruncated(key, start, size_bytes, size, content=left)
            finally:
                self._files.close(file)
        return memoryview(content)

    def _head(self, key: str) -> ObjectInfo:
        with self._errors("look at", key, absent=key), self._directory(key) as (directory, name):
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                raise ObjectNotFound(key)
            return ObjectInfo(key, found.st_size, found.st_mtime_ns // 1_000_000)

    def _delete(self, keys: Sequence[str]) -> None:
        for _, group in itertools.groupby(sorted(keys), key=lambda key: key.rpartition("/")[0]):
            self._delete_of(list(group))

    def _delete_of(self, keys: Sequence[str]) -> None:
        with (
            self._errors("delete", keys[0]),
            suppress(FileNotFoundError),
            self._directory(keys[0]) as (directory, _),
        ):
            for key in keys:
                with suppress(FileNotFoundError, IsADirectoryError):
                    self._files.remove(key.rpartition("/")[2], directory)
            self._files.sync_directory(directory)

    def _walk(self, parent: str, prefix: str, after: str) -> Iterator[ObjectInfo]:
        """Yield the objects below a directory, sorted by key. `parent` ends with a slash."""
        for key, entry in self._entries(parent):
            if entry is None:
                if key.startswith(prefix) and key + "\x7f" > after:
                    yield from self._walk(key, prefix, after)
            elif key > after and key.startswith(prefix):
                yield ObjectInfo(key, entry.st_size, entry.st_mtime_ns // 1_000_000)

    def _entries(self, parent: str) -> Sequence[tuple[str, os.stat_result | None]]:
        found: list[tuple[str, os.stat_result | None]] = []
        try:
            with self._directory(parent + "-") as (directory, _), os.scandir(directory) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        found.append((f"{parent}{entry.name}/", None))
                    elif entry.is_file(follow_symlinks=False):
                        with suppress(FileNotFoundError):
                            size = entry.stat(follow_symlinks=False)
                            found.append((parent + entry.name, size))
        except FileNotFoundError:
            return []
        found.sort(key=lambda item: item[0])
        return found

    @contextmanager
    def _directory(self, key: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yield the open directory of a key, and the last part of the key."""
        *parts, name = key.split("/")
        directory = os.dup(self._root)
        try:
            for depth, part in enumerate(parts):
                path = "/".join(parts[: depth + 1])
                if make and path not in self._durable:
                    self._make(directory, part, path)
                below = self._files.open_directory(part, directory)
                self._files.close(directory)
                directory = below
            yield directory, name
        finally:
            self._files.close(directory)

    def _make(self, directory: int, part: str, path: str) -> None:
        """Create a directory and sync its parent, even if another writer has created it."""
        with suppress(FileExistsError):
            self._files.make_directory(part, directory)
        self._sync(lambda: self._files.sync_directory(directory), f"the directory of {path}")
        if len(self._durable) >= DURABLE_DIRECTORIES_MAX:
            self._durable.clear()
        self._durable.add(path)

    def _sync(self, sync: Callable[[], None], what: str) -> None:
        try:
            sync()
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise
            self._failed = f"{self.root}: the sync of {what} failed: {error.strerror}"
            raise StoreFailed(self._failed) from error

    def _check_writable(self) -> None:
        if self._failed is not None:
            raise StoreFailed(self._failed)

    def _remove_partials(self, now_ms: int) -> int:
        removed = 0
        with os.scandir(self._partial) as entries:
            for entry in itertools.islice(entries, PARTIAL_REMOVALS_MAX):
                with suppress(FileNotFoundError):
                    modified_ms = entry.stat(follow_symlinks=False).st_mtime_ns // 1_000_000
                    if now_ms - modified_ms >= PARTIAL_AGE_MS:
                        self._files.remove(entry.name, self._partial)
                        removed += 1
        return removed

    @contextmanager
    def _errors(self, doing: str, key: str, *, absent: str | None = None) -> Iterator[None]:
        """Convert OSErrors to errors of this package.

        If `absent` is set, a missing file raises ObjectNotFound with this key.
        """
        try:
            yield
        except OSError as error:
            if absent is not None and error.errno in _ABSENT:
                raise ObjectNotFound(absent) from error
            raise self._error(error, f"{self.root}: cannot {doing} {key}".rstrip()) from error

    def _error(self, error: OSError, what: str) -> StoreUnavailable | StoreRefused:
        reason = error.strerror or str(error)
        if error.errno == errno.ENOENT:
            self._durable.clear()  # Directories were removed from outside: create them again.
        if error.errno in _NO_ROOM:
            return StoreFull(f"{what}: {reason}")
        if error.errno in _NO_DESCRIPTORS:
            return StoreUnavailable(f"{what}: {reason}. Raise the limit of open files (ulimit -n).")
        kind = StoreRefused if error.errno in _REFUSED else StoreUnavailable
        return kind(f"{what}: {reason}")


class MemoryStore:
    """A dictionary with the interface of a store. All users of an instance share its objects."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._objects: dict[str, tuple[bytes, int]] = {}

    def __len__(self) -> int:
        return len(self._objects)

    async def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        check_key(key)
        if key in self._objects:
            raise ObjectExists(key)
        self._objects[key] = (b"".join(pieces), self._clock.now_ms())

    async def upload(self, key: str, pieces: AsyncIterator[Buffer]) -> int:
        content = [bytes(piece) async for piece in pieces]
        await self.put(key, content)
        return sum(map(len, content))

    async def get(self, key: str, start: int, size_bytes: int) -> memoryview:
        check_range(key, start, size_bytes)
        content = self._content(key)[0]
        if start + size_bytes > len(content):
            left = memoryview(content)[start:] or None
            raise ObjectTruncated(key, start, size_bytes, len(content), content=left)
        return memoryview(content)[start : start + size_bytes]

    async def head(self, key: str) -> ObjectInfo:
        check_key(key)
        content, modified_ms = self._content(key)
        return ObjectInfo(key, len(content), modified_ms)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        for key in keys:
            self._objects.pop(key, None)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        keys = sorted(key for key in self._objects if key.startswith(prefix))
        for key in keys[bisect_right(keys, after) :]:
            found = self._objects.get(key)
            if found is not None:
                yield ObjectInfo(key, len(found[0]), found[1])

    async def close(self) -> None:
        """Do nothing. Other users of the store keep its objects."""

    def _content(self, key: str) -> tuple[bytes, int]:
        found = self._objects.get(key)
        if found is None:
            raise ObjectNotFound(key)
        return found
