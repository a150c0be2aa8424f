"""Survey of an outbox's directories: payloads, their ages, and leftovers of writers.

A survey reads directories and never changes them. It ends after `SURVEY_SECONDS`, or after
`BATCHES_MAX` batches; its numbers are then lower bounds. Importing this module imports Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from penstock.base.system import Clock
from penstock.outbox.gc.pointer_index import Window
from penstock.outbox.gc.sweeper import DEFAULT_RULES
from penstock.outbox.gc.tree import Batch, TreeFiles, WalkCounts, looks, open_root, walk

SURVEY_SECONDS: Final = 1.5
"""Longest duration of a survey, but for the rest of a step of the walk."""
BATCHES_MAX: Final = 100_000
"""Number of batches after which a survey ends."""
FAILURES_SHOWN: Final = 20


class Payloads(Struct, kw_only=True):
    """Payloads of one partition id, or of a whole outbox. Times are those of the files.

    `old` are past the retention of `penstock outbox sweep`, which removes them once all groups have
    read them. `temporaries` are files of attempts; `abandoned` ones are old enough to be removed.
    `empty` are directories without files that are old enough to be removed.
    """

    partition_id: str = ""
    payloads: int = 0
    size_bytes: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    old: int = 0
    old_bytes: int = 0
    temporaries: int = 0
    temporary_bytes: int = 0
    abandoned: int = 0
    abandoned_bytes: int = 0
    empty: int = 0

    def add(self, batch: Batch, now_ms: int) -> None:
        """Add a batch directory."""
        rules = DEFAULT_RULES
        if batch.data is not None:
            modified_ms, size_bytes = batch.data.modified_ms, batch.data.size_bytes
            self.payloads += 1
            self.size_bytes += size_bytes
            self.oldest_ms = min(modified_ms, self.oldest_ms or modified_ms)
            self.newest_ms = max(modified_ms, self.newest_ms or modified_ms)
            if now_ms - modified_ms >= rules.retention_ms:
                self.old += 1
                self.old_bytes += size_bytes
        for file in batch.temporaries:
            self.temporaries += 1
            self.temporary_bytes += file.size_bytes
            if rules.removes_temporary(file.modified_ms, now_ms=now_ms):
                self.abandoned += 1
                self.abandoned_bytes += file.size_bytes
        files = batch.others + len(batch.temporaries) + (batch.data is not None)
        if not files and rules.removes_directory(batch.modified_ms, now_ms=now_ms):
            self.empty += 1


class Survey(Struct, frozen=True, kw_only=True):
    """Result of a survey. Unless `whole`, it ended at its limit."""

    total: Payloads
    partitions: Sequence[Payloads]
    foreign: int
    """Entries that do not follow the layout of outboxes."""
    failures: Sequence[str]
    whole: bool


class _LimitReached(Exception):
    """The limit of a survey was reached."""


def survey(root: str, clock: Clock, *, batches_max: int = BATCHES_MAX) -> Survey:
    """Walk an outbox. Blocks; call it in a thread.

    Raises:
        RootUnavailable: the root is missing, or is not a directory.
    """
    files, counts, now_ms = TreeFiles(), WalkCounts(), clock.now_ms()
    ends = clock.monotonic() + SURVEY_SECONDS
    total, found, batches_seen, whole = Payloads(), dict[str, Payloads](), 0, True

    def limited() -> bool:
        return clock.monotonic() >= ends or batches_seen >= batches_max

    def leave(*_: object) -> None:
        if limited():
            raise _LimitReached

    handle = open_root(files, Path(root))
    try:
        for hour in walk(files, handle, Window(), counts, leave):
            name = hour.path.partition("/")[0]
            here = found.setdefault(name, Payloads(partition_id=name))
            for batches in looks(files, hour, counts):
                for batch in batches:
                    total.add(batch, now_ms)
                    here.add(batch, now_ms)
                batches_seen += len(batches)
                if limited():
                    break
    except _LimitReached:
        whole = False
    finally:
        files.close(handle)
    return Survey(
        total=total,
        partitions=[*found.values()],
        foreign=counts.foreign,
        failures=counts.failed[:FAILURES_SHOWN],
        whole=whole,
    )
