"""Statistics of a table's files: bounds of columns, by which readers leave files out.

Bounds come from Parquet footers, as physical values, so the data is not read again. Columns of the
types below get them, in a form that every reader of Delta tables understands in the same way:

    integers
    dates, and timestamps with and without a zone, within the years 1 to 9999
    strings, cut off after `TEXT_CHARS_MAX` characters

Floating types get none, as readers do not agree on NaN's place; nor do decimals, which readers
round, booleans, nor nested types.

A table says which columns have bounds, and `deltalake` finds no row in a file that has bounds of
some of these columns and lacks those of the one that a filter names. So a new table says that the
columns above are the ones, and a file has the bounds of all of its table's columns or of none.

Source: the Delta transaction protocol, "Per-file Statistics"; the Parquet format, "Logical Types";
"delta.dataSkippingStatsColumns" among the properties of Delta tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Final

import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema

COLUMNS_MAX: Final = 32
TEXT_CHARS_MAX: Final = 32
NAMED: Final = "delta.dataSkippingStatsColumns"
COUNTED: Final = "delta.dataSkippingNumIndexedCols"
_BOUNDED: Final = frozenset(
    {"byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz", "string"}
)
_UNBOUNDED: Final = frozenset({"binary", "array", "map"})
"""Types of which no reader expects bounds."""
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GREATEST: Final = "\U0010ffff"
_EPOCH: Final = datetime(1970, 1, 1)
_DAYS_MAX: Final = date.max.toordinal()
_EPOCH_DAYS: Final = date(1970, 1, 1).toordinal()


def configuration(schema: Schema, partition_by: Sequence[str] = ()) -> dict[str, str]:
    """Return the properties of a new table that name its columns with bounds."""
    names = [
        field.name
        for field in schema.fields
        if _kind(field.type) in _BOUNDED
        and field.name not in partition_by
        and _PLAIN_NAME.fullmatch(field.name)
    ]
    if not names:
        return {COUNTED: "0"}
    return {NAMED: ",".join(names[:COLUMNS_MAX])}


def indexed_columns(
    schema: Schema, properties: dict[str, str | None], partition_by: Sequence[str]
) -> list[str]:
    """Return the columns of which readers expect bounds, or more; nested ones by their first name.

    Args:
        properties: those of the table, as `configuration` gives them for a new one.
    """
    fields = [field for field in schema.fields if field.name not in partition_by]
    expected = [field.name for field in fields if _kind(field.type) not in _UNBOUNDED]
    if (named := properties.get(NAMED)) is not None:
        listed = {name.strip().strip("`").split(".")[0] for name in named.split(",")}
        return [name for name in expected if name in listed]
    count = int(properties.get(COUNTED) or COLUMNS_MAX)
    return expected if count < 0 else expected[:count]


def indexed_in(table: DeltaTable) -> list[str]:
    """Return the columns of which readers of a table expect bounds, or more."""
    facts = table.metadata()
    return indexed_columns(table.schema(), dict(facts.configuration), facts.partition_columns)


def statistics(footer: pq.FileMetaData, indexed: Collection[str]) -> dict[str, Any]:
    """Return a file's statistics: bounds of all of these columns, or of none."""
    nulls: dict[str, int] = {}
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    whole = True
    found = {footer.schema.column(index).path: index for index in range(footer.num_columns)}
    for name in indexed:
        index = found.get(name)
        if index is None and not any(path.startswith(f"{name}.") for path in found):
            nulls[name] = footer.num_rows  # the file is older than the column
            continue
        bounds = None if index is None else _bounds(footer, index, nulls)
        if bounds is None:
            whole = whole and nulls.get(name) == footer.num_rows
            continue
        low[name], high[name] = bounds
    shown = {"numRecords": footer.num_rows, "nullCount": nulls}
    return {**shown, "minValues": low, "maxValues": high} if whole and low else shown


def _kind(kind: Any) -> str:
    return str(kind.type)


def _bounds(footer: pq.FileMetaData, index: int, nulls: dict[str, int]) -> tuple[Any, Any] | None:
    """The bounds of a column; notes its nulls."""
    column = footer.schema.column(index)
    groups = [footer.row_group(group).column(index) for group in range(footer.num_row_groups)]
    if not all(group.is_stats_set and group.statistics.has_null_count for group in groups):
        return None
    found = [group.statistics for group in groups]
    nulls[column.path] = sum(item.null_count for item in found)
    filled = [item for item in found if item.num_values]
    if not filled:
        return None
    text = column.logical_type.type == "STRING"
    if not all(item.has_min_max for item in filled):
        return ("", _GREATEST * TEXT_CHARS_MAX) if text else None  # Arrow leaves out long ones
    low = _bound(column, min(item.min_raw for item in filled))
    high = _bound(column, max(item.max_raw for item in filled))
    if low is None or high is None:
        return None
    return (low[:TEXT_CHARS_MAX], _above(high)) if text else (low, high)


def _above(text: str) -> str:
    """A text that is not less than this one, and short if it can be."""
    cut = text[:TEXT_CHARS_MAX] + _GREATEST
    return cut if text > cut[:-1] and text <= cut else text


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
        return value.decode()
    except UnicodeDecodeError:
        return None


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
