"""What changed since the last checkpoint, which the next one writes and syncs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from penstock.storage.segment import Segment

LogT = TypeVar("LogT")


class Changes(Generic[LogT]):
    """Logs with the segments of theirs that were written to; directories that have new files."""

    def __init__(self) -> None:
        self.logs: dict[LogT, set[Segment]] = {}
        self.directories: set[str] = set()

    def of(self, log: LogT) -> set[Segment]:
        """The changed segments of a log, which counts as changed from now on; add to them."""
        return self.logs.setdefault(log, set())

    def take(self) -> Changes[LogT]:
        """All that there are; from now on there are none."""
        taken = Changes[LogT]()
        taken.logs, self.logs = self.logs, taken.logs
        taken.directories, self.directories = self.directories, taken.directories
        return taken

    def give_back(self, taken: Changes[LogT]) -> None:
        """Count as changed again what a checkpoint took and could not write."""
        for log, segments in taken.logs.items():
            self.of(log).update(segments)
        self.directories |= taken.directories

    def forget(self, log: LogT, segments: Iterable[Segment]) -> None:
        """Segments of a log are gone."""
        self.logs.get(log, set()).difference_update(segments)
