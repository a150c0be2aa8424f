"""Merge of the rows that a predicate selected with the others, in their order.

Columns have one type. If the transform has added or removed fields of a struct, the merged rows
have the fields of both, and nulls in those that a row did not have. Rows of one topic whose types
cannot be merged are returned as several entries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.connect.paths import column_of, fields_of, struct_of
from penstock.connect.plugins import Records


def merged(others: Records, changed: list[Records], row: str) -> list[Records]:
    """Return rows that were not transformed, and transformed rows, by topic.

    Args:
        row: column with the rank of each row.
    """
    found = [others]
    for records in changed:
        same = [index for index, other in enumerate(found) if other.topic == records.topic]
        if not same:
            found.append(records)
            continue
        index = same[0]
        found[index : index + 1] = _together(found[index], records, row)
    return found


def _together(left: Records, right: Records, row: str) -> list[Records]:
    names = dict.fromkeys([*left.rows.column_names, *right.rows.column_names])
    columns = {}
    for name in names:
        pair = column_of(left.rows, name), column_of(right.rows, name)
        kind = _common(pair[0].type, pair[1].type)
        if kind is None:
            return _runs(left, right, row)
        columns[name] = pa.chunked_array([_conformed(column, kind) for column in pair], kind)
    table = pa.table(columns)
    return [left.with_rows(table.take(pc.sort_indices(table.column(row))))]


def _runs(left: Records, right: Records, row: str) -> list[Records]:
    """Return runs of rows of one type, in the order of the rows."""
    ranks = np.concatenate([records.rows.column(row).to_numpy() for records in (left, right)])
    order = np.argsort(ranks, kind="stable")
    from_right = order >= left.count
    starts = np.flatnonzero(np.diff(from_right, prepend=~from_right[:1]))
    found, taken = [], {False: 0, True: 0}
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        side = bool(from_right[start])
        records = right if side else left
        found.append(records.with_rows(records.rows.slice(taken[side], end - start)))
        taken[side] += int(end - start)
    return found


def _common(left: Any, right: Any) -> Any:
    """Return a type that has the values of two types; None if there is none."""
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if not (pa.types.is_struct(left) and pa.types.is_struct(right)):
        return None
    fields = {field.name: field.type for field in left}
    for field in right:
        kind = _common(fields.get(field.name, pa.null()), field.type)
        if kind is None:
            return None
        fields[field.name] = kind
    return pa.struct(list(fields.items()))


def _conformed(column: Any, kind: Any) -> Any:
    """Return a column in a type from `_common`."""
    if column.type == kind:
        return column
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), kind)
    fields = fields_of(column)
    return struct_of(
        {
            field.name: _conformed(fields.get(field.name, pa.nulls(len(column))), field.type)
            for field in kind
        },
        column,
    )
