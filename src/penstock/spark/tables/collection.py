"""Deletion of old files that a table's latest version does not need.

Failed attempts leave files that no commit names, and Spark's temporary directories. Compaction and
upserts leave the files that they replaced, which readers of older versions may still scan. Files
and directories at the table's top level whose names begin with an underscore are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow.fs as pa_fs

from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.spark.errors import InvalidOption
from penstock.spark.tables.location import absolute, check_readable, filesystem, open_table

ORPHAN_AGE_HOURS_MIN: Final = 1
ORPHAN_AGE_HOURS_DEFAULT: Final = 24 * 7
STAGED_DIRECTORIES_MAX: Final = 100_000
MILLISECONDS_PER_HOUR: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Deleted paths, relative to the table; after a dry run, the paths that would be deleted."""

    files: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()


def remove_orphans(
    table: str,
    *,
    older_than_hours: int = ORPHAN_AGE_HOURS_DEFAULT,
    execute: bool = True,
    storage_options: Mapping[str, str] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Collected:
    """Delete files that the table's latest version does not use, once they are old enough.

    These are files of failed attempts, files that compaction or an upsert replaced, and staging
    directories without files.

    Args:
        table: directory or URI of the table; a table that does not exist has nothing to delete.
        older_than_hours: age from which files are deleted.
        execute: False only lists them.
        storage_options: options of an object store, as `deltalake` names them.

    Raises:
        InvalidOption: the age is so low that files of a running attempt could be deleted.
        UnreadableTable: the table uses a feature such as deletion vectors, whose files are not
            Parquet files.
    """
    if older_than_hours < ORPHAN_AGE_HOURS_MIN:
        raise InvalidOption(
            "older_than_hours", older_than_hours, f"must be at least {ORPHAN_AGE_HOURS_MIN}"
        )
    opened = open_table(table, storage_options)
    if opened is None:
        return Collected()
    check_readable(opened, table)
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
    """Yield staging directories older than `before_ms` that contain no file at any depth."""
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
