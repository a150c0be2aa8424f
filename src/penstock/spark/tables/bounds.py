"""Columns whose statistics `deltalake` writes rightly.

Readers leave out files whose bounds say that no row can match. `deltalake` leaves NaN and
infinities out of bounds, rounds decimals to doubles, and writes days and moments outside of the
years 1 to 9999 in a form that it cannot read itself. So only columns of other types get
statistics, and of days and moments only those whose values are all within these years: those of
the rows at hand, and those of the table's files, which are rewritten with them. A file has no
bounds for a column that has odd values; that is how they are known.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

DOUBLE_DIGITS: Final = 15
"""Decimal digits that a double keeps."""
_FIRST: Final = datetime.date(1, 1, 1)
_LAST: Final = datetime.date(9999, 12, 31)


def bounded(rows: pa.Table, table: DeltaTable | None) -> tuple[str, ...]:
    """Return the columns that may have statistics when these rows are merged into the table."""
    fields = {field.name: field.type for field in rows.schema}
    if table is not None:
        fields |= {field.name: field.type for field in pa.schema(table.schema().to_arrow())}
    temporal = [name for name, kind in fields.items() if pa.types.is_temporal(kind)]
    odd = {name for name in temporal if name in rows.column_names and _has_odd(rows[name])}
    if table is not None and len(odd) < len(temporal):
        odd |= set(_without_bounds(table, temporal))
    return tuple(name for name, kind in fields.items() if _is_exact(kind) and name not in odd)


def _is_exact(kind: pa.DataType) -> bool:
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
    ends = pc.min_max(values)
    whole = pa.types.is_date(values.type)
    least: Any = _FIRST if whole else datetime.datetime.combine(_FIRST, datetime.time.min)
    most: Any = _LAST if whole else datetime.datetime.combine(_LAST, datetime.time.max)
    if not whole and values.type.tz is not None:
        least, most = (end.replace(tzinfo=datetime.UTC) for end in (least, most))
    return bool(
        pc.less(ends["min"], pa.scalar(least, values.type)).as_py()
        or pc.greater(ends["max"], pa.scalar(most, values.type)).as_py()
    )


def _without_bounds(table: DeltaTable, names: list[str]) -> Iterator[str]:
    """The columns of which some file with values has no bounds."""
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
