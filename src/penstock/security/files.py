"""Files that are reloaded when they change: certificates, users.

`Reloading` detects changes by the files' times and contents, and builds its value again. Invalid
files leave the former value in use, and `failure` has the reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Final, Generic, TypeVar

from penstock.base.errors import InvalidError

FILE_BYTES_MAX: Final = 4 << 20
"""All authorities of a system are a quarter of a megabyte."""


class UnusableFile(InvalidError):
    """The file cannot be used; the message has its path and none of its content."""

    code: ClassVar[str] = "invalid_config"


def read_file(path: str, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """Read a file.

    Raises:
        UnusableFile: the file cannot be read, or is too large.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise UnusableFile(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > bytes_max:
        raise UnusableFile(f"{path} has more than {bytes_max} bytes")
    return data


T = TypeVar("T")


class Reloading(Generic[T]):
    """Value that is built from files, and built again when they change; reading them blocks.

    `current` is the value of the last valid files.
    """

    def __init__(
        self, paths: Sequence[str], make: Callable[[], T], bytes_max: int = FILE_BYTES_MAX
    ) -> None:
        """Raises InvalidError, as `make` does, if the files are invalid."""
        self._paths = paths
        self._make = make
        self._bytes_max = bytes_max
        self._times = self._look()
        self._digest = self._read_all()
        self.current = make()
        self.failure = ""
        """Why the files as they are now are not in use; empty where they are."""
        self.reloads = 0
        self.failures = 0

    def reload(self, *, look_closely: bool = False) -> bool:
        """Rebuild the object if files have changed; return whether it was rebuilt.

        Files with unchanged times are read only on request.
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
