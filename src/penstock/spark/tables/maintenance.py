"""Tables kept small and fast: many small files made few, and files that nobody needs removed.

Theory of operation. Compaction reads small files and writes large ones, in one commit that
removes the former and adds the latter and says that no data changed. It is `deltalake`'s own: it
runs in this process, not on executors, and knows what a commit of removals may not run into.

- An append beside it conflicts with nothing: it removes no file, and compaction takes only files
  that were there when it began. Identifiers of batches are in the table's state and stay.
- An upsert or another compaction beside it may remove the same files: who commits second fails
  whole and begins anew, here up to `COMPACT_ATTEMPTS_MAX` times.

Replaced files stay for readers of older versions until collection by age removes them, together
with what attempts that died left: files of no commit, and Spark's temporary directories. The age
must be longer than any attempt and any read of an older version takes.

Source: the Delta transaction protocol, "Add File and Remove File" (dataChange).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow.fs as pa_fs
from deltalake.exceptions import CommitFailedError

from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.spark.errors import InvalidOption
from penstock.spark.tables.location import absolute, filesystem, open_table

TARGET_BYTES_DEFAULT: Final = 128 << 20
TARGET_BYTES_MIN: Final = 64 << 10
COMPACT_ATTEMPTS_MAX: Final = 5
COMPACT_TASKS_DEFAULT: Final = 2
ORPHAN_AGE_HOURS_MIN: Final = 1
ORPHAN_AGE_HOURS_DEFAULT: Final = 24 * 7
STAGED_DIRECTORIES_MAX: Final = 100_000
MILLISECONDS_PER_HOUR: Final = 3_600_000

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What a compaction did; `version` is the table's version after it."""

    files_removed: int
    files_added: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Paths below the table that were removed, or would be."""

    files: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()


def compact(
    table: str,
    *,
    target_bytes: int = TARGET_BYTES_DEFAULT,
    tasks_max: int = COMPACT_TASKS_DEFAULT,
    storage_options: Mapping[str, str] | None = None,
) -> Compacted | None:
    """Rewrite small files as files of about `target_bytes`; None when there is no table.

    Each task holds the rows of one file to write in memory. Safe beside writers and readers.

    Raises:
        InvalidOption: a target or a number of tasks out of bounds.
        deltalake.exceptions.CommitFailedError: other writers removed the same files each time.
    """
    if target_bytes < TARGET_BYTES_MIN:
        raise InvalidOption("target_bytes", target_bytes, f"must be at least {TARGET_BYTES_MIN}")
    if tasks_max < 1:
        raise InvalidOption("tasks_max", tasks_max, "must be at least 1")
    for attempt in range(1, COMPACT_ATTEMPTS_MAX + 1):
        opened = open_table(table, storage_options)
        if opened is None:
            return None
        try:
            metrics: dict[str, Any] = opened.optimize.compact(
                target_size=target_bytes, max_concurrent_tasks=tasks_max
            )
        except CommitFailedError as error:
            if attempt == COMPACT_ATTEMPTS_MAX:
                raise
            _LOG.info("table %s: compaction: %s; trying again", table, error)
            continue
        return Compacted(
            files_removed=int(metrics["numFilesRemoved"]),
            files_added=int(metrics["numFilesAdded"]),
            version=opened.version(),
        )
    return None


def remove_orphans(
    table: str,
    *,
    older_than_hours: int = ORPHAN_AGE_HOURS_DEFAULT,
    execute: bool = True,
    storage_options: Mapping[str, str] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Collected:
    """Delete what the table's latest version does not need and what is older than this.

    These are files of attempts that died, files that compaction or an upsert replaced, and staged
    directories without files. `execute=False` only says which.

    Raises:
        InvalidOption: an age that a running attempt may still have.
    """
    if older_than_hours < ORPHAN_AGE_HOURS_MIN:
        raise InvalidOption(
            "older_than_hours", older_than_hours, f"must be at least {ORPHAN_AGE_HOURS_MIN}"
        )
    opened = open_table(table, storage_options)
    if opened is None:
        return Collected()
    files = opened.vacuum(
        retention_hours=older_than_hours,
        dry_run=not execute,
        enforce_retention_duration=False,
        full=True,
    )
    before_ms = clock.now_ms() - older_than_hours * MILLISECONDS_PER_HOUR
    directories = tuple(_empty_directories(absolute(table), before_ms))
    if execute:
        found, root = filesystem(table)
        for directory in directories:
            found.delete_dir(f"{root}/{directory}")
    return Collected(files=tuple(files), directories=directories)


def _empty_directories(table: str, before_ms: int) -> Iterator[str]:
    """Staged directories that hold no file, not even below, and have not changed since."""
    found, root = filesystem(table)
    if not isinstance(found, pa_fs.LocalFileSystem):
        return  # an object store has no directories of its own
    selector = pa_fs.FileSelector(f"{root}/batches", allow_not_found=True)
    for info in found.get_file_info(selector)[:STAGED_DIRECTORIES_MAX]:
        if info.type != pa_fs.FileType.Directory:
            continue
        inside = found.get_file_info(pa_fs.FileSelector(info.path, recursive=True))
        ages_ms = [_changed_ms(item.mtime) for item in (info, *inside)]
        files = any(item.type != pa_fs.FileType.Directory for item in inside)
        if not files and max(ages_ms) < before_ms:
            yield info.path[len(root) + 1 :]


def _changed_ms(at: datetime) -> int:
    return int(at.timestamp() * 1_000)
