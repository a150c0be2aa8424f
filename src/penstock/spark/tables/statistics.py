"""Statistics of files that Spark or Arrow wrote: bounds, by which readers skip files.

The bounds come from the Parquet footer as physical values, so the data is not read again. They are
written in a form that every reader of Delta tables understands. Strings are cut to `TEXT_CHARS_MAX`
characters.

A new table lists up to `COLUMNS_MAX` columns whose type has reliable bounds (`bounds.is_exact`). A
file gets bounds for all columns that its table lists, or for none. It gets none if a date is
outside of the years 1 to 9999, or if another tool's table expects bounds of floating-point columns.

Source: the Delta transaction protocol, "Per-file Statistics"; the Parquet format, "Logical Types".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema

from penstock.spark.tables.bounds import DOUBLE_DIGITS, is_exact, listed, property_of

COLUMNS_MAX: Final = 32
TEXT_CHARS_MAX: Final = 32
COUNTED: Final = "delta.dataSkippingNumIndexedCols"
_GREATEST: Final = "\U0010ffff"
_EPOCH: Final = datetime(1970, 1, 1)
_DAYS_MAX: Final = date.max.toordinal()
_EPOCH_DAYS: Final = date(1970, 1, 1).toordinal()


def configuration(schema: Schema, partition_by: Sequence[str] = ()) -> dict[str, str]:
    """Return the properties of a new table that say which columns have bounds."""
    fields = pa.schema(schema.to_arrow())
    names = [
        field.name for field in fields if is_exact(field.type) and field.name not in partition_by
    ]
    return property_of(names[:COLUMNS_MAX]) if names else {COUNTED: "0"}


def indexed_columns(
    schema: Schema, properties: Mapping[str, str | None], partition_by: Sequence[str]
) -> list[str]:
    """Return the columns for which readers expect bounds; it may contain a few more.

    If a nested column is listed, its top-level column is returned.

    Args:
        schema: the table's schema.
        properties: the table's properties.
        partition_by: partition columns, which have no bounds.
    """
    expected = [
        field.name
        for field in pa.schema(schema.to_arrow())
        if field.name not in partition_by and not _is_unbounded(field.type)
    ]
    if (named := listed(properties)) is not None:
        tops = named | {name.split(".")[0] for name in named}
        return [name for name in expected if name in tops]
    count = int(properties.get(COUNTED) or COLUMNS_MAX)
    return expected if count < 0 else expected[:count]


def indexed_in(table: DeltaTable) -> list[str]:
    """Return `indexed_columns` of an existing table."""
    facts = table.metadata()
    return indexed_columns(table.schema(), facts.configuration, facts.partition_columns)


def _is_unbounded(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(kind) or types.is_list(kind) or types.is_map(kind))


def statistics(footer: pq.FileMetaData, indexed: Collection[str]) -> dict[str, Any]:
    """Return a file's statistics from its footer: bounds for all `indexed` columns, or for none."""
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


def _bounds(footer: pq.FileMetaData, index: int, nulls: dict[str, int]) -> tuple[Any, Any] | None:
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
        return ("", _GREATEST * TEXT_CHARS_MAX) if text else None  # Arrow omits long bounds
    lows = [_bound(column, item.min_raw) for item in filled]
    highs = [_bound(column, item.max_raw) for item in filled]
    if None in lows or None in highs:
        return None
    low, high = min(lows), max(highs)
    return (low[:TEXT_CHARS_MAX], _above(high)) if text else (low, high)


def _above(text: str) -> str:
    """Return a text that is not less than the given one, shortened if possible."""
    cut = text[:TEXT_CHARS_MAX] + _GREATEST
    return cut if text > cut[:-1] and text <= cut else text


def _bound(column: pq.ColumnSchema, value: Any) -> Any:
    """Convert a physical value to its form in statistics; None if it has none."""
    logical = column.logical_type
    kind = logical.type
    if kind == "STRING":
        return _text(value)
    if kind == "DECIMAL":
        return _number(value, json.loads(logical.to_json()))
    if isinstance(value, bool):
        return value
    if not isinstance(value, int):
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


def _number(value: int | bytes, logical: dict[str, Any]) -> float | None:
    if logical["precision"] > DOUBLE_DIGITS:
        return None
    digits = int.from_bytes(value, "big", signed=True) if isinstance(value, bytes) else value
    return float(f"{digits}e-{logical['scale']}")


def _moment(micros: int, logical: dict[str, Any]) -> str | None:
    # Delta specifies milliseconds for statistics. Microseconds are written here, because readers
    # accept longer fractions, and a maximum that is cut below its value would lose rows.
    if logical["timeUnit"] != "microseconds":
        return None
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None
    return moment.isoformat(timespec="microseconds") + ("Z" if logical["isAdjustedToUTC"] else "")
