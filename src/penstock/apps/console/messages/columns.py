"""Evaluation of filter expressions over the columns of many records at once.

Paths into JSON are read by the product's JSON kernels: all fields that a filter names are read in
one pass, as their JSON texts. Comparisons and matches are Arrow's compute functions; its regular
expressions are RE2. Rows are handled one by one only if a value has an unexpected form.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from penstock.apps.console.messages.expressions import (
    NUMBERS,
    SIDES,
    Comparison,
    Expression,
    Joined,
    Literal,
    Match,
    Not,
    Path,
    paths_of,
)
from penstock.base.settings import LONG_MAX
from penstock.formats.framing import header_values
from penstock.formats.json.decode import JsonReader
from penstock.formats.json.json_schema import Field, Items, Leaf, Record, Shape

Steps: TypeAlias = tuple[str | int, ...]

_WRAPPER: Final = "_"
"""Name of the only field of a document that wraps another."""
_EXACT_MAX: Final = 1 << 53
NUMBER: Final = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_FUNCTIONS: Final = {
    "contains": pc.match_substring,
    "startswith": pc.starts_with,
    "endswith": pc.ends_with,
    "test": pc.match_substring_regex,
}
_COMPARISONS: Final = {
    "==": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_TEXT: Final = Record(fields=(Field(name="text", shape=Leaf(data_type=pa.string())),))


class Operand(Struct, frozen=True, kw_only=True):
    """Values of one path in all records.

    `json` has their JSON texts, and `text` the texts of those that are strings. A `whole` key,
    value or header need not be JSON: each is a string.
    """

    json: Any
    text: Any
    whole: bool = False

    def number(self) -> Any:
        """Return the numbers; null for other values."""
        if pa.types.is_integer(self.json.type):
            return self.json
        found = pc.match_substring_regex(self.json, NUMBER)
        texts = pc.if_else(found, self.json, pa.scalar(None, pa.string()))
        try:
            return texts.cast(pa.float64())
        except pa.ArrowInvalid:  # an exponent that is out of range
            numbers = [None if text is None else float(text) for text in texts.to_pylist()]
            return pa.array(numbers, pa.float64())


class Inputs(Struct, frozen=True, kw_only=True):
    """Columns of records that a filter reads.

    `documents` has the keys and values as JSON or text, in bytes; only those that the filter names.
    """

    numbers: Any
    documents: dict[str, Any]
    headers: Any = None
    count: int


class Filter:
    """Filter that selects records by columns."""

    def __init__(self, expression: Expression) -> None:
        self._expression = expression
        self._paths = tuple(dict.fromkeys(paths_of(expression)))

    @property
    def roots(self) -> frozenset[str]:
        """Parts of records that the filter reads."""
        return frozenset(path.root for path in self._paths)

    def flags(self, inputs: Inputs) -> Any:
        """Return a boolean for each record, without nulls."""
        operands: dict[Path, Operand] = {}
        for root in SIDES:
            steps = [path.steps for path in self._paths if path.root == root and path.steps]
            for below, column in _fields(inputs.documents[root], steps).items() if steps else ():
                operands[Path(root, below)] = Operand(json=column, text=unquoted(column))
        for path in self._paths:
            if path not in operands:
                operands[path] = _whole(path, inputs)
        return self._flags(self._expression, operands, inputs.count)

    def _flags(self, expression: Expression, operands: dict[Path, Operand], count: int) -> Any:
        if isinstance(expression, Not):
            return pc.invert(self._flags(expression.term, operands, count))
        if isinstance(expression, Joined):
            join = pc.and_ if expression.word == "and" else pc.or_
            flags = self._flags(expression.terms[0], operands, count)
            for term in expression.terms[1:]:
                flags = join(flags, self._flags(term, operands, count))
            return flags
        operand = operands[expression.path]
        if isinstance(expression, Comparison):
            return _compared(operand, expression.sign, expression.literal)
        if isinstance(expression, Match):
            return _matched(operand, expression.function, expression.text)
        return pc.invert(pc.or_(_equal(operand, None), _equal(operand, False)))


def _compared(operand: Operand, sign: str, literal: Literal) -> Any:
    if sign == "!=":
        return pc.invert(_equal(operand, literal))
    if sign == "==":
        return _equal(operand, literal)
    if literal is None or isinstance(literal, bool):
        return pa.repeat(False, len(operand.json))
    if isinstance(literal, str):
        return _COMPARISONS[sign](operand.text, literal).fill_null(False)
    return _COMPARISONS[sign](operand.number(), _bound(literal)).fill_null(False)


def _bound(literal: int | float) -> int | float:
    return float(literal) if abs(literal) > LONG_MAX else literal


def _equal(operand: Operand, literal: Literal) -> Any:
    column = operand.json
    numeric = pa.types.is_integer(column.type)
    if literal is None:
        return column.is_null() if numeric else pc.equal(column, "null").fill_null(True)
    if numeric and isinstance(literal, bool | str):
        return pa.repeat(False, len(column))
    if isinstance(literal, bool):
        return pc.equal(column, "true" if literal else "false").fill_null(False)
    if isinstance(literal, str):
        flags = pc.equal(operand.text, literal)
        if operand.whole:
            flags = pc.or_(flags, pc.equal(column, json.dumps(literal, ensure_ascii=False)))
        return flags.fill_null(False)
    if not numeric and isinstance(literal, int) and abs(literal) > _EXACT_MAX:
        return pc.equal(column, str(literal)).fill_null(False)
    return pc.equal(operand.number(), _bound(literal)).fill_null(False)


def _matched(operand: Operand, function: str, text: str) -> Any:
    column = operand.json
    if pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    elif not operand.whole:  # objects and arrays are searched as JSON
        column = pc.coalesce(operand.text, column)
    return _FUNCTIONS[function](column, text).fill_null(False)


# Whole keys, values, headers and numbers


def _whole(path: Path, inputs: Inputs) -> Operand:
    if path.root in NUMBERS:
        column = inputs.numbers[path.root]
        return Operand(json=column, text=pa.nulls(len(column), pa.string()))
    if path.root == "headers":
        column = header_column(inputs.headers, str(path.steps[0]), inputs.count)
    else:
        column = inputs.documents[path.root]
    texts = as_texts(column)
    return Operand(json=texts, text=texts, whole=True)


def header_column(headers: Any, name: str, count: int) -> Any:
    """Return the first value of a header in each record; null where it is missing."""
    found = header_values(headers, name)
    if found is None:
        return pa.nulls(count, pa.binary())
    rows, values = found
    places = np.full(count, -1)
    places[rows] = np.arange(len(rows))
    return values.take(pa.array(places, mask=places < 0))


def as_texts(column: Any) -> Any:
    """Return bytes as texts; invalid UTF-8 becomes the replacement character."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [
            None if value is None else value.decode("utf-8", "replace")
            for value in column.to_pylist()
        ]
        return pa.array(texts, pa.string())


# Fields of JSON documents


def json_texts(documents: Any) -> Any:
    """Return the JSON texts of documents that are objects or arrays; null for all others.

    A text has each name at most once in an object.
    """
    whole = _Field((_WRAPPER,), listed=False)
    return _read(_wrapped(_only(documents, r"[{\[]"), _WRAPPER), [whole])[whole]


class _Field(NamedTuple):
    """Field of a document: the names that lead to it, and whether its elements are read."""

    names: tuple[str, ...]
    listed: bool


def _fields(documents: Any, paths: Sequence[Steps]) -> dict[Steps, Any]:
    """Return the JSON texts of each path in documents; null where a document has no such field."""
    found: dict[Steps, Any] = {}
    beginnings = [steps for steps in paths if isinstance(steps[0], int)]
    if beginnings:
        wrapped = {steps: (_WRAPPER, *steps) for steps in beginnings}
        inner = _fields(_wrapped(_only(documents, r"\["), _WRAPPER), list(wrapped.values()))
        found |= {steps: inner[longer] for steps, longer in wrapped.items()}
    named = [steps for steps in paths if isinstance(steps[0], str)]
    fields = {steps: _field_of(steps) for steps in named}
    objects = _only(documents, r"\{") if named else documents
    columns: dict[_Field, Any] = {}
    for group in _groups(list(dict.fromkeys(fields.values()))):
        columns |= _read(objects, group)
    for steps, field in fields.items():
        column = columns[field]
        found[steps] = _element(column, steps[len(field.names) :]) if field.listed else column
    return found


def _only(documents: Any, opening: str) -> Any:
    """Return the documents that begin with a pattern after spaces; others are null."""
    found = pc.match_substring_regex(documents, rf"^[ \t\r\n]*{opening}")
    return pc.if_else(found, documents, pa.scalar(None, documents.type))


def _wrapped(documents: Any, name: str) -> Any:
    """Return objects with one field, which has the document."""
    parts = (f'{{"{name}":'.encode(), documents.cast(pa.binary()), b"}", b"")
    return pc.binary_join_element_wise(*parts)


def _field_of(steps: Steps) -> _Field:
    names = tuple(takewhile(lambda step: isinstance(step, str), steps))
    return _Field(tuple(map(str, names)), len(names) < len(steps))


def _element(lists: Any, steps: Steps) -> Any:
    """Return the JSON texts of an element of each list, or of a path below it."""
    index, below = steps[0], steps[1:]
    part = pc.list_slice(lists, index, int(index) + 1, return_fixed_size_list=True)
    element = pc.list_element(part, 0)
    if not below:
        return element
    longer = (_WRAPPER, *below)
    return _fields(_wrapped(element, _WRAPPER), [longer])[longer]


def _groups(fields: Sequence[_Field]) -> list[list[_Field]]:
    """Return fields in groups, in which none leads through another."""
    groups: list[list[_Field]] = []
    for field in fields:
        for group in groups:
            if not any(_meet(field.names, other.names) for other in group):
                group.append(field)
                break
        else:
            groups.append([field])
    return groups


def _meet(left: Sequence[str], right: Sequence[str]) -> bool:
    shared = min(len(left), len(right))
    return left[:shared] == right[:shared]


def _read(documents: Any, fields: Sequence[_Field]) -> dict[_Field, Any]:
    """Read fields of documents in one pass.

    A field of an unexpected form makes the whole document unreadable, so the fields of such
    documents are read again one by one.
    """
    rows, errors = JsonReader(record=_record(fields)).read(documents)
    columns = {field: pc.struct_field(rows, list(field.names)) for field in fields}
    wrong = errors.is_valid()
    if len(fields) == 1 or not pc.any(wrong).as_py():
        return columns
    flags = wrong.to_numpy(zero_copy_only=False)
    order = np.arange(len(flags))
    order[flags] = len(flags) + np.arange(np.count_nonzero(flags))
    rest = documents.filter(wrong)
    return {
        field: pa.concat_arrays([column, _read(rest, [field])[field]]).take(pa.array(order))
        for field, column in columns.items()
    }


def _record(fields: Sequence[_Field]) -> Record:
    below: dict[str, list[_Field]] = {}
    for field in fields:
        below.setdefault(field.names[0], []).append(_Field(field.names[1:], field.listed))
    return Record(
        fields=tuple(Field(name=name, shape=_shape(rest)) for name, rest in below.items())
    )


def _shape(fields: Sequence[_Field]) -> Shape:
    if fields[0].names:
        return _record(fields)
    return Items(item=Leaf()) if fields[0].listed else Leaf()


def unquoted(column: Any) -> Any:
    """Return the texts of JSON strings; null for other values."""
    quoted = pc.if_else(pc.starts_with(column, '"'), column, pa.scalar(None, pa.string()))
    texts = pc.utf8_slice_codeunits(quoted, 1, -1)
    escaped = pc.match_substring(texts, "\\").fill_null(False)
    if not pc.any(escaped).as_py():
        return texts
    documents = pc.binary_join_element_wise('{"text":', quoted, "}", "").cast(pa.binary())
    rows, _ = JsonReader(record=_TEXT).read(documents)
    return pc.if_else(escaped, rows.field("text"), texts)
