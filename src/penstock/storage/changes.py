"""Logs, segments and directories that changed since the last checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from penstock.storage.segment import Segment

LogT = TypeVar("LogT")


class Changes(Generic[LogT]):
    """Changed segments by log, and directories with new files, for the next checkpoint to sync."""

    def __init__(self) -> None:
        self.logs: dict[LogT, set[Segment]] = {}
        self.directories: set[str] = set()

    def of(self, log: LogT) -> set[Segment]:
        """Return the set of changed segments of a log, and count the log as changed."""
        return self.logs.setdefault(log, set())

    def take(self) -> Changes[LogT]:
        taken = Changes[LogT]()
        taken.logs, self.logs = self.logs, taken.logs
        taken.directories, self.directories = self.directories, taken.directories
        return taken

    def give_back(self, taken: Changes[LogT]) -> None:
        for log, segments in taken.logs.items():
            self.of(log).update(segments)
        self.directories |= taken.directories

    def forget(self, log: LogT, segments: Iterable[Segment]) -> None:
        self.logs.get(log, set()).difference_update(segments)
