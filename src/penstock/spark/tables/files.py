"""Parquet files that Spark wrote, as add actions of a Delta commit, statistics included.

The statistics come from the files' footers, so the data is not read again. Only types whose
order and text form every Delta reader agrees on get a minimum and a maximum; a column of another
type, or one with a row group without statistics, gets none, which costs a reader some skipping and
never a row.

Source: the Delta transaction protocol, "Add File and Remove File" and "Per-file Statistics".
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
STATISTICS_COLUMNS_MAX: Final = 32
STATISTICS_TEXT_CHARS_MAX: Final = 32
FILES_MAX: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A Parquet file below the table, its rows, and the action that adds it."""

    rows: int
    action: AddAction


def written_files(
    filesystem: pa_fs.FileSystem, root: str, directory: str, partition_by: Sequence[str]
) -> list[WrittenFile]:
    """Every Parquet file with rows in `directory`, a path relative to the table's `root`."""
    found: list[WrittenFile] = []
    selector = pa_fs.FileSelector(f"{root}/{directory}", recursive=True)
    for info in filesystem.get_file_info(selector):
        name = info.base_name
        if info.type != pa_fs.FileType.File or not name.endswith(".parquet") or name[0] in "._":
            continue
        with filesystem.open_input_file(info.path) as handle:
            footer = pq.read_metadata(handle)
        if footer.num_rows:
            relative = info.path[info.path.index(f"/{directory}/") + 1 :]
            action = AddAction(
                path=relative,
                size=info.size,
                partition_values=_partition_values(relative, partition_by),
                modification_time=int(info.mtime.timestamp() * 1_000),
                data_change=True,
                stats=json.dumps(_statistics(footer)),
            )
            found.append(WrittenFile(rows=footer.num_rows, action=action))
    return sorted(found, key=lambda item: item.action.path)


def _partition_values(relative: str, partition_by: Sequence[str]) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    for part in relative.split("/"):
        name, equals, text = part.partition("=")
        if equals and unquote(name) in partition_by:
            values[unquote(name)] = None if text == NULL_PARTITION else unquote(text)
    return values


def _statistics(footer: pq.FileMetaData) -> dict[str, Any]:
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(min(footer.num_columns, STATISTICS_COLUMNS_MAX)):
        name = footer.schema.column(index).path
        if "." in name:
            continue
        groups = [footer.row_group(group).column(index) for group in range(footer.num_row_groups)]
        if any(not group.is_stats_set for group in groups):
            continue
        statistics = [group.statistics for group in groups]
        if all(item.has_null_count for item in statistics):
            nulls[name] = sum(item.null_count for item in statistics)
        bounds = list(_bounds(statistics))
        if bounds and len(bounds) == len([item for item in statistics if item.num_values]):
            low[name] = min(bound[0] for bound in bounds)
            high[name] = max(bound[1] for bound in bounds)
    return {
        "numRecords": footer.num_rows,
        "minValues": {name: _text(value) for name, value in low.items()},
        "maxValues": {name: _text(value) for name, value in high.items()},
        "nullCount": nulls,
    }


def _bounds(statistics: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    for item in statistics:
        if not item.has_min_max:
            continue
        kinds = (int, float, str, datetime.datetime, datetime.date)
        ends = (item.min, item.max)
        if not all(isinstance(end, kinds) and not isinstance(end, bool) for end in ends):
            continue
        if any(isinstance(end, str) and len(end) > STATISTICS_TEXT_CHARS_MAX for end in ends):
            continue
        if any(isinstance(end, float) and end != end for end in ends):  # NaN has no order
            continue
        yield ends


def _text(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        # Delta keeps milliseconds in statistics; the microseconds are kept here because readers
        # take longer fractions, and a maximum cut off below its value would lose rows.
        zoned = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
        return zoned.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value
