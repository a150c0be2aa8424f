"""What the parts of one store share: the file port, open files, caches, settings, counters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.base.system import Clock
from penstock.storage.appended import Appended, TailCache
from penstock.storage.config import LogConfig
from penstock.storage.errors import StorageError, StorageFailed
from penstock.storage.files import Descriptors, Files
from penstock.storage.limits import INDEX_CACHE_BYTES
from penstock.storage.settings import StorageSettings

if TYPE_CHECKING:
    from penstock.storage.partition import PartitionLog
    from penstock.storage.segment import Segment


@dataclass(slots=True)
class Counters:
    """Plain integers, read at scrape time."""

    checkpoints: int = 0
    corruptions: int = 0
    disk_full: int = 0
    duplicates: int = 0
    groups: int = 0
    inline_groups: int = 0
    read_bytes: int = 0
    reads: int = 0
    removed_segments: int = 0
    rolled_segments: int = 0
    settled_bytes: int = 0
    tail_reads: int = 0


class Environment:
    """Belongs to the owner's thread."""

    def __init__(
        self,
        *,
        root: str,
        settings: StorageSettings,
        clock: Clock,
        config_of: Callable[[str], LogConfig],
        files: Files,
        new_uuid: Callable[[], UUID],
    ) -> None:
        self.root = root
        self.settings = settings
        self.clock = clock
        self.config_of = config_of
        self.files = files
        self.new_uuid = new_uuid
        self.descriptors = Descriptors(files, settings.open_files_max)
        self.tails = TailCache(settings.tail_cache_bytes)
        self.indexes = IndexCache(INDEX_CACHE_BYTES)
        self.counters = Counters()
        self.failed: StorageFailed | None = None
        self.pending: list[Appended] = []
        self.pending_bytes = 0
        self.unsettled_bytes = 0
        self.dirty_directories: set[str] = set()
        self.dirty: dict[PartitionLog, set[Segment]] = {}
        self.settle_now: Callable[[PartitionLog], None] = _not_wired
        self.save_marks: Callable[[], None] = _nothing
        self.durable_directories = True
        self.flush_within_ms: int | None = None
        self.settle_error: StorageError | None = None
        self.kept_producers: set[int] = set()


def _not_wired(log: PartitionLog) -> None:
    raise RuntimeError(f"{log} has no store")


def _nothing() -> None:
    return


class IndexCache:
    """Indexes of closed segments, the least recently used dropped; a bound in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._segments: OrderedDict[Segment, int] = OrderedDict()
        self.size_bytes = 0

    def used(self, segment: Segment) -> None:
        """A closed segment's index was looked at."""
        if segment in self._segments:
            self._segments.move_to_end(segment)
            return
        if segment.index is None:
            return
        self._segments[segment] = segment.index.size_bytes
        self.size_bytes += segment.index.size_bytes
        while self.size_bytes > self._limit_bytes:
            oldest, size = self._segments.popitem(last=False)
            self.size_bytes -= size
            if not oldest.unsaved():
                oldest.index = None

    def forget(self, segment: Segment) -> None:
        self.size_bytes -= self._segments.pop(segment, 0)
