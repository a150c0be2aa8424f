"""A disk that keeps itself as it was after each call that changed it."""

from __future__ import annotations

from functools import partial
from typing import Any

from sim.disk import Directory, Disk, Named

CHANGING = (
    "make_directory", "create", "open", "lock", "write", "write_at", "truncate", "set_attribute",
    "sync_file", "sync_directory", "rename", "rename_new", "link", "remove", "remove_tree",
)  # fmt: skip


class Point:
    """A call that was made, and the disk after it."""

    __slots__ = ("call", "disk", "number")

    def __init__(self, number: int, call: str, disk: Disk) -> None:
        self.number = number
        self.call = call
        self.disk = disk


class RecordedDisk(Disk):
    """See the module's text. `points` are the calls, and before them the disk as it began."""

    def __init__(self, begins: Disk | None = None) -> None:
        super().__init__(root=None if begins is None else begins.copy().root)
        self.points = [Point(0, "nothing", self.copy())]
        self._calls: dict[int, str] = {}
        for name in CHANGING:
            setattr(self, name, partial(self._recorded, name, getattr(self, name)))

    @property
    def count(self) -> int:
        """The calls that were made."""
        return self.points[-1].number

    def _recorded(self, name: str, call: Any, *arguments: Any, **options: Any) -> Any:
        before = len(self.pending)
        result = call(*arguments, **options)
        if isinstance(arguments[0], int):
            path = self._calls.get(arguments[0], "?")
        else:
            path = " to ".join(
                str(argument) for argument in arguments[:2] if isinstance(argument, str)
            )
        if name in ("open", "lock", "create"):
            self._calls[result] = path
        if len(self.pending) != before or name.startswith("sync"):
            size = f" {result} bytes at {arguments[2]}" if name == "write_at" else ""
            self.points.append(Point(self.count + 1, f"{name} {path}{size}", self.copy()))
        return result

    def open_directory(self, name: Any, /, below: int | None = None) -> int:
        handle = super().open_directory(name, below)
        self._calls[handle] = str(name)
        return handle


def names_of(change: Named) -> str:
    """What a change of names did, in words."""
    return ", ".join(
        f"-{name}" if node is None else f"+{name}{'/' * isinstance(node, Directory)}"
        for name, node in change.names
    )
