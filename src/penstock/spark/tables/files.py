"""Parquet files that Spark or Arrow wrote, as add actions of a Delta commit, statistics included.

The statistics come from the files' footers, as physical values, so the data is not read again. Only
columns of the types below get a minimum and a maximum, which every reader of Delta tables
understands in the same way:

    integers
    dates, and timestamps with and without a zone, within the years 1 to 9999
    strings of at most `STATISTICS_TEXT_CHARS_MAX` characters

Floating types get none, as NaN has no place in an order that readers agree on; nor do decimals,
which readers round, nor nested types. A column without bounds costs a reader some skipping and
never a row.

Source: the Delta transaction protocol, "Add File and Remove File" and "Per-file Statistics"; the
Parquet format, "Logical Types".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final

import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from penstock.spark.tables.partitions import partition_values

STATISTICS_COLUMNS_MAX: Final = 32
STATISTICS_TEXT_CHARS_MAX: Final = 32
FILES_MAX: Final = 100_000
_EPOCH: Final = datetime(1970, 1, 1)
_DAYS_MAX: Final = date.max.toordinal()
_EPOCH_DAYS: Final = date(1970, 1, 1).toordinal()


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A Parquet file below the table, its rows, and the action that adds it."""

    rows: int
    action: AddAction


def written_files(
    filesystem: pa_fs.FileSystem, root: str, directory: str, partition_by: Sequence[str]
) -> list[WrittenFile]:
    """Return every Parquet file with rows in `directory`, a path relative to the table's `root`."""
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
                partition_values=partition_values(relative, partition_by),
                modification_time=int(info.mtime.timestamp() * 1_000),
                data_change=True,
                stats=json.dumps(_statistics(footer)),
            )
            found.append(WrittenFile(rows=footer.num_rows, action=action))
    return sorted(found, key=lambda item: item.action.path)


def _statistics(footer: pq.FileMetaData) -> dict[str, Any]:
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(min(footer.num_columns, STATISTICS_COLUMNS_MAX)):
        column = footer.schema.column(index)
        name = column.path
        if "." in name:
            continue
        groups = [footer.row_group(group).column(index) for group in range(footer.num_row_groups)]
        if any(not group.is_stats_set for group in groups):
            continue
        statistics = [group.statistics for group in groups]
        if all(item.has_null_count for item in statistics):
            nulls[name] = sum(item.null_count for item in statistics)
        filled = [item for item in statistics if item.num_values]
        if not filled or not all(item.has_min_max for item in filled):
            continue
        ends = (min(item.min_raw for item in filled), max(item.max_raw for item in filled))
        bounds = [_bound(column, end) for end in ends]
        if None not in bounds:
            low[name], high[name] = bounds
    return {"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _bound(column: pq.ColumnSchema, value: Any) -> Any:
    """A physical value as statistics show it; None for what they do not show."""
    logical = column.logical_type
    kind = logical.type
    if isinstance(value, bytes):
        return _text(value) if kind == "STRING" else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    if kind in {"NONE", "INT"}:
        return value
    if kind == "DATE":
        ordinal = value + _EPOCH_DAYS
        return date.fromordinal(ordinal).isoformat() if 1 <= ordinal <= _DAYS_MAX else None
    if kind == "TIMESTAMP":
        return _moment(value, json.loads(logical.to_json()))
    return None


def _text(value: bytes) -> str | None:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if len(text) <= STATISTICS_TEXT_CHARS_MAX else None


def _moment(micros: int, logical: dict[str, Any]) -> str | None:
    # Delta keeps milliseconds in statistics; the microseconds are kept here because readers take
    # longer fractions, and a maximum cut off below its value would lose rows.
    if logical["timeUnit"] != "microseconds":
        return None
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None
    return moment.isoformat(timespec="microseconds") + ("Z" if logical["isAdjustedToUTC"] else "")
