"""Selection of the columns whose minimum and maximum are recorded as statistics.

Readers skip files by these bounds, so wrong bounds would lose rows. `deltalake` leaves NaN and
infinities out of bounds and rounds decimals to doubles. It also cannot read its own bounds of dates
and timestamps outside of the years 1 to 9999. Therefore floating-point columns and long decimals
get no bounds, and a date or timestamp column has them only while its values stay within these
years.

The table property `STATISTICS` lists the columns with bounds. `deltalake` expects every file to
have bounds for exactly these columns. The first date or timestamp outside of these years removes
its column from the list permanently.

If a table's protocol lists features, its properties are never changed here, because `deltalake`
would then add features that other readers lack. A timestamp without time zone gives a table its
first feature, so from then on the list omits all dates and timestamps.

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
"""Table property that lists the columns with statistics."""
DOUBLE_DIGITS: Final = 15
"""Decimal digits that a double represents exactly."""
_FIRST: Final = datetime.date(1, 1, 1)
_LAST: Final = datetime.date(9999, 12, 31)
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
    """Return whether the table's protocol lists features, so that its properties are fixed."""
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
        zone = None if values.type.tz is None else datetime.UTC
        least = datetime.datetime.combine(_FIRST, datetime.time.min, zone)
        most = datetime.datetime.combine(_LAST, datetime.time.max, zone)
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
