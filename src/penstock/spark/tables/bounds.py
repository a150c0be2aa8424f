"""Columns with reliable bounds: those that `deltalake` writes and reads correctly.

Readers skip files by bounds. `deltalake` leaves NaN and infinities out of bounds, rounds decimals
to doubles, and cannot read its form of days and moments outside of the years 1 to 9999. So only
columns of other types, and of days and moments within these years, get statistics.

A table lists the columns with bounds in its property `STATISTICS`, because the dataset of
`deltalake` expects bounds of exactly these. A column is removed from the list by its first odd
value, and never added again. The list of a table with features is fixed, because changing it would
add features that other readers lack; there columns that may have odd values are never listed.

Source: the Delta transaction protocol, "Per-file Statistics".
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from penstock.spark.errors import TableMismatch
from penstock.spark.schema import quoted
from penstock.spark.tables.features import WRITER_VERSION_FEATURES

STATISTICS: Final = "delta.dataSkippingStatsColumns"
"""Table property with the columns that have statistics."""
DOUBLE_DIGITS: Final = 15
"""Decimal digits that a double represents exactly."""
_FIRST: Final = datetime.date(1, 1, 1)
_LAST: Final = datetime.date(9999, 12, 31)
_NAME: Final = re.compile(r"`((?:[^`]|``)*)`|([^,`\s][^,`]*)")


def bounded(rows: pa.Table, table: DeltaTable | None) -> tuple[str, ...]:
    """Return the columns that may have statistics once these rows are merged into the table."""
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
    """Return whether the protocol of a table lists features, so that its properties are fixed."""
    return bool(table.protocol().min_writer_version >= WRITER_VERSION_FEATURES)


def unlisted(root: str, table: DeltaTable, bounds: Sequence[str]) -> bool:
    """Return whether a merge with these bounds has to change the list of its table.

    Raises:
        TableMismatch: it has to, and the list is fixed; the message has the list to set.
    """
    if listed(table.metadata().configuration) == frozenset(bounds):
        return False
    if has_features(table):
        raise TableMismatch(
            f"table {root}: merges cannot keep statistics of other columns than "
            f"{', '.join(bounds) or 'none'}, nor change the properties of a table with features. "
            f"Set {STATISTICS} = '{property_of(bounds)[STATISTICS]}' with Delta's own connector"
        )
    return True


def property_of(columns: Iterable[str]) -> dict[str, str]:
    """Return the property of a table in which these columns have statistics."""
    return {STATISTICS: ",".join(quoted(name) for name in columns)}


def listed(properties: Mapping[str, str | None]) -> frozenset[str] | None:
    """Return the columns that a table's properties list; None if they list none."""
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
    """Return whether bounds of a type mean the same to every reader."""
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
        zone = None if values.type.tz is None else datetime.UTC
        least = datetime.datetime.combine(_FIRST, datetime.time.min, zone)
        most = datetime.datetime.combine(_LAST, datetime.time.max, zone)
    ends = pc.min_max(values)
    return bool(
        pc.less(ends["min"], pa.scalar(least, values.type)).as_py()
        or pc.greater(ends["max"], pa.scalar(most, values.type)).as_py()
    )


def _without_bounds(table: DeltaTable, names: Iterable[str]) -> Iterator[str]:
    """Return the columns of which some file with values has no bounds."""
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
