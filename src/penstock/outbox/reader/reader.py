"""From a pointer to its payload: path, size, checksum, in this order, then the bytes.

The pointer came over a wire and the tree is shared, so neither is believed. The path must be one
that the layout makes, and is opened below the root without following any symlink. The size is
compared before memory is taken: a pointer that claims more than `bytes_max` is refused without a
look at the file, and a file of another size is never read. The CRC32C tells a damaged file, and
another batch's file of the same size, from the right one.

Three ways to the bytes:

- `read`: verified bytes in memory.
- `open`: a stream of chunks for payloads that should not be in memory as a whole. The checksum is
  known only at the end, so **bytes handed over before the end are unverified**: whoever acts on
  them must be able to undo it when the last step raises.
- `map`: verified bytes without a copy, as a mapping of the file. Safe while nobody truncates
  payloads; the outbox never does, it only unlinks, which leaves a mapping whole.

All calls block; a reader may be used by several threads.

Source: `filesystem-outbox.txt`, consumer pass; `design/host-and-outbox.md`, Read.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from penstock.base.crc import crc32c
from penstock.base.errors import FencedError, InvalidError
from penstock.outbox import read_limits
from penstock.outbox.errors import NotAFile, RootUnavailable
from penstock.outbox.layout import parse_path
from penstock.outbox.paths import check_relative, raw_open_beneath
from penstock.outbox.pointer import Pointer
from penstock.outbox.reader.errors import (
    ChecksumMismatch,
    PayloadTooLarge,
    PayloadUnreadable,
    SizeMismatch,
    open_error,
)

# O_NONBLOCK: opening a named pipe that someone put there must not wait for its writer.
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK


class OutboxReader:
    """Reads payloads below one root, which stays open until `close`.

    Args:
        root: the outbox's root on this machine.
        bytes_max: the largest payload that is read.

    Raises:
        InvalidError: `bytes_max` is no number of bytes.
        RootUnavailable: there is no such directory.
    """

    def __init__(self, root: Path | str, *, bytes_max: int = read_limits.READ_BYTES_MAX) -> None:
        if type(bytes_max) is not int or bytes_max < 1:
            raise InvalidError(f"bytes_max = {bytes_max!r}: must be a whole number from 1 up")
        self._bytes_max = bytes_max
        self.root = Path(root)
        try:
            self._root_fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise RootUnavailable(f"outbox root {self.root}: {error.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the root; streams and mappings that were handed out stay usable."""
        if self._root_fd >= 0:
            descriptor, self._root_fd = self._root_fd, -1
            os.close(descriptor)

    def read(self, pointer: Pointer) -> bytes:
        """Return the payload, verified.

        Raises:
            InvalidPath, PathEscapes, NotAFile: the path leads to nothing that may be read.
            PayloadTooLarge: the pointer claims more than `bytes_max`.
            PayloadMissing: there is no file.
            SizeMismatch, ChecksumMismatch: the file is not what the pointer says.
            PayloadUnreadable: the file system failed.
        """
        descriptor = self._open(pointer)
        try:
            data = _read_whole(descriptor, pointer)
        finally:
            os.close(descriptor)
        _check(pointer, crc32c(data))
        return data

    def open(
        self, pointer: Pointer, *, chunk_bytes: int = read_limits.CHUNK_BYTES
    ) -> PayloadStream:
        """A stream of the payload, to be closed; its bytes are unverified until it has ended.

        Raises:
            InvalidError: `chunk_bytes` is out of bounds.
            PenstockError: as `read`, but for the checksum.
        """
        if not 1 <= chunk_bytes <= read_limits.CHUNK_BYTES_MAX:
            raise InvalidError(
                f"chunk_bytes = {chunk_bytes}: must be 1 to {read_limits.CHUNK_BYTES_MAX}"
            )
        return PayloadStream(self._open(pointer), pointer, chunk_bytes)

    def map(self, pointer: Pointer) -> memoryview:
        """The payload, verified, as a read-only view of the file's pages; raises as `read`."""
        descriptor = self._open(pointer)
        try:
            if pointer.size_bytes == 0:
                _check(pointer, 0)
                return memoryview(b"")
            view = memoryview(mmap.mmap(descriptor, pointer.size_bytes, prot=mmap.PROT_READ))
        except OSError as error:
            raise PayloadUnreadable(pointer.file_path, error.errno or 0) from error
        finally:
            os.close(descriptor)
        _check(pointer, crc32c(view))
        return view

    def exists(self, pointer: Pointer) -> None:
        """Check path and size, without reading; raises as `read`, but for the checksum."""
        os.close(self._open(pointer))

    def _open(self, pointer: Pointer) -> int:
        """Return a descriptor of the pointer's file, which is a regular one of the right size."""
        if self._root_fd < 0:
            raise FencedError(f"the reader of {self.root} is closed")
        path = pointer.file_path
        parse_path(check_relative(path))
        if not 0 <= pointer.size_bytes <= self._bytes_max:
            raise PayloadTooLarge(path, pointer.size_bytes, self._bytes_max)
        try:
            descriptor = raw_open_beneath(self._root_fd, path, _FLAGS)
        except OSError as error:
            raise open_error(path, error.errno or 0) from None
        try:
            check_file(pointer, os.fstat(descriptor))
        except OSError as error:
            os.close(descriptor)
            raise PayloadUnreadable(path, error.errno or 0) from error
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def check_file(pointer: Pointer, found: os.stat_result) -> None:
    """Refuse what cannot be the pointer's file.

    Raises:
        NotAFile: it is no regular file.
        SizeMismatch: it has another size.
    """
    if not stat.S_ISREG(found.st_mode):
        raise NotAFile(f"{pointer.file_path}: is no regular file")
    if found.st_size != pointer.size_bytes:
        raise SizeMismatch(pointer.file_path, found.st_size, pointer.size_bytes)


class PayloadStream:
    """A payload in chunks. The step after the last chunk verifies; until then `verified` is False.

    Iterate over it, or call `read`; then `close`, or use it as a context manager.
    """

    def __init__(self, descriptor: int, pointer: Pointer, chunk_bytes: int) -> None:
        self._descriptor = descriptor
        self._pointer = pointer
        self._chunk_bytes = chunk_bytes
        self._left_bytes = pointer.size_bytes
        self._crc = 0
        self.verified = False
        """Whether the whole payload was read and its checksum is right."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self.read():
            yield chunk

    def read(self) -> bytes:
        """The next chunk, unverified; empty at the end, once the checksum has been found right.

        Raises:
            SizeMismatch, ChecksumMismatch: what was handed over is not the payload.
            PayloadUnreadable: the file system failed.
            FencedError: the stream is closed.
        """
        if self._descriptor < 0:
            raise FencedError(f"the stream of {self._pointer.file_path} is closed")
        if self._left_bytes == 0:
            _check(self._pointer, self._crc)
            self.verified = True
            return b""
        chunk = _read(self._descriptor, min(self._chunk_bytes, self._left_bytes), self._pointer)
        if not chunk:
            size_bytes = self._pointer.size_bytes
            raise SizeMismatch(self._pointer.file_path, size_bytes - self._left_bytes, size_bytes)
        self._crc = crc32c(chunk, self._crc)
        self._left_bytes -= len(chunk)
        return chunk

    def close(self) -> None:
        """Close the file; a payload that was not read to its end stays unverified."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def _read_whole(descriptor: int, pointer: Pointer) -> bytes:
    parts: list[bytes] = []
    left_bytes = pointer.size_bytes
    while left_bytes:
        part = _read(descriptor, min(left_bytes, read_limits.READ_CALL_BYTES_MAX), pointer)
        if not part:
            found = pointer.size_bytes - left_bytes
            raise SizeMismatch(pointer.file_path, found, pointer.size_bytes)
        parts.append(part)
        left_bytes -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _read(descriptor: int, count: int, pointer: Pointer) -> bytes:
    try:
        return os.read(descriptor, count)
    except OSError as error:
        raise PayloadUnreadable(pointer.file_path, error.errno or 0) from error


def _check(pointer: Pointer, found: int) -> None:
    if found != pointer.crc32c:
        raise ChecksumMismatch(pointer.file_path, found, pointer.crc32c)
