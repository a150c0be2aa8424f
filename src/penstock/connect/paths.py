"""Paths of fields in rows, and changes of Arrow columns at a path.

A path is a name, or names with dots between them: `after.card`. A name in backticks may have dots.
Without a syntax version, a field whose name is the whole path is used if there is one, because
Kafka Connect's transforms read names like this (`Flatten` makes such names).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from penstock.connect.converting import whole

Change = Callable[[Any], Any]
"""Function from a column to the column that replaces it; None removes it."""
_STEP: Final = re.compile(r"`((?:[^`\\]|\\.|`(?!\.|$))*)`(?:\.|$)|([^.`][^.]*|)(?:\.|$)")


@dataclass(frozen=True, slots=True)
class FieldPath:
    """Path of a field as it is written."""

    text: str
    steps: tuple[str, ...]

    def found(self, kind: Any, syntax: str) -> tuple[str, ...] | None:
        """Return the names from the outermost to the field; None if a type has no such field.

        Args:
            syntax: `V1`, `V2`, or empty for both, as in `field_syntax_version`.
        """
        if syntax != "V2" and _type_at(kind, (self.text,)) is not None:
            return (self.text,)
        return self.steps if syntax != "V1" and _type_at(kind, self.steps) is not None else None

    def names(self, syntax: str) -> tuple[str, ...]:
        """Return the names of a field that does not exist."""
        return (self.text,) if syntax == "V1" else self.steps


def parse_path(text: str) -> FieldPath:
    """Return the path of a text.

    Raises:
        ValueError: the text is empty, or a backtick has no second one.
    """
    steps: list[str] = []
    at = 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            raise ValueError(f"backtick {at + 1} of {text!r} has no second one before a dot")
        quoted, plain = match.groups()
        steps.append(plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
        at = match.end()
    if not steps:
        raise ValueError("must name a field")
    return FieldPath(text, (*steps, "") if text.endswith(".") else tuple(steps))


def _type_at(kind: Any, steps: Sequence[str]) -> Any:
    for step in steps:
        index = kind.get_field_index(step) if pa.types.is_struct(kind) else -1
        if index < 0:
            return None
        kind = kind.field(index).type
    return kind


def field_at(column: Any, steps: Sequence[str]) -> Any:
    """Return the column of an existing field; it is null where a struct around it is null."""
    for step in steps:
        column = column.flatten()[column.type.get_field_index(step)]
    return column


def struct_of(fields: Mapping[str, Any], like: Any) -> Any:
    """Return a struct column of fields by name, null where `like` is null."""
    kind = pa.struct([(name, column.type) for name, column in fields.items()])
    valid = like.is_valid().buffers()[1] if like.null_count else None
    return pa.Array.from_buffers(kind, len(like), [valid], children=list(fields.values()))


def fields_of(column: Any) -> dict[str, Any]:
    """Return the fields of a struct column by name."""
    return dict(zip(column.type.names, column.flatten(), strict=True))


def changed_at(column: Any, steps: Sequence[str], change: Change) -> Any:
    """Return a column in which `change` replaced an existing field; without steps, itself."""
    if not steps:
        return change(column)
    fields = fields_of(column)
    after = changed_at(fields[steps[0]], steps[1:], change)
    if after is None:
        del fields[steps[0]]
    else:
        fields[steps[0]] = after
    return struct_of(fields, column)


def inserted(column: Any, steps: Sequence[str], added: Any) -> Any:
    """Return a struct column with a field added or replaced; structs around it are created."""
    fields = fields_of(column)
    name, rest = steps[0], steps[1:]
    if rest:
        inner = fields.get(name)
        if inner is None or not pa.types.is_struct(inner.type):
            inner = struct_of({}, column)
        added = inserted(inner, rest, added)
    fields[name] = added
    return struct_of(fields, column)


def column_of(rows: Any, name: str) -> Any:
    """Return a column as one array; nulls if there is no such column."""
    return whole(rows.column(name)) if name in rows.column_names else pa.nulls(len(rows))


def with_column(rows: Any, name: str, column: Any) -> Any:
    """Return rows with a column added or replaced; metadata of the column is kept."""
    index = rows.schema.get_field_index(name)
    if index < 0:
        return rows.append_column(name, column)
    field = pa.field(name, column.type, metadata=rows.schema.field(index).metadata)
    return rows.set_column(index, field, column)
