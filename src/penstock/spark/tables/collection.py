"""Collection by age of files that a table does not need.

Failed attempts leave files that no commit names, and Spark's temporary directories; compaction and
upserts leave replaced files, which readers of older versions may still scan. Entries at the table's
top that begin with an underscore are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow.fs as pa_fs

from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.spark.errors import InvalidOption
from penstock.spark.tables.features import check_readable
from penstock.spark.tables.location import absolute, filesystem, open_table

ORPHAN_AGE_HOURS_MIN: Final = 1
ORPHAN_AGE_HOURS_DEFAULT: Final = 24 * 7
STAGED_DIRECTORIES_MAX: Final = 100_000
MILLISECONDS_PER_HOUR: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Paths below the table that were removed, or would be."""

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
    """Delete what the table's latest version does not need and what is older than this.

    These are files of failed attempts, files that compaction or an upsert replaced, and staged
    directories without files. `execute=False` only lists them.

    Raises:
        InvalidOption: an age that a running attempt may still have.
        UnreadableTable: the table has files beside its Parquet files, such as deletion vectors.
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
    """Return staged directories without a file, even below, that are older than this."""
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
