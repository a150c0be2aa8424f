"""Files that are reloaded when they change, such as certificates and users.

`Reloading` detects changes by the files' times and contents, and builds its value again. If the new
files are invalid, it keeps the previous value, and `failure` has the reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Final, Generic, TypeVar

from penstock.base.errors import InvalidError

FILE_BYTES_MAX: Final = 4 << 20
"""Largest file; the bundle of all authorities of an operating system has 256 KiB."""


class UnusableFile(InvalidError):
    """File that cannot be used; the message has its path, but none of its content."""

    code: ClassVar[str] = "invalid_config"


def read_file(path: str, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """Return the content of a file.

    Raises:
        UnusableFile: the file cannot be read, or has more than `bytes_max` bytes.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise UnusableFile(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > bytes_max:
        raise UnusableFile(f"{path} has more than {bytes_max} bytes, the limit")
    return data


T = TypeVar("T")


class Reloading(Generic[T]):
    """Value that is built from files, and built again when they change; building it blocks.

    `current` is the value of the last valid files.
    """

    def __init__(
        self, paths: Sequence[str], make: Callable[[], T], bytes_max: int = FILE_BYTES_MAX
    ) -> None:
        """Read the files and build the value with `make`.

        Raises:
            InvalidError: a file is invalid; raised by `make`.
            UnusableFile: a file cannot be read.
        """
        self._paths = paths
        self._make = make
        self._bytes_max = bytes_max
        self._times = self._look()
        self._digest = self._read_all()
        self.current = make()
        self.failure = ""
        """Reason why the present files are not in use; empty if they are."""
        self.reloads = 0
        self.failures = 0

    def reload(self, *, look_closely: bool = False) -> bool:
        """Build the value again if the files have changed; return whether it was built.

        Files whose times and sizes are unchanged are read only with `look_closely`.
        """
        times = self._look()
        if times == self._times and not look_closely:
            return False
        try:
            digest = self._read_all()
            if digest == self._digest and not self.failure:
                self._times = times
                return False
            self.current = self._make()
        except InvalidError as error:
            self._times, self.failure = times, str(error)
            self.failures += 1
            return False
        self._times, self._digest, self.failure = times, digest, ""
        self.reloads += 1
        return True

    def _look(self) -> list[tuple[int, int, int]]:
        found = []
        for path in self._paths:
            try:
                status = Path(path).stat()
                found.append((status.st_mtime_ns, status.st_size, status.st_ino))
            except OSError:
                found.append((0, 0, 0))
        return found

    def _read_all(self) -> bytes:
        whole = hashlib.sha256()
        for path in self._paths:
            whole.update(hashlib.sha256(read_file(path, self._bytes_max)).digest())
        return whole.digest()
