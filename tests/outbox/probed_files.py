"""The machine's file calls with a hook before and after each: to fail, be killed, or record."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.outbox.writer.files import MachineFiles

Before = Callable[[int, str, tuple[Any, ...]], None]
After = Callable[[int, str, tuple[Any, ...], Any], None]


class ProbedFiles(MachineFiles):
    """Calls `before(number, name, arguments)`, the call, `after(number, name, arguments, result)`.

    The result is the OSError for a call that failed. `before` may raise OSError in place of the
    call. `write_bytes_max` makes writes short.
    """

    def __init__(
        self,
        before: Before | None = None,
        after: After | None = None,
        *,
        write_bytes_max: int | None = None,
    ) -> None:
        self.calls: list[str] = []
        self._before = before
        self._after = after
        self._write_bytes_max = write_bytes_max

    def around(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        number = len(self.calls)
        self.calls.append(name)
        try:
            if self._before is not None:
                self._before(number, name, arguments)
            result = call(*arguments)
        except OSError as error:
            if self._after is not None:
                self._after(number, name, arguments, error)
            raise
        if self._after is not None:
            self._after(number, name, arguments, result)
        return result

    def open_root(self, path: Path) -> int:
        handle: int = self.around("open_root", super().open_root, path)
        return handle

    def open_directory(self, directory: int, name: str) -> int:
        handle: int = self.around("open_directory", super().open_directory, directory, name)
        return handle

    def make_directory(self, directory: int, name: str) -> None:
        self.around("make_directory", super().make_directory, directory, name)

    def size_of(self, directory: int, name: str) -> int:
        size: int = self.around("size_of", super().size_of, directory, name)
        return size

    def open_file(self, directory: int, name: str) -> int:
        handle: int = self.around("open_file", super().open_file, directory, name)
        return handle

    def recorded_checksum(self, file: int) -> int:
        crc: int = self.around("recorded_checksum", super().recorded_checksum, file)
        return crc

    def read(self, file: int, buffers: Sequence[memoryview]) -> int:
        count: int = self.around("read", super().read, file, buffers)
        return count

    def create(self, directory: int, name: str) -> int:
        handle: int = self.around("create", super().create, directory, name)
        return handle

    def write(self, file: int, buffers: Sequence[memoryview]) -> int:
        if self._write_bytes_max is not None:
            buffers = [b"".join(buffers)[: self._write_bytes_max]]  # type: ignore[list-item]
        count: int = self.around("write", super().write, file, buffers)
        return count

    def start_write_back(self, file: int) -> None:
        self.around("start_write_back", super().start_write_back, file)

    def record_checksum(self, file: int, crc: int) -> None:
        self.around("record_checksum", super().record_checksum, file, crc)

    def sync_file(self, file: int) -> None:
        self.around("sync_file", super().sync_file, file)

    def sync_directory(self, directory: int) -> None:
        self.around("sync_directory", super().sync_directory, directory)

    def rename(self, directory: int, name: str, target: str) -> None:
        self.around("rename", super().rename, directory, name, target)

    def link(self, directory: int, name: str, target: str) -> None:
        self.around("link", super().link, directory, name, target)

    def remove(self, directory: int, name: str) -> None:
        self.around("remove", super().remove, directory, name)

    def close(self, handle: int) -> None:
        self.around("close", super().close, handle)


def open_below(root: Path) -> list[str]:
    """What this process has open of a tree; other descriptors come and go in other threads."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return [link for link in links if link == str(root) or link.startswith(f"{root}/")]
