"""Statistics of files that Spark or Arrow wrote: bounds, by which readers skip files.

The bounds come from the Parquet footer as physical values, so the data is not read again. They are
written in a form that every reader of Delta tables understands. Strings are cut to `TEXT_CHARS_MAX`
characters.

A new table lists up to `COLUMNS_MAX` columns whose type has reliable bounds (`is_exact`). A
file gets bounds for all columns that its table lists, or for none. It gets none if a date is
outside of the years 1 to 9999, or if another tool's table expects bounds of floating-point columns.

Source: the Delta transaction protocol, "Per-file Statistics"; the Parquet format, "Logical Types".
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema

from penstock.spark.errors import TableMismatch
from penstock.spark.schema import quoted
from penstock.spark.tables.location import WRITER_VERSION_FEATURES

# Selection of the columns whose minimum and maximum are recorded as statistics.
#
# Readers skip files by these bounds, so wrong bounds would lose rows. `deltalake` leaves NaN and
# infinities out of bounds and rounds decimals to doubles. It also cannot read its own bounds of
# dates and timestamps outside of the years 1 to 9999. Therefore floating-point columns and long
# decimals get no bounds, and a date or timestamp column has them only while its values stay within
# these years.
#
# The table property `STATISTICS` lists the columns with bounds. `deltalake` expects every file to
# have bounds for exactly these columns. The first date or timestamp outside of these years removes
# its column from the list permanently.
#
# If a table's protocol lists features, its properties are never changed here, because `deltalake`
# would then add features that other readers lack. A timestamp without time zone gives a table its
# first feature, so from then on the list omits all dates and timestamps.
#
# Source: the Delta transaction protocol, "Per-file Statistics".


STATISTICS: Final = "delta.dataSkippingStatsColumns"
"""Table property that lists the columns with statistics."""
DOUBLE_DIGITS: Final = 15
"""Decimal digits that a double represents exactly."""
_FIRST: Final = date(1, 1, 1)
_LAST: Final = date(9999, 12, 31)
_NAME: Final = re.compile(r"`((?:[^`]|``)*)`|([^,`\s][^,`]*)")


def bounded(rows: pa.Table, table: DeltaTable | None) -> tuple[str, ...]:
    """Return the columns that may keep statistics once these rows are merged into the table."""
    if table is None:
        fields: Iterable[pa.Field] = rows.schema
        partitions: Collection[str] = ()
    else:
        fields = pa.schema(table.schema().to_arrow())
        partitions = table.metadata().partition_columns
    fixed = (table is None or not has_features(table)) and any(map(is_local, rows.schema.types))
    exact = [
        field.name
        for field in fields
        if is_exact(field.type)
        and not (fixed and pa.types.is_temporal(field.type))
        and field.name not in partitions
        and not (field.name in rows.column_names and _has_odd(rows[field.name]))
    ]
    if table is None:
        return tuple(exact)
    known = listed(table.metadata().configuration)
    if known is None:
        known = frozenset(exact).difference(_without_bounds(table, exact))
    return tuple(name for name in exact if name in known)


def has_features(table: DeltaTable) -> bool:
    """Return whether the table's protocol lists features.

    This package cannot change the properties of such a table.
    """
    return bool(table.protocol().min_writer_version >= WRITER_VERSION_FEATURES)


def unlisted(root: str, table: DeltaTable, bounds: Sequence[str]) -> bool:
    """Return whether the table's property `STATISTICS` must change before a merge.

    `bounds` are the columns that have statistics after the merge.

    Raises:
        TableMismatch: the property must change, but the table has features. The message has the
            value to set.
    """
    if listed(table.metadata().configuration) == frozenset(bounds):
        return False
    if has_features(table):
        raise TableMismatch(
            f"table {root}: a merge can only keep statistics of the columns "
            f"{', '.join(bounds) or '(none)'}, but it cannot change the table's property, because "
            "the table's protocol lists features. "
            f"Set {STATISTICS} = '{property_of(bounds)[STATISTICS]}' with Delta's own connector"
        )
    return True


def property_of(columns: Iterable[str]) -> dict[str, str]:
    """Return the table property that lists these columns as the ones with statistics."""
    return {STATISTICS: ",".join(quoted(name) for name in columns)}


def listed(properties: Mapping[str, str | None]) -> frozenset[str] | None:
    """Return the columns that the table property `STATISTICS` lists; None if it is not set."""
    given = properties.get(STATISTICS)
    if given is None:
        return None
    found = _NAME.finditer(given)
    return frozenset(
        item[2].strip() if item[1] is None else item[1].replace("``", "`") for item in found
    )


def is_local(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return kind.tz is None
    return any(is_local(kind.field(at).type) for at in range(kind.num_fields))


def is_exact(kind: pa.DataType) -> bool:
    """Return whether every reader of Delta tables interprets bounds of this type alike."""
    types = pa.types
    if types.is_decimal(kind):
        return bool(kind.precision <= DOUBLE_DIGITS)
    return bool(
        types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_temporal(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
    )


def _has_odd(values: pa.ChunkedArray) -> bool:
    if not pa.types.is_temporal(values.type):
        return False
    least: Any = _FIRST
    most: Any = _LAST
    if not pa.types.is_date(values.type):
        zone = None if values.type.tz is None else UTC
        least = datetime.combine(_FIRST, time.min, zone)
        most = datetime.combine(_LAST, time.max, zone)
    ends = pc.min_max(values)
    return bool(
        pc.less(ends["min"], pa.scalar(least, values.type)).as_py()
        or pc.greater(ends["max"], pa.scalar(most, values.type)).as_py()
    )


def _without_bounds(table: DeltaTable, names: Iterable[str]) -> Iterator[str]:
    """Yield the columns for which some file has values but no bounds."""
    actions = pa.table(table.get_add_actions(flatten=True))
    if not actions.num_rows:
        return
    for name in names:
        known = (f"min.{name}", f"null_count.{name}", "num_records")
        if any(actions.column_names.count(column) != 1 for column in known):
            yield name
            continue
        least, nulls, rows = (actions[column] for column in known)
        empty = pc.fill_null(pc.equal(nulls, rows), False)
        if pc.any(pc.and_not(pc.is_null(least), empty)).as_py():
            yield name


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
    """Convert a bound from a Parquet footer to its JSON value in Delta's file statistics.

    Returns None for a type or a date that statistics cannot represent.
    """
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
