"""A disk in memory that knows what is synced, and what a power loss may leave of what is not.

It has the file port. Whatever is not synced is a list of changes, in the order in which they were
made: bytes written, a file's length, its attributes, names in a directory. A sync makes those of
one file, or of one directory, certain. After a power loss any of the others may be there or not,
each by itself, as POSIX promises no order; a write may also be there in part, and its length
without its bytes. `image` is the disk that has some of them. A rename within a directory is one
change: journals of file systems keep both of its sides together.

Source: Pillai et al., "All File Systems Are Not Created Equal" (2014); fsync(2).
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

from penstock.base.files import Buffer, Name

OPENING = ("open_directory", "open_file", "create", "open", "lock")


@dataclass(eq=False, slots=True)
class File:
    """What a process sees of it, and what is synced."""

    content: bytes = b""
    synced: bytes = b""
    attributes: dict[str, bytes] = field(default_factory=dict)
    synced_attributes: dict[str, bytes] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Directory:
    """The names in it that a process sees, and those that are synced."""

    names: dict[str, Node] = field(default_factory=dict)
    synced: dict[str, Node] = field(default_factory=dict)


Node = File | Directory


class Written(NamedTuple):
    """Bytes at a position; none make the file at least as long as that."""

    node: File
    position: int
    data: bytes

    @property
    def end(self) -> int:
        return self.position + len(self.data)


class Resized(NamedTuple):
    """A file's length."""

    node: File
    size: int


class Attributed(NamedTuple):
    """An extended attribute of a file."""

    node: File
    name: str
    value: bytes


class Named(NamedTuple):
    """Names of a directory that were given, or with None taken away, together.

    A `new` file or directory is only made where there is none of its name: what made the name free
    is older, and a journal keeps both or the older one.
    """

    node: Directory
    names: tuple[tuple[str, Node | None], ...]
    new: bool = False


Change = Written | Resized | Attributed | Named


class Operation(NamedTuple):
    """A call that was made, with the bytes that it wrote."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    result: Any


@dataclass(eq=False, slots=True)
class Opened:
    node: Node
    position: int = 0
    locked: bool = False


class Disk:
    """See the module's text."""

    def __init__(self, path: Path = Path("/"), root: Directory | None = None) -> None:
        self.path = path
        self.root = root or Directory()
        self.pending: list[Change] = []
        """What is not synced, oldest first."""
        self._opened: dict[int, Opened] = {}
        self._next_handle = 1000
        self._prefix = str(path).rstrip("/") + "/"

    @classmethod
    def of(cls, path: Path) -> Disk:
        """A directory of the machine; all of it counts as synced."""
        return cls(path, _read(path))

    def copy(self) -> Disk:
        """The same disk, of which nothing is open."""
        made: dict[Node, Node] = {}
        disk = Disk(self.path)
        disk.root = cast(Directory, _copy(self.root, made))
        for change in self.pending:
            if isinstance(change, Named):
                names = [(name, node and _copy(node, made)) for name, node in change.names]
                change = change._replace(names=tuple(names))
            disk.pending.append(change._replace(node=cast(Any, _copy(change.node, made))))
        return disk

    def contents(self) -> dict[str, bytes]:
        """All files, by their paths below the root."""
        return dict(_contents(self.root, ""))

    def fingerprint(self) -> int:
        """The same for disks that have the same names and bytes, in this process."""
        return hash(tuple(sorted(_seen(self.root, ""))))

    def image(self, changes: Iterable[Change]) -> Disk:
        """The disk after a power loss, with these of what was not synced, in their order."""
        by_node: dict[Node, list[Change]] = {}
        for change in changes:
            by_node.setdefault(change.node, []).append(change)
        return Disk(self.path, cast(Directory, _image(self.root, by_node, {})))

    def after_power_loss(self, dice: random.Random | None = None) -> Disk:
        """What may be there afterwards, the least without dice; this disk is left as it is."""
        return self.image(() if dice is None else some_of(self.pending, dice))

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

    # -- the file port -----------------------------------------------------------------------

    def open_directory(self, name: Name, /, below: int | None = None) -> int:
        return self._hold(_found(*self._place(name, below)))

    def make_directory(self, name: Name, /, below: int | None = None, mode: int = 0) -> None:
        self._take(name, below, Directory())

    def names_in(self, path: Name, /) -> list[str]:
        found = _found(*self._place(path, None))
        if not isinstance(found, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return list(found.names)

    def size_of(self, name: Name, /, below: int | None = None) -> int:
        file = _found(*self._place(name, below))
        if not isinstance(file, File):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(name))
        return len(file.content)

    def open_file(self, name: Name, /, below: int | None = None) -> int:
        return self._hold(_found(*self._place(name, below)))

    def create(self, name: Name, /, below: int | None = None, mode: int = 0) -> int:
        file = File()
        self._take(name, below, file)
        return self._hold(file)

    def open(self, name: Name, /, *, create: bool = False, truncate: bool = False) -> int:
        directory, entry = self._place(name, None)
        if create and entry not in directory.names:
            self._change(Named(directory, ((entry, File()),), new=True))
        file = _found(directory, entry)
        handle = self._hold(file)
        if truncate:
            self.truncate(handle, 0)
        return handle

    def lock(self, name: Name, /) -> int:
        handle = self.open(name, create=True)
        node = self._opened[handle].node
        if any(opened.locked and opened.node is node for opened in self._opened.values()):
            self.close(handle)
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), str(name))
        self._opened[handle].locked = True
        return handle

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
        data = b"".join(buffers)
        if data:
            self._change(Written(self._file(file), position, data))
        return len(data)

    def truncate(self, file: int, size: int, /) -> None:
        node = self._file(file)
        if len(node.content) != size:
            self._change(Resized(node, size))

    def set_mode(self, handle: int, mode: int, /) -> None:
        return

    def start_write_back(self, file: int, /) -> None:
        return

    def set_attribute(self, file: int, name: str, value: bytes, /) -> None:
        self._change(Attributed(self._file(file), name, value))

    def attribute(self, file: int, name: str, /) -> bytes:
        attributes = self._file(file).attributes
        if name not in attributes:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), name)
        return attributes[name]

    def sync_file(self, file: int, /) -> None:
        node = self._file(file)
        node.synced, node.synced_attributes = node.content, dict(node.attributes)
        self._settle(node)

    def sync_directory(self, directory: int, /) -> None:
        node = self._opened[directory].node
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        node.synced = dict(node.names)
        self._settle(node)

    def rename(self, name: Name, target: Name, /) -> None:
        directory, entry = self._place(name, None)
        above, under = self._place(target, None)
        found = _found(directory, entry)
        if directory is above:
            self._rename(directory, (under, found), (entry, None))
        else:
            self._rename(above, (under, found))
            self._rename(directory, (entry, None))

    def rename_new(self, name: Name, target: Name, /, below: int) -> None:
        directory, entry = self._place(name, below)
        if str(target) in directory.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        self._rename(directory, (str(target), _found(directory, entry)), (entry, None))

    def link(
        self, name: Name, target: Name, /, below: int | None = None, target_below: int | None = None
    ) -> None:
        self._take(target, target_below, _found(*self._place(name, below)))

    def remove(self, name: Name, /, below: int | None = None) -> None:
        directory, entry = self._place(name, below)
        _found(directory, entry)
        self._rename(directory, (entry, None))

    def remove_tree(self, path: Name, /) -> None:
        try:
            directory, entry = self._place(path, None)
            found = _found(directory, entry)
        except FileNotFoundError:
            return
        if isinstance(found, Directory):
            for name in list(found.names):
                self.remove_tree(f"{path}/{name}")
        self._rename(directory, (entry, None))

    # -- details -----------------------------------------------------------------------------

    def _change(self, change: Change) -> None:
        """Everything that is not synced at once comes here."""
        self.pending.append(change)
        if isinstance(change, Named):
            _rename_in(change.node.names, change)
        elif isinstance(change, Attributed):
            change.node.attributes[change.name] = change.value
        else:
            change.node.content = _changed(change.node.content, change)

    def _rename(self, directory: Directory, *names: tuple[str, Node | None]) -> None:
        self._change(Named(directory, names))

    def _settle(self, node: Node) -> None:
        if self.pending:
            self.pending = [change for change in self.pending if change.node is not node]

    def _place(self, name: Name, below: int | None) -> tuple[Directory, str]:
        """The directory of a name, and the name in it; "." for the root itself."""
        if below is not None:
            node = self._opened[below].node
            if not isinstance(node, Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(name))
            return node, str(name)
        text = f"{name}/"
        if not text.startswith(self._prefix):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(name))
        parts = [part for part in text[len(self._prefix) :].split("/") if part]
        directory = self.root
        for part in parts[:-1]:
            found = _found(directory, part)
            if not isinstance(found, Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(name))
            directory = found
        return directory, parts[-1] if parts else "."

    def _take(self, name: Name, below: int | None, node: Node) -> None:
        directory, entry = self._place(name, below)
        if entry == "." or entry in directory.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), entry)
        self._change(Named(directory, ((entry, node),), new=True))

    def _hold(self, node: Node) -> int:
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self._opened[handle] = Opened(node)
        return handle

    def _file(self, handle: int) -> File:
        node = self._opened[handle].node
        if not isinstance(node, File):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return node


def some_of(pending: Sequence[Change], dice: random.Random) -> Iterator[Change]:
    """Any of the changes, some of them in part."""
    share = dice.choice([0.2, 0.5, 0.8])
    for change in pending:
        if dice.random() >= share:
            continue
        if isinstance(change, Written) and dice.random() < 0.5:
            yield from dice.choice(list(torn(change, dice.randint(0, len(change.data)))))
        else:
            yield change


def torn(change: Written, cut: int) -> Iterator[tuple[Change, ...]]:
    """What may be there of a write that is broken off at one of its bytes.

    The part before, with the length that it has, or that of all; the part behind.
    """
    node, position, data = change
    before = Written(node, position, data[:cut])
    yield (before,)
    yield before, Written(node, change.end, b"")
    yield (Written(node, position + cut, data[cut:]),)


def _changed(content: bytes, change: Written | Resized) -> bytes:
    if isinstance(change, Resized):
        return content[: change.size].ljust(change.size, b"\0")
    position, end = change.position, change.end
    if len(content) == position:
        return content + change.data
    return content[:position].ljust(position, b"\0") + change.data + content[end:]


def _rename_in(names: dict[str, Node], change: Named) -> None:
    for name, node in change.names:
        if node is None:
            names.pop(name, None)
        elif not (change.new and name in names):
            names[name] = node


def _image(node: Node, changes: dict[Node, list[Change]], made: dict[Node, Node]) -> Node:
    known = made.get(node)
    if known is not None:
        return known
    if isinstance(node, File):
        content, attributes = node.synced, dict(node.synced_attributes)
        for change in changes.get(node, ()):
            if isinstance(change, Attributed):
                attributes[change.name] = change.value
            elif not isinstance(change, Named):
                content = _changed(content, change)
        made[node] = file = File(content, content, attributes, dict(attributes))
        return file
    names = dict(node.synced)
    for change in changes.get(node, ()):
        if isinstance(change, Named):
            _rename_in(names, change)
    found = {name: _image(inode, changes, made) for name, inode in names.items()}
    made[node] = directory = Directory(found, dict(found))
    return directory


def _copy(node: Node, made: dict[Node, Node]) -> Node:
    """A node and all below it, once."""
    copied = made.get(node)
    if copied is not None:
        return copied
    if isinstance(node, File):
        attributes, synced = dict(node.attributes), dict(node.synced_attributes)
        made[node] = file = File(node.content, node.synced, attributes, synced)
        return file
    made[node] = directory = Directory()
    directory.names = {name: _copy(child, made) for name, child in node.names.items()}
    directory.synced = {name: _copy(child, made) for name, child in node.synced.items()}
    return directory


def _found(directory: Directory, name: str) -> Node:
    if name == ".":
        return directory
    if name not in directory.names:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return directory.names[name]


def _read(path: Path) -> Directory:
    names: dict[str, Node] = {}
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


def _seen(directory: Directory, above: str) -> Iterator[tuple[str, bytes]]:
    for name, node in directory.names.items():
        if isinstance(node, Directory):
            yield f"{above}{name}/", b""
            yield from _seen(node, f"{above}{name}/")
        else:
            yield f"{above}{name}", node.content


def _put(directory: Directory, path: Path) -> None:
    path.mkdir()
    for name, node in directory.names.items():
        if isinstance(node, Directory):
            _put(node, path / name)
            continue
        (path / name).write_bytes(node.content)
        for attribute, value in node.attributes.items():
            os.setxattr(path / name, attribute, value)
