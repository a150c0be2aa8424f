"""The file port with faults: calls that are recorded, fail, find no room, or lose the power.

`FaultyFiles` makes the machine's own calls. With a `root` it also keeps the calls that change
something below it, and `disk_after` replays any number of them on a `Disk` (`sim/disk.py`), which
knows what was synced: a crash point is a number of calls, and what a machine may find there are
`images`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sim.disk import OPENING, Disk, Operation

from penstock.base.files import MACHINE_FILES, Buffer, Files, MachineFiles

Before = Callable[[int, str, tuple[Any, ...]], None]
After = Callable[[int, str, tuple[Any, ...], Any], None]

SYNCS = ("sync_file", "sync_directory")
READING = ("names_in", "size_of", "size", "read_at", "attribute", "set_mode")
CALLS = tuple(name for name in vars(Files) if not name.startswith("_"))


class PowerLoss(BaseException):
    """No error that a program could handle."""


class FaultyFiles(MachineFiles):
    """Calls `before(number, name, arguments)`, the call, `after(number, name, arguments, result)`.

    The result is the OSError for a call that failed. `before` may raise OSError in place of the
    call, and so may `fail`, which gives an error number for the name of a call and the path that
    it is about: that of a handle, or of a name's target. Power is lost before the call numbered
    `lose_at` and all later ones. `write_bytes_max` makes writes short; `room` are the bytes that
    files whose path is `full` may still grow by.
    """

    def __init__(
        self,
        before: Before | None = None,
        after: After | None = None,
        *,
        write_bytes_max: int | None = None,
        lose_at: int | None = None,
        files: Files = MACHINE_FILES,
        root: Path | None = None,
    ) -> None:
        """`files` makes the calls. Those that change something below `root` are recorded, where
        one is given, and nothing is really synced."""
        self.calls: list[str] = []
        self.operations: list[Operation] = []
        self.write_bytes_max = write_bytes_max
        self.fail: Callable[[str, str], int | None] = lambda name, path: None
        self.room: int | None = None
        self.full: Callable[[str], bool] = lambda path: True
        self._before = before
        self._after = after
        self._lose_at = lose_at
        self._paths: dict[int, str] = {}
        self._recording = root is not None
        if root is not None:
            self._disk = Disk.of(root)
        for name in CALLS:
            call = getattr(files, name)
            if name in SYNCS and root is not None:
                call = _not_made
            elif name in ("write", "write_at"):
                call = partial(self._write, call)
            setattr(self, name, partial(self.around, name, call))

    @property
    def syncs(self) -> int:
        """Files that were synced; directories not counted."""
        return self.calls.count("sync_file")

    def disk_after(self, count: int | None = None) -> Disk:
        """The disk after the first `count` operations, or all."""
        disk = self._disk.copy()
        for operation in self.operations[:count]:
            disk.apply(operation)
        return disk

    def around(self, name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        number = len(self.calls)
        if self._lose_at is not None and number >= self._lose_at:
            raise PowerLoss
        self.calls.append(name)
        path = self._path(name, arguments)
        if name == "close":
            # Before it is made: another thread may be given the same handle at once.
            self._note(name, arguments, options, None)
        try:
            if self._before is not None:
                self._before(number, name, arguments)
            failure = self.fail(name, path)
            if failure is not None:
                raise OSError(failure, os.strerror(failure))
            result = call(*arguments, **options)
        except OSError as error:
            if self._after is not None:
                self._after(number, name, arguments, error)
            raise
        if name in OPENING:
            self._paths[result] = path
        if name != "close":
            self._note(name, arguments, options, result)
        if self._after is not None:
            self._after(number, name, arguments, result)
        return result

    def _note(
        self, name: str, arguments: tuple[Any, ...], options: dict[str, Any], result: Any
    ) -> None:
        if not self._recording or name in READING:
            return
        if name in ("write", "write_at"):
            arguments = (arguments[0], [b"".join(arguments[1])[:result]], *arguments[2:])
        self.operations.append(Operation(name, arguments, options, result))

    def _write(
        self, call: Callable[..., int], file: int, buffers: Sequence[Buffer], *position: int
    ) -> int:
        if self.write_bytes_max is not None:
            buffers = [b"".join(buffers)[: self.write_bytes_max]]
        if self.room is not None and position and self.full(self._paths.get(file, "")):
            data = b"".join(buffers)
            size_bytes = os.fstat(file).st_size
            growth = max(0, position[0] + len(data) - size_bytes)
            if growth > self.room:
                data = data[: max(0, size_bytes + self.room - position[0])]
                growth = self.room
                if not data:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= growth
            buffers = [data]
        return call(file, buffers, *position)

    def _path(self, name: str, arguments: tuple[Any, ...]) -> str:
        target, below = arguments[0] if arguments else "", None
        if isinstance(target, int):
            return self._paths.get(target, "")
        if name in ("rename", "rename_new", "link"):
            target, below = arguments[1], arguments[-1] if len(arguments) > 2 else None
        elif len(arguments) > 1:
            below = arguments[1]
        return str(target) if below is None else f"{self._paths.get(below, '')}/{target}"


def _not_made(handle: int) -> None:
    return


def open_below(root: Path) -> list[str]:
    """Return this process' open files of a tree; other ones come and go in other threads."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return [link for link in links if link == str(root) or link.startswith(f"{root}/")]
