"""A file system in memory that forgets, at a power loss, whatever was not synced.

A directory keeps two sets of names: those there now, and those of its last sync; a file two
contents. `after_power_loss` is what a machine may find when it comes up again. Without dice that is
the least: synced names and contents alone. With dice, every name and content that was not synced
may have survived or not, each by itself, and a content in part: disks and kernels write in any
order.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path


class PowerLoss(BaseException):
    """No error that a program could handle."""


@dataclass(eq=False)
class File:
    content: bytes = b""
    synced: bytes = b""
    checksum: int | None = None
    read_bytes: int = 0


@dataclass(eq=False)
class Directory:
    names: dict[str, Node] = field(default_factory=dict)
    synced: dict[str, Node] = field(default_factory=dict)


Node = File | Directory


class ModelFiles:
    """The port over a model; power is lost before the call numbered `lose_at`."""

    def __init__(self, root: Directory | None = None, lose_at: int | None = None) -> None:
        self.root = root or Directory()
        self.lose_at = lose_at
        self.calls = 0
        self._handles: dict[int, Node] = {}
        self._next_handle = 1000

    def _call(self) -> None:
        if self.calls == self.lose_at:
            raise PowerLoss
        self.calls += 1

    def _open(self, node: Node) -> int:
        self._next_handle += 1
        self._handles[self._next_handle] = node
        return self._next_handle

    def _directory(self, handle: int) -> Directory:
        node = self._handles[handle]
        assert isinstance(node, Directory)
        return node

    def _file(self, handle: int) -> File:
        node = self._handles[handle]
        assert isinstance(node, File)
        return node

    def open_root(self, path: Path) -> int:
        self._call()
        return self._open(self.root)

    def open_directory(self, directory: int, name: str) -> int:
        self._call()
        above = self._directory(directory)
        return self._open(above if name == "." else _found(above, name))

    def make_directory(self, directory: int, name: str) -> None:
        self._call()
        _take(self._directory(directory), name, Directory())

    def size_of(self, directory: int, name: str) -> int:
        self._call()
        node = _found(self._directory(directory), name)
        assert isinstance(node, File)
        return len(node.content)

    def open_file(self, directory: int, name: str) -> int:
        self._call()
        node = _found(self._directory(directory), name)
        assert isinstance(node, File)
        node.read_bytes = 0
        return self._open(node)

    def recorded_checksum(self, file: int) -> int:
        self._call()
        checksum = self._file(file).checksum
        if checksum is None:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        return checksum

    def read(self, file: int, buffers: Sequence[memoryview]) -> int:
        self._call()
        node = self._file(file)
        data = node.content[node.read_bytes : node.read_bytes + buffers[0].nbytes]
        buffers[0][: len(data)] = data
        node.read_bytes += len(data)
        return len(data)

    def create(self, directory: int, name: str) -> int:
        self._call()
        file = File()
        _take(self._directory(directory), name, file)
        return self._open(file)

    def write(self, file: int, buffers: Sequence[memoryview]) -> int:
        self._call()
        data = b"".join(buffers)
        self._file(file).content += data
        return len(data)

    def start_write_back(self, file: int) -> None:
        self._call()

    def record_checksum(self, file: int, crc: int) -> None:
        self._call()
        self._file(file).checksum = crc

    def sync_file(self, file: int) -> None:
        self._call()
        node = self._file(file)
        node.synced = node.content

    def sync_directory(self, directory: int) -> None:
        self._call()
        node = self._directory(directory)
        node.synced = dict(node.names)

    def rename(self, directory: int, name: str, target: str) -> None:
        self._call()
        node = self._directory(directory)
        _take(node, target, _found(node, name))
        del node.names[name]

    def link(self, directory: int, name: str, target: str) -> None:
        self._call()
        node = self._directory(directory)
        _take(node, target, _found(node, name))

    def remove(self, directory: int, name: str) -> None:
        self._call()
        node = self._directory(directory)
        _found(node, name)
        del node.names[name]

    def close(self, handle: int) -> None:
        self._call()
        del self._handles[handle]


class LinkingModelFiles(ModelFiles):
    """The same without a rename that does not replace, as NFS is."""

    def rename(self, directory: int, name: str, target: str) -> None:
        self._call()
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def _found(directory: Directory, name: str) -> Node:
    if name not in directory.names:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return directory.names[name]


def _take(directory: Directory, name: str, node: Node) -> None:
    if name in directory.names:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    directory.names[name] = node


def after_power_loss(directory: Directory, dice: random.Random | None = None) -> Directory:
    """What may be there afterwards; the original is left as it is."""
    names: dict[str, Node] = {}
    for name in {**directory.synced, **directory.names}:
        was, now = directory.synced.get(name), directory.names.get(name)
        node = now if was is not now and dice is not None and dice.random() < 0.5 else was
        if isinstance(node, Directory):
            names[name] = after_power_loss(node, dice)
        elif node is not None:
            content = _content(node, dice)
            # An attribute may survive at once: the disk orders nothing that was not synced.
            kept = dice is not None and (content == node.synced or dice.random() < 0.5)
            names[name] = File(content, content, node.checksum if kept else None)
    return Directory(names, dict(names))


def _content(file: File, dice: random.Random | None) -> bytes:
    if dice is None or file.content == file.synced or dice.random() < 0.3:
        return file.synced
    kept = file.content[: dice.randint(0, len(file.content))]
    return kept.ljust(dice.choice((len(kept), len(file.content))), b"\0")


def contents(directory: Directory, above: str = "") -> Iterator[tuple[str, bytes]]:
    """All files, by path."""
    for name, node in directory.names.items():
        if isinstance(node, Directory):
            yield from contents(node, f"{above}{name}/")
        else:
            yield f"{above}{name}", node.content
