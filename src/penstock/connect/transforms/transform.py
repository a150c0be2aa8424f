"""Base classes of transforms: settings with a function from rows to rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.settings import Kind, NoEffect, parse_list, setting
from penstock.connect.errors import RowsRejected
from penstock.connect.paths import (
    Change,
    FieldPath,
    changed_at,
    column_of,
    field_at,
    parse_path,
    with_column,
)
from penstock.connect.plugins import KEY, VALUE, Records
from penstock.connect.steps import Transform

SHOWN_CHARS_MAX: Final = 80


def _place(value: object) -> FieldPath:
    path = parse_path(value) if isinstance(value, str) else None
    if path is None or path.steps[0] not in (KEY, VALUE):
        raise ValueError("must be key or value, or a struct in it such as value.after")
    return path


def _path(value: object) -> FieldPath:
    if not isinstance(value, str):
        raise ValueError("must be the name of a field")
    return parse_path(value.strip())


def _paths(value: object) -> tuple[FieldPath, ...]:
    paths = tuple(parse_path(word) for word in parse_list(value))
    if not paths:
        raise ValueError("must name at least one field")
    return paths


FIELD: Final = Kind("field", _path)
FIELDS: Final = Kind("fields", _paths)
PLACE: Final = Kind("`key` or `value`", _place)


class FieldOptions(Transform):
    """Transform whose options name fields."""

    field_syntax_version: str = setting(
        "", "Meaning of dots in names of fields: in `V1` they are part of the name, in `V2` they"
        " separate the names of nested fields.", choices=("", "V1", "V2"),
        shown="a field with the whole name, else as `V2`",
    )  # fmt: skip
    replace_null_with_default: bool = setting(
        True, "Option of Kafka Connect.", no_effect=NoEffect(why="rows have no default values")
    )

    def steps(self, path: FieldPath, kind: Any) -> tuple[str, ...] | None:
        """Return the names of a field in a type; None if there is no such field."""
        return path.found(kind, self.field_syntax_version)

    def value_of(self, path: FieldPath, column: Any) -> Any:
        """Return the column of a field; a field that does not exist is null."""
        steps = self.steps(path, column.type)
        return pa.nulls(len(column)) if steps is None else field_at(column, steps)

    def each(self, paths: Iterable[FieldPath], column: Any, change: Callable[..., Any]) -> Any:
        """Return a column in which `change(field, path=…)` replaced each field that exists."""
        for path in paths:
            steps = self.steps(path, column.type)
            if steps is None:
                continue
            try:
                column = changed_at(column, steps, partial(change, path=path))
            except RowsRejected as error:
                reasons = [f"{path.text}: {reason}" for reason in error.reasons]
                raise RowsRejected(error.rows, reasons) from error
        return column


class ColumnTransform(FieldOptions):
    """Transform of keys or of values.

    Null keys and values are kept, unless the transform's description says otherwise.
    """

    of: FieldPath = setting(
        parse_path(VALUE), "Column that is transformed: `key` or `value`. A path such as"
        " `value.after` transforms a struct in it.", kind=PLACE, shown="`value`",
    )  # fmt: skip

    def apply(self, records: Records) -> Iterable[Records]:
        return [self.changed(records, lambda column: self.change(column, records))]

    def changed(self, records: Records, change: Change) -> Records:
        """Return rows in which `change` replaced the key, the value, or a struct in it."""
        name, *inside = self.of.steps
        column = column_of(records.rows, name)
        steps = FieldPath("", tuple(inside)).found(column.type, "V2")
        if steps is None:
            return records
        after = changed_at(column, steps, change)
        if after is column:
            return records
        return records.with_rows(with_column(records.rows, name, after))

    def change(self, column: Any, records: Records) -> Any:
        """Return the column after the transform.

        Raises:
            RowsRejected: some rows cannot be transformed.
        """
        return column


def reject(bad: Any, reason: str, values: Any = None) -> None:
    """Raise RowsRejected if any row is bad.

    Args:
        bad: booleans by row (NumPy or Arrow); nulls are not bad.
        reason: reason of each row, in which `{}` is replaced by the row's value.
        values: column of the values in the reasons.
    """
    if not isinstance(bad, np.ndarray):
        bad = bad.fill_null(False).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(bad)
    if not rows.size:
        return
    reasons = [reason] * rows.size
    if values is not None:
        shown = values.take(pa.array(rows)).to_pylist()
        reasons = [reason.replace("{}", repr(value)[:SHOWN_CHARS_MAX]) for value in shown]
    raise RowsRejected(rows.tolist(), reasons)


def content(texts: Any) -> tuple[Any, Any]:
    """Return the bytes of a column of texts, and the bounds of the texts in them (NumPy)."""
    if not len(texts):
        return np.empty(0, np.uint8), np.zeros(1, np.int32)
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data or b"", np.uint8), bounds


def need_struct(column: Any, *, nulls: bool = True) -> bool:
    """Return whether a column is a struct; reject values of another type.

    Return False if all values are null.

    Args:
        nulls: whether null values are allowed.
    """
    if not nulls and column.null_count:
        reject(column.is_null(), "the value is null, and has no fields")
    if pa.types.is_struct(column.type):
        return True
    plain = pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    hint = "; set the source to parse its values" if plain else ""
    reject(column.is_valid(), f"a value of type {column.type} has no fields{hint}")
    return False


def constant(value: Any, like: Any) -> Any:
    """Return a column with one value, null where `like` is null."""
    if not isinstance(value, pa.Scalar):
        value = pa.scalar(value)
    column = pa.repeat(value, len(like))
    return (
        pc.if_else(like.is_valid(), column, pa.scalar(None, value.type))
        if like.null_count
        else column
    )
