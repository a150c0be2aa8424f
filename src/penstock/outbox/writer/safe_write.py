"""Safe write: the file calls that write one payload below the root, and the handling of failures.

    walk to the hour's directory, creating missing ones
    -> create the batch directory -> compare data.bin, unless the directory is new
    -> create data.bin.tmp.<token>.<attempt>, exclusively -> write, 1,024 buffers at a time,
       computing the checksum of each slice just before it, while earlier ones are written back
    -> record the checksum -> sync -> close
    -> rename to data.bin, never over an existing file
    -> sync the batch's directory and every parent whose entry may not be durable -> done

`SafeWrite` does all I/O through the `Files` interface. It guarantees:

- **Nothing is partially visible.** Readers open only `data.bin`. One rename creates it, from a file
  that is complete and closed, because a network file system reports failed writes at close. A
  durable file is also synced before.
- **No file is replaced.** With a check of the name before a plain rename, two writers of a batch
  could both find nothing. The second would then replace the acknowledged file of the first. So the
  rename is `renameat2(RENAME_NOREPLACE)`. Without it (NFS), the file is linked to its final name,
  which fails if the name exists, and the temporary name is removed. A file system that supports
  neither is rejected.
- **A repeated write is recognised by content.** If `data.bin` exists with the payload's size and
  checksum, the write succeeds. Otherwise it is a conflict. A durable write stores its checksum in
  an extended attribute before it syncs, so a retry needs one call to find it. A file without the
  attribute is read once. It comes from an older writer, or its file system has no attributes, or
  its write was not durable. A power failure may have torn a file that is not durable. A durable
  write syncs an existing file and its directories again, because its writer may have died before.
- **Directories are synced too.** A crash loses a file if a directory entry at any level was not
  synced. The creator of an existing directory may not have synced it. So the first durable write to
  an hour syncs all levels from the root. Later writes of the same process sync only the batch's
  directory and the hour's.
- **A failed sync ends the attempt.** The kernel may have dropped the pages. It would then report a
  second sync of the file as success (PostgreSQL's "fsyncgate"). So the file is discarded, and a
  retry writes a new one. The retry opens directories again and syncs them. This is sound,
  because a file system that fails to write its metadata stops accepting writes.

Source: `filesystem-outbox.txt`, "The safe-write protocol, in detail"; renameat2(2), fsync(2).
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from penstock.base.crc import crc32c
from penstock.base.errors import PenstockError
from penstock.base.files import MACHINE_FILES, Files
from penstock.outbox.errors import (
    BatchConflict,
    InvalidPayload,
    OutboxClosed,
    PathEscapes,
    RootUnavailable,
    StorageFull,
    UnfitFileSystem,
    WriteFailed,
    storage_error,
)
from penstock.outbox.layout import BATCH_PREFIX, DATA_FILE

PAYLOAD_BUFFERS_MAX: Final = 1 << 20
"""Buffers of one payload."""

Buffer = bytes | bytearray | memoryview
"""Bytes. At run time, any object with contiguous memory is accepted, including Arrow buffers."""
Payload = Buffer | Sequence[Buffer]


def as_buffers(payload: Payload) -> tuple[list[memoryview], int]:
    """Return one-dimensional views of a payload's buffers, and its size in bytes.

    Empty buffers are left out.

    Raises:
        InvalidPayload: it is not made of contiguous buffers, or there are too many.
    """
    parts = payload if isinstance(payload, (list, tuple)) else (payload,)
    if len(parts) > PAYLOAD_BUFFERS_MAX:
        raise InvalidPayload(f"payload: {len(parts)} buffers; the limit is {PAYLOAD_BUFFERS_MAX}")
    try:
        views = [memoryview(part) for part in parts]
        flat = [view if view.format == "B" and view.ndim == 1 else view.cast("B") for view in views]
    except TypeError as error:
        raise InvalidPayload(f"payload: not contiguous bytes: {error}") from None
    buffers = [view for view in flat if view.nbytes]
    return buffers, sum([view.nbytes for view in buffers])


def checksum(buffers: Sequence[memoryview], initial: int = 0) -> int:
    if len(buffers) > 1 and sum([view.nbytes for view in buffers]) < len(buffers) << 10:
        # For small buffers a call each costs more than a copy.
        return crc32c(b"".join(buffers), initial)
    for view in buffers:
        initial = crc32c(view, initial)
    return initial


GATHER_BUFFERS_MAX: Final = 1024
"""Buffers of one `writev` call, at most IOV_MAX of Linux."""
SLICE_BYTES: Final = 1 << 20
"""Bytes of one `writev` call, so that they are still in the processor's cache after their checksum.

With smaller slices, a thread waits for the interpreter's lock more often.

After each call, the kernel is told to write these bytes to disk while the next are prepared.
"""
MISSING_MAX: Final = 16
"""Missing files and directories that one attempt tolerates.

A sweeper may remove directories meanwhile.
"""

NO_HANDLE: Final = -1
CHECKSUM_ATTRIBUTE: Final = "user.penstock.crc32c"
"""Name of the extended attribute with a payload's CRC32C in 8 hexadecimal digits."""
_CHECKSUM: Final = re.compile(rb"[0-9a-f]{8}")
_MISSING: Final = frozenset({errno.ENOENT, errno.ESTALE})
# EPERM: a container's filter that rejects the call.
_NO_RENAME: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})
_NO_LINK: Final = _NO_RENAME | {errno.EMLINK}


class Modes(Struct, frozen=True, kw_only=True):
    """Permissions of created files and directories.

    If `opened` is true, they are set after the creation too, so that the umask does not reduce
    them.
    """

    file: int
    directory: int
    opened: bool = True


MODES: Final = {
    "owner": Modes(file=0o600, directory=0o700, opened=False),
    "group": Modes(file=0o640, directory=0o750),
    "all": Modes(file=0o644, directory=0o755),
}
"""Permissions by the value of `outbox.access`. Only the owner may write."""


class WritePlan(Struct, frozen=True, kw_only=True):
    """Parameters of one attempt to write a batch.

    `hour_directory` and `batch_name` come from `layout`, and `buffers` from `as_buffers`. The
    memory of the buffers must not change until the attempt has ended.
    """

    hour_directory: str
    batch_name: str
    temporary_name: str
    buffers: Sequence[memoryview]
    size_bytes: int
    durable: bool
    modes: Modes = MODES["owner"]


class Written(Struct, frozen=True, kw_only=True):
    """A complete file. `existing` is true if an earlier attempt or another writer wrote it."""

    size_bytes: int
    crc32c: int
    existing: bool


class _Vanished(Exception):
    """A directory was removed during the write, by a sweeper."""


class SafeWrite:
    """Attempt to write a batch.

    `root` is the handle of the root. `hour` is the handle of the hour's directory, if the caller
    has kept it open, or `NO_HANDLE`. `hour_durable`: all its parents are durable.

    `run` closes all handles that it opens, except for the hour's directory (`opened_hour`), which
    the caller keeps or closes. If `hour_is_stale` is true afterwards, the caller must not use its
    handle `hour` again.
    """

    def __init__(
        self,
        plan: WritePlan,
        files: Files,
        *,
        root: int,
        hour: int = NO_HANDLE,
        hour_durable: bool = False,
    ) -> None:
        self._plan = plan
        self._files = files
        self._root = root
        self._levels: list[int] = []  # handles of the root and the directories below it
        self._hour = hour if hour_durable or not plan.durable else NO_HANDLE
        self._batch = NO_HANDLE
        self._file = NO_HANDLE
        self._temporary = False  # our temporary file exists
        self._doing = ""  # for the text of an error
        self._missing = 0
        self.opened_hour = NO_HANDLE
        self.hour_durable = hour_durable
        self.hour_is_stale = False

    @property
    def path(self) -> str:
        return f"{self._plan.hour_directory}/{self._plan.batch_name}/{DATA_FILE}"

    def run(self) -> Written:
        """Make the attempt. Return when the file is complete.

        Raises:
            PenstockError: the attempt failed and nothing of it is visible. Exception: if only the
                sync of a directory failed, the payload is visible but may not survive a crash.
        """
        try:
            while True:
                try:
                    return self._attempt()
                except _Vanished:
                    self._begin_again()
        except OSError as error:
            raise self._explained(error.errno or errno.EIO) from error
        finally:
            self._retreat()

    def _attempt(self) -> Written:
        self._open_directories()
        is_new = self._open_batch()
        found = None if is_new else self._find()
        while found is None:
            crc = self._write_temporary()
            if self._publish():
                found = Written(size_bytes=self._plan.size_bytes, crc32c=crc, existing=False)
            else:
                found = self._find()
        if self._plan.durable:
            self._sync_directories()
        return found

    def _open_directories(self) -> None:
        if self._hour != NO_HANDLE:
            return
        above = self._root
        for name in (".", *self._plan.hour_directory.split("/")):
            if above != self._root:
                self._levels.append(above)
            above = self._open_level(above, name)
        self._hour = self.opened_hour = above

    def _open_level(self, above: int, name: str) -> int:
        is_new = False
        while True:
            self._doing = "open directory"
            try:
                handle = self._files.open_directory(name, above)
            except OSError as error:
                self._check_missing(error)
            else:
                break
            is_new = self._make_directory(above, name)
        if is_new:
            try:
                self._open_to(handle, self._plan.modes.directory)
            except OSError:
                self._files.close(handle)
                raise
        return handle

    def _open_to(self, handle: int, mode: int) -> None:
        if self._plan.modes.opened:
            self._files.set_mode(handle, mode)

    def _make_directory(self, above: int, name: str) -> bool:
        """Create a directory and return whether it is new.

        Raises _Vanished if its parent is gone.
        """
        self._doing = "make directory"
        try:
            self._files.make_directory(name, above, self._plan.modes.directory)
        except OSError as error:
            if error.errno == errno.EEXIST:
                return False
            self._check_missing(error)
            raise _Vanished from error
        return True

    def _open_batch(self) -> bool:
        is_new = self._make_directory(self._hour, self._plan.batch_name)
        self._doing = "open directory"
        try:
            self._batch = self._files.open_directory(self._plan.batch_name, self._hour)
        except OSError as error:
            self._check_missing(error)
            raise _Vanished from error
        if is_new:
            self._open_to(self._batch, self._plan.modes.directory)
        return is_new

    def _check_missing(self, error: OSError) -> None:
        """Raise the error again, unless it is a missing name that is tolerated (`MISSING_MAX`)."""
        self._missing += error.errno in _MISSING
        if error.errno not in _MISSING or self._missing > MISSING_MAX:
            raise error

    def _find(self) -> Written | None:
        """Return the existing file if it has the payload, or None if there is no file.

        Raises BatchConflict if the file has other content.
        """
        plan = self._plan
        try:
            self._doing = "look"
            size_bytes = self._files.size_of(DATA_FILE, self._batch)
            self._doing = "open data"
            self._file = self._files.open_file(DATA_FILE, self._batch)
        except OSError as error:
            self._check_missing(error)
            return None
        try:
            found = (size_bytes, self._recorded_checksum())
        except OSError:  # no attribute, or not supported
            found = self._read(size_bytes)
        crc = checksum(plan.buffers)
        if found != (plan.size_bytes, crc):
            raise BatchConflict(
                plan.batch_name.removeprefix(BATCH_PREFIX),
                self.path,
                found=found,
                expected=(plan.size_bytes, crc),
            )
        if plan.durable:
            self._doing = "sync"
            self._files.sync_file(self._file)
        with suppress(OSError):  # opened for reading only
            self._close_file()
        return Written(size_bytes=plan.size_bytes, crc32c=crc, existing=True)

    def _recorded_checksum(self) -> int:
        text = self._files.attribute(self._file, CHECKSUM_ATTRIBUTE)
        if not _CHECKSUM.fullmatch(text):
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), CHECKSUM_ATTRIBUTE)
        return int(text, 16)

    def _read(self, size_bytes: int) -> tuple[int, int]:
        self._doing = "read"
        buffer = memoryview(bytearray(SLICE_BYTES))
        read = crc = 0
        while True:
            count = self._files.read(self._file, (buffer,))
            crc = checksum([buffer[:count]], crc)
            read += count
            if not count or read >= size_bytes:
                return read, crc

    def _write_temporary(self) -> int:
        plan, files = self._plan, self._files
        self._doing = "create"
        try:
            self._file = files.create(plan.temporary_name, self._batch, plan.modes.file)
        except OSError as error:
            self._check_missing(error)
            raise _Vanished from error
        self._temporary = True
        self._open_to(self._file, plan.modes.file)
        self._doing = "write"
        crc, resting, left = 0, 0, plan.size_bytes
        for pieces in _slices(plan.buffers):
            crc = checksum(pieces, crc)
            while pieces:
                count = files.write(self._file, pieces)
                if count <= 0:
                    raise WriteFailed(f"write {self.path}: the call wrote no bytes")
                pieces = _behind(pieces, count)
                resting, left = resting + count, left - count
                # The last slice needs no hint, since its sync follows.
                if plan.durable and left and resting >= SLICE_BYTES:
                    with suppress(OSError):  # only a hint: the sync reports errors
                        files.start_write_back(self._file)
                        resting = 0
        if plan.durable:
            with suppress(OSError):  # if not supported, a retry reads the file
                files.set_attribute(self._file, CHECKSUM_ATTRIBUTE, b"%08x" % crc)
            self._doing = "sync"
            files.sync_file(self._file)
        self._doing = "close"
        self._close_file()
        return crc

    def _publish(self) -> bool:
        """Rename the temporary file. Return False if another writer was first."""
        name, files = self._plan.temporary_name, self._files
        try:
            self._doing = "rename"
            files.rename_new(name, DATA_FILE, self._batch)
        except OSError as error:
            if error.errno in _NO_RENAME:
                return self._link()
            if error.errno != errno.EEXIST:
                raise
            self._remove_temporary()
            return False
        self._temporary = False
        return True

    def _link(self) -> bool:
        self._doing = "link"
        try:
            self._files.link(self._plan.temporary_name, DATA_FILE, self._batch, self._batch)
        except OSError as error:
            if error.errno in _NO_LINK:
                raise UnfitFileSystem(
                    f"{self.path}: the file system can neither rename without replacing nor link"
                    f" ({errno.errorcode.get(error.errno, error.errno)})"
                ) from error
            if error.errno != errno.EEXIST:
                raise
            return False
        finally:
            self._remove_temporary()
        return True

    def _sync_directories(self) -> None:
        self._doing = "sync directory"
        for handle in (self._batch, self._hour, *reversed(self._levels)):
            try:
                self._files.sync_directory(handle)
            except OSError:
                # Never sync a handle again after a failed sync.
                self.hour_is_stale = self.hour_is_stale or handle == self._hour
                raise
        self.hour_durable = True

    def _begin_again(self) -> None:
        if self.opened_hour == NO_HANDLE:
            self.hour_is_stale = True
        else:
            self._levels.append(self.opened_hour)
            self.opened_hour = NO_HANDLE
        self._close_directories()
        self._hour = NO_HANDLE
        self.hour_durable = False

    def _retreat(self) -> None:
        with suppress(OSError):
            self._close_file()
        if self._temporary:
            self._remove_temporary()
        self._close_directories()

    def _remove_temporary(self) -> None:
        """Remove the temporary file. If that fails, the sweeper removes it later."""
        self._temporary = False
        with suppress(OSError):
            self._files.remove(self._plan.temporary_name, self._batch)

    def _close_file(self) -> None:
        file, self._file = self._file, NO_HANDLE  # Linux frees it even if close fails
        if file != NO_HANDLE:
            self._files.close(file)

    def _close_directories(self) -> None:
        handles, self._levels = [self._batch, *reversed(self._levels)], []
        self._batch = NO_HANDLE
        for handle in handles:
            if handle != NO_HANDLE:
                with suppress(OSError):
                    self._files.close(handle)

    def _explained(self, number: int) -> PenstockError:
        if number == errno.ELOOP:
            return PathEscapes(self.path, f"{self._doing}: leads through a symlink")
        return storage_error(number, self._doing, self.path)


def _slices(buffers: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    pieces: list[memoryview] = []
    room = SLICE_BYTES
    for view in buffers:
        position = 0
        while position < view.nbytes:
            piece = view[position : position + room]
            pieces.append(piece)
            position += piece.nbytes
            room -= piece.nbytes
            if not room or len(pieces) == GATHER_BUFFERS_MAX:
                yield pieces
                pieces, room = [], SLICE_BYTES
    if pieces:
        yield pieces


def _behind(pieces: list[memoryview], count: int) -> list[memoryview]:
    for index, piece in enumerate(pieces):
        if count < piece.nbytes:
            return [piece[count:], *pieces[index + 1 :]]
        count -= piece.nbytes
    return []


# Directories of an outbox, in which several threads write payloads.
#
# `Tree` runs attempts (`SafeWrite`). Between them, it keeps the directories of hours open, so that
# later attempts need not walk to them and sync their parents again. An open directory stays the
# same even if it is renamed.


HOUR_DIRECTORIES_OPEN_MAX: Final = 128
"""Hour directories that a writer keeps open. Beyond it, the least recently used is closed."""

CHECK_BYTES: Final = 4096
CHECK_PREFIX: Final = ".penstock-check-"
_FILE_MODE: Final = 0o600


def _unnamed(directory: int) -> int:
    """Return a new file without a name.

    Where this is not supported (NFS), create a file and unlink it.
    """
    flags = os.O_WRONLY | os.O_CLOEXEC
    try:
        return os.open(".", flags | os.O_TMPFILE, _FILE_MODE, dir_fd=directory)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}:
            raise
    name = f"{CHECK_PREFIX}{os.getpid()}"
    file = os.open(name, flags | os.O_CREAT | os.O_NOFOLLOW, _FILE_MODE, dir_fd=directory)
    os.unlink(name, dir_fd=directory)
    return file


class _Hour(Struct):
    """Open directory of an hour. `users` is the number of attempts that use it.

    After it was dropped from the tree, its last user closes it.
    """

    handle: int
    durable: bool
    users: int = 0
    dropped: bool = False


class Tree:
    """Directories below one root, for attempts from any number of threads.

    Raises:
        RootUnavailable: the root is missing or is not a directory. It is never created, because
            writes below a missing mount would fill the local disk.
    """

    def __init__(
        self,
        root: Path,
        files: Files = MACHINE_FILES,
        *,
        hours_max: int = HOUR_DIRECTORIES_OPEN_MAX,
    ) -> None:
        self._files = files
        self._hours: OrderedDict[str, _Hour] = OrderedDict()
        self._hours_max = hours_max
        self._lock = threading.Lock()
        try:
            self._root = self._files.open_directory(root)
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, str(error.errno))
            raise RootUnavailable(
                f"outbox root {root}: {name}; the root must be an existing directory"
            ) from error

    def write(self, plan: WritePlan) -> Written:
        """Make one attempt. Return when the file is complete, and durable if the plan requires it.

        Raises:
            PenstockError: the attempt failed, see `SafeWrite.run`.
            OutboxClosed: `close` was called.
        """
        hour = self._borrow(plan.hour_directory)
        write = SafeWrite(
            plan,
            self._files,
            root=self._root,
            hour=hour.handle if hour else NO_HANDLE,
            hour_durable=hour.durable if hour else False,
        )
        done = False
        try:
            written = write.run()
            done = True
        finally:
            self._give_back(plan.hour_directory, hour, write, keep=done)
        return written

    def check(self, bytes_min: int) -> None:
        """Check with a temporary file whether the file system accepts `bytes_min` bytes.

        Raises:
            PenstockError: it does not. The error has the reason.
        """
        if self._root == NO_HANDLE:
            raise OutboxClosed("outbox: the writer is closed")
        try:
            found = os.fstatvfs(self._root)
            free = found.f_bavail * found.f_frsize
            if free < bytes_min:
                raise StorageFull(
                    f"outbox root: {free} bytes are free, but a payload may have {bytes_min}"
                )
            file = _unnamed(self._root)
            try:
                os.write(file, bytes(CHECK_BYTES))
                os.fdatasync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise storage_error(error.errno or errno.EIO, "check", "outbox root") from error

    def close(self) -> None:
        with self._lock:
            root, self._root = self._root, NO_HANDLE
            hours = list(self._hours.values())
            self._hours.clear()
        self._close([hour.handle for hour in hours])
        if root != NO_HANDLE:
            self._close([root])

    def _borrow(self, path: str) -> _Hour | None:
        with self._lock:
            if self._root == NO_HANDLE:
                raise OutboxClosed("outbox: the writer is closed")
            hour = self._hours.get(path)
            if hour is not None:
                hour.users += 1
                self._hours.move_to_end(path)
            return hour

    def _give_back(self, path: str, hour: _Hour | None, write: SafeWrite, *, keep: bool) -> None:
        closing: list[int] = []
        with self._lock:
            if hour is not None:
                hour.users -= 1
                if write.hour_is_stale:
                    self._drop(path, hour)
                if hour.dropped and not hour.users:
                    closing.append(hour.handle)
            if write.opened_hour != NO_HANDLE:
                closing += self._keep(path, write) if keep else [write.opened_hour]
        self._close(closing)

    def _keep(self, path: str, write: SafeWrite) -> list[int]:
        """Keep open the hour's directory that an attempt opened, for later attempts.

        Return the handles that the caller must close.
        """
        kept = self._hours.get(path)
        worse = kept is not None and (kept.durable or not write.hour_durable)
        if worse:
            return [write.opened_hour]
        closing = []
        if kept is not None and self._drop(path, kept):
            closing.append(kept.handle)
        self._hours[path] = _Hour(write.opened_hour, write.hour_durable)
        if len(self._hours) > self._hours_max:
            oldest, least_used = next(iter(self._hours.items()))
            if self._drop(oldest, least_used):
                closing.append(least_used.handle)
        return closing

    def _drop(self, path: str, hour: _Hour) -> bool:
        """Stop keeping an hour's directory open.

        Return whether no attempt uses it, in which case the caller must close it.
        """
        if self._hours.get(path) is hour:
            del self._hours[path]
        if hour.dropped:
            return False
        hour.dropped = True
        return hour.users == 0

    def _close(self, handles: Sequence[int]) -> None:
        for handle in handles:
            # A failed close of a directory loses nothing.
            with suppress(OSError):
                self._files.close(handle)
