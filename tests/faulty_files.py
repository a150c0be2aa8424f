"""The file port with faults: calls that are recorded, fail, find no room, or lose the power.

`FaultyFiles` makes the machine's own calls. With a `root` it also keeps the calls that change
something below it, and `disk_after` replays any number of them on a `Disk`, which knows what
was synced: a crash point is a number of calls, and what a machine may find there are `images`.

A directory of a `Disk` keeps two sets of names, those there now and those of its last sync; a file
two contents. The least image has synced names and contents alone. With dice, every name and
content that was not synced may have survived or not, each by itself, and a content in part:
disks and kernels write in any order.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from penstock.base.files import MACHINE_FILES, Buffer, Files, MachineFiles, Name

Before = Callable[[int, str, tuple[Any, ...]], None]
After = Callable[[int, str, tuple[Any, ...], Any], None]

OPENING = ("open_directory", "open_file", "create", "open")
SYNCS = ("sync_file", "sync_directory")
READING = ("names_in", "size_of", "size", "read_at", "attribute")
CALLS = tuple(name for name in vars(Files) if not name.startswith("_"))


class PowerLoss(BaseException):
    """No error that a program could handle."""


class Operation(NamedTuple):
    """A call that was made, with the bytes that it wrote."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    result: Any


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
        disk = copy.deepcopy(self._disk)
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


@dataclass(eq=False)
class File:
    content: bytes = b""
    synced: bytes = b""
    attributes: dict[str, bytes] = field(default_factory=dict)


@dataclass(eq=False)
class Directory:
    names: dict[str, File | Directory] = field(default_factory=dict)
    synced: dict[str, File | Directory] = field(default_factory=dict)


@dataclass(eq=False)
class Opened:
    node: File | Directory
    position: int = 0


class Disk:
    """What is below one directory, in memory, and how much of it is synced. Has the file port."""

    def __init__(self, path: Path = Path("/"), root: Directory | None = None) -> None:
        self.path = path
        self.root = root or Directory()
        self._opened: dict[int, Opened] = {}
        self._next_handle = 1000

    @classmethod
    def of(cls, path: Path) -> Disk:
        """A directory of the machine; all of it counts as synced."""
        return cls(path, _read(path))

    def contents(self) -> dict[str, bytes]:
        """All files, by their paths below the root."""
        return dict(_contents(self.root, ""))

    def after_power_loss(self, dice: random.Random | None = None) -> Disk:
        """What may be there afterwards; the original is left as it is."""
        return Disk(self.path, _image(self.root, dice, {}))

    def images(self, seed: str, count: int = 10) -> Iterator[Disk]:
        """What may be there after a power loss now: the least, and `count` others."""
        yield self.after_power_loss()
        for number in range(count):
            yield self.after_power_loss(random.Random(f"{seed}-{number}"))

    def put(self, path: Path) -> None:
        """Make it real, as a directory of the machine that is made."""
        _put(self.root, path)

    def apply(self, operation: Operation) -> None:
        """Do what a call has done, if that was below this directory."""
        name, arguments, options, result = operation
        target = arguments[0]
        if isinstance(target, int):
            known = target in self._opened
        elif len(arguments) > 1 and isinstance(arguments[-1], int):
            known = arguments[-1] in self._opened
        else:
            known = Path(target).is_relative_to(self.path)
        if known:
            if name in OPENING:
                self._next_handle = result
            getattr(self, name)(*arguments, **options)

    def open_directory(self, name: Name, /, below: int | None = None) -> int:
        directory, entry = self._place(name, below)
        return self._hold(_found(directory, entry))

    def make_directory(self, name: Name, /, below: int | None = None, mode: int = 0) -> None:
        self._take(name, below, Directory())

    def names_in(self, path: Name, /) -> list[str]:
        directory, entry = self._place(path, None)
        found = _found(directory, entry)
        assert isinstance(found, Directory)
        return list(found.names)

    def size_of(self, name: Name, /, below: int | None = None) -> int:
        file = _found(*self._place(name, below))
        assert isinstance(file, File)
        return len(file.content)

    def open_file(self, name: Name, /, below: int | None = None) -> int:
        return self._hold(_found(*self._place(name, below)))

    def create(self, name: Name, /, below: int | None = None, mode: int = 0) -> int:
        file = File()
        self._take(name, below, file)
        return self._hold(file)

    def open(self, name: Name, /, *, create: bool = False, truncate: bool = False) -> int:
        directory, entry = self._place(name, None)
        if create:
            directory.names.setdefault(entry, File())
        file = _found(directory, entry)
        if truncate and isinstance(file, File):
            file.content = b""
        return self._hold(file)

    def close(self, handle: int, /) -> None:
        del self._opened[handle]

    def size(self, file: int, /) -> int:
        return len(self._file(file).content)

    def read(self, file: int, buffers: Sequence[memoryview], /) -> int:
        opened = self._opened[file]
        data = self.read_at(file, buffers[0].nbytes, opened.position)
        buffers[0][: len(data)] = data
        opened.position += len(data)
        return len(data)

    def read_at(self, file: int, size: int, position: int, /) -> bytes:
        return self._file(file).content[position : position + size]

    def write(self, file: int, buffers: Sequence[Buffer], /) -> int:
        opened = self._opened[file]
        written = self.write_at(file, buffers, opened.position)
        opened.position += written
        return written

    def write_at(self, file: int, buffers: Sequence[Buffer], position: int, /) -> int:
        node, data = self._file(file), b"".join(buffers)
        was = node.content
        node.content = was[:position].ljust(position, b"\0") + data + was[position + len(data) :]
        return len(data)

    def truncate(self, file: int, size: int, /) -> None:
        node = self._file(file)
        node.content = node.content[:size].ljust(size, b"\0")

    def start_write_back(self, file: int, /) -> None:
        return

    def set_attribute(self, file: int, name: str, value: bytes, /) -> None:
        self._file(file).attributes[name] = value

    def attribute(self, file: int, name: str, /) -> bytes:
        attributes = self._file(file).attributes
        if name not in attributes:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), name)
        return attributes[name]

    def sync_file(self, file: int, /) -> None:
        node = self._file(file)
        node.synced = node.content

    def sync_directory(self, directory: int, /) -> None:
        node = self._opened[directory].node
        assert isinstance(node, Directory)
        node.synced = dict(node.names)

    def rename(self, name: Name, target: Name, /) -> None:
        directory, entry = self._place(name, None)
        above, under = self._place(target, None)
        above.names[under] = _found(directory, entry)
        del directory.names[entry]

    def rename_new(self, name: Name, target: Name, /, below: int) -> None:
        self.link(name, target, below, below)
        self.remove(name, below)

    def link(
        self, name: Name, target: Name, /, below: int | None = None, target_below: int | None = None
    ) -> None:
        self._take(target, target_below, _found(*self._place(name, below)))

    def remove(self, name: Name, /, below: int | None = None) -> None:
        directory, entry = self._place(name, below)
        _found(directory, entry)
        del directory.names[entry]

    def remove_tree(self, path: Name, /) -> None:
        directory, entry = self._place(path, None)
        directory.names.pop(entry, None)

    def _place(self, name: Name, below: int | None) -> tuple[Directory, str]:
        """The directory of a name, and the name in it; "." for the root itself."""
        if below is not None:
            directory = self._opened[below].node
            assert isinstance(directory, Directory)
            return directory, str(name)
        *above, last = (".", *Path(name).relative_to(self.path).parts)
        directory = self.root
        for part in above[1:]:
            found = _found(directory, part)
            assert isinstance(found, Directory)
            directory = found
        return directory, last

    def _take(self, name: Name, below: int | None, node: File | Directory) -> None:
        directory, entry = self._place(name, below)
        if entry in directory.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), entry)
        directory.names[entry] = node

    def _hold(self, node: File | Directory) -> int:
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self._opened[handle] = Opened(node)
        return handle

    def _file(self, handle: int) -> File:
        node = self._opened[handle].node
        assert isinstance(node, File)
        return node


def _found(directory: Directory, name: str) -> File | Directory:
    if name == ".":
        return directory
    if name not in directory.names:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return directory.names[name]


def _read(path: Path) -> Directory:
    names: dict[str, File | Directory] = {}
    for entry in os.scandir(path):
        if entry.is_dir():
            names[entry.name] = _read(Path(entry.path))
        else:
            content = Path(entry.path).read_bytes()
            names[entry.name] = File(content, content)
    return Directory(names, dict(names))


def _contents(directory: Directory, above: str) -> Iterator[tuple[str, bytes]]:
    for name, node in directory.names.items():
        if isinstance(node, Directory):
            yield from _contents(node, f"{above}{name}/")
        else:
            yield f"{above}{name}", node.content


def _image(directory: Directory, dice: random.Random | None, files: dict[File, File]) -> Directory:
    names: dict[str, File | Directory] = {}
    for name in {**directory.synced, **directory.names}:
        was, now = directory.synced.get(name), directory.names.get(name)
        node = now if was is not now and dice is not None and dice.random() < 0.5 else was
        if isinstance(node, Directory):
            names[name] = _image(node, dice, files)
        elif node is not None:
            if node not in files:
                content = _content(node, dice)
                # An attribute may survive at once: the disk orders nothing that was not synced.
                kept = dice is not None and (content == node.synced or dice.random() < 0.5)
                files[node] = File(content, content, dict(node.attributes) if kept else {})
            names[name] = files[node]
    return Directory(names, dict(names))


def _content(file: File, dice: random.Random | None) -> bytes:
    new, old = file.content, file.synced
    if dice is None or new == old or dice.random() < 0.3:
        return old
    cut = dice.randint(0, max(len(new), len(old)))
    if dice.random() < 0.3:
        return old[:cut].ljust(min(cut, len(new)), b"\0") + new[cut:]
    kept = new[:cut] + old[cut:]
    return kept.ljust(dice.choice((len(kept), len(new))), b"\0")


def _put(directory: Directory, path: Path) -> None:
    path.mkdir()
    for name, node in directory.names.items():
        if isinstance(node, Directory):
            _put(node, path / name)
            continue
        (path / name).write_bytes(node.content)
        for attribute, value in node.attributes.items():
            os.setxattr(path / name, attribute, value)


def open_below(root: Path) -> list[str]:
    """What this process has open of a tree; other descriptors come and go in other threads."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return [link for link in links if link == str(root) or link.startswith(f"{root}/")]
