"""Bounded cache of open files."""

from __future__ import annotations

import errno
from collections import OrderedDict

from penstock.base.files import Files


class Handle:
    """Open file. A thread other than the event loop's may use it only while it is pinned (`users`
    is above 0)."""

    __slots__ = ("closing", "descriptor", "path", "users")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.users = 0
        self.closing = False


class Descriptors:
    """Cache of open files that closes the least recently used; files in use stay open.

    Used only on the event loop's thread; call `pin` before passing a handle to another thread.
    """

    def __init__(self, files: Files, limit: int) -> None:
        self._files = files
        self._limit = limit
        self._open: OrderedDict[str, Handle] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str, *, create: bool = False) -> Handle:
        """Return the open file of a path; on a read-only disk it is opened for reading."""
        handle = self._open.get(path)
        if handle is not None:
            self._open.move_to_end(path)
            return handle
        if len(self._open) >= self._limit:
            self._evict()
        try:
            descriptor = self._files.open(path, create=create)
        except OSError as error:
            if create or error.errno != errno.EROFS:
                raise
            descriptor = self._files.open_file(path)
        handle = self._open[path] = Handle(path, descriptor)
        return handle

    def pin(self, handle: Handle) -> Handle:
        handle.users += 1
        return handle

    def unpin(self, handle: Handle) -> None:
        handle.users -= 1
        if handle.closing and handle.users == 0:
            self._files.close(handle.descriptor)
        elif len(self._open) > self._limit:
            self._evict()

    def forget(self, path: str) -> None:
        handle = self._open.pop(path, None)
        if handle is None:
            return
        if handle.users:
            handle.closing = True
        else:
            self._files.close(handle.descriptor)

    def close(self) -> None:
        for path in list(self._open):
            self.forget(path)

    def _evict(self) -> None:
        idle = next((path for path, handle in self._open.items() if handle.users == 0), None)
        if idle is not None:
            self.forget(idle)
