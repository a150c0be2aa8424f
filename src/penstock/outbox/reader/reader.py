"""Reader of payloads. It checks a pointer's path, then its size, then its checksum.

Pointers come over a network and the files are on a shared file system, so both are verified. The
path must follow the layout, and is opened below the root without following symlinks. The size is
checked before memory is allocated: a pointer with more than `bytes_max` is rejected before the file
is opened, and a file of another size is not read. The CRC32C detects a damaged file, or the file of
another batch.

- `read` returns verified bytes in memory.
- `open` returns a stream of chunks, for large payloads. The checksum is verified only at the end,
  so **bytes before the end are unverified**. A caller that processes them must be able to undo
  this if the last read raises.
- `map` returns verified bytes without a copy, as a mapping of the file. It is safe unless payloads
  are truncated. The outbox only unlinks them, which keeps a mapping valid.

All calls block. Several threads may use a reader.

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
from penstock.outbox.errors import NotAFile, RootUnavailable
from penstock.outbox.layout import check_relative, parse_path, raw_open_beneath
from penstock.outbox.pointer import Pointer
from penstock.outbox.reader.policy import (
    ChecksumMismatch,
    PayloadTooLarge,
    PayloadUnreadable,
    SizeMismatch,
    open_error,
)

READ_BYTES_MAX: Final = 1 << 30
"""Default limit of a payload's size. A pointer with a larger size is rejected."""
CHUNK_BYTES: Final = 1 << 20
"""Default size of a chunk of `PayloadStream`."""
CHUNK_BYTES_MAX: Final = 64 << 20
READ_CALL_BYTES_MAX: Final = 1 << 30
"""Bytes of one read call. Linux allows up to 2 GiB minus one page."""

# O_NONBLOCK: opening a named pipe in a payload's place must not wait for its writer.
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK


class OutboxReader:
    """Reader of payloads below one root, which stays open until `close`.

    Args:
        root: the outbox's root on this machine.
        bytes_max: largest size of an accepted payload.

    Raises:
        InvalidError: `bytes_max` is not a positive whole number.
        RootUnavailable: the directory is missing.
    """

    def __init__(self, root: Path | str, *, bytes_max: int = READ_BYTES_MAX) -> None:
        if type(bytes_max) is not int or bytes_max < 1:
            raise InvalidError(f"bytes_max = {bytes_max!r}: must be a whole number above 0")
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
        """Close the root. Existing streams and mappings stay usable."""
        if self._root_fd >= 0:
            descriptor, self._root_fd = self._root_fd, -1
            os.close(descriptor)

    def read(self, pointer: Pointer) -> bytes:
        """Return the verified payload.

        Raises:
            InvalidPath, PathEscapes, NotAFile: the path does not lead to a readable file.
            PayloadTooLarge: the pointer's size exceeds `bytes_max`.
            PayloadMissing: the file is missing.
            SizeMismatch, ChecksumMismatch: the file differs from its pointer.
            PayloadUnreadable: the file system failed.
        """
        descriptor = self._open(pointer)
        try:
            data = _read_whole(descriptor, pointer)
        finally:
            os.close(descriptor)
        _check(pointer, crc32c(data))
        return data

    def open(self, pointer: Pointer, *, chunk_bytes: int = CHUNK_BYTES) -> PayloadStream:
        """Return a stream of the payload. Its bytes are unverified until its end.

        Raises:
            InvalidError: `chunk_bytes` is out of bounds.
            PenstockError: the errors of `read`, except for ChecksumMismatch.
        """
        if not 1 <= chunk_bytes <= CHUNK_BYTES_MAX:
            raise InvalidError(f"chunk_bytes = {chunk_bytes}: must be 1 to {CHUNK_BYTES_MAX}")
        return PayloadStream(self._open(pointer), pointer, chunk_bytes)

    def map(self, pointer: Pointer) -> memoryview:
        """Return the verified payload as a read-only view of the file's pages.

        Raises as `read` does.
        """
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
        """Check path and size without reading.

        Raises as `read` does, except for ChecksumMismatch.
        """
        os.close(self._open(pointer))

    def _open(self, pointer: Pointer) -> int:
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
    """Check that the status of a file fits a pointer.

    Raises:
        NotAFile: it is not a regular file.
        SizeMismatch: its size differs from the pointer's.
    """
    if not stat.S_ISREG(found.st_mode):
        raise NotAFile(f"{pointer.file_path}: is not a regular file")
    if found.st_size != pointer.size_bytes:
        raise SizeMismatch(pointer.file_path, found.st_size, pointer.size_bytes)


class PayloadStream:
    """Stream of a payload in chunks.

    Iterate over it, or call `read` until it returns no bytes. Then call `close`, or use the stream
    as a context manager.
    """

    def __init__(self, descriptor: int, pointer: Pointer, chunk_bytes: int) -> None:
        self._descriptor = descriptor
        self._pointer = pointer
        self._chunk_bytes = chunk_bytes
        self._left_bytes = pointer.size_bytes
        self._crc = 0
        self.verified = False
        """Whether `read` has reached the end and the checksum matches."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self.read():
            yield chunk

    def read(self) -> bytes:
        """Return the next chunk, unverified, or no bytes at the end, if the checksum matches.

        Raises:
            SizeMismatch, ChecksumMismatch: the returned chunks are not the payload.
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
        """Close the file. A partially read payload stays unverified."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def _read_whole(descriptor: int, pointer: Pointer) -> bytes:
    parts: list[bytes] = []
    left_bytes = pointer.size_bytes
    while left_bytes:
        part = _read(descriptor, min(left_bytes, READ_CALL_BYTES_MAX), pointer)
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
