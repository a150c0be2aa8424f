"""Decoder of JSON values to Arrow columns, with an error text for each invalid value.

Kernels read the values that are certainly valid. The slow reader (`plain.py`) reads the others one
by one. Kernels only mark numbers that need exact arithmetic; Arrow converts these together.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats import framing
from penstock.formats.columns import narrow, validity
from penstock.formats.json.json_schema import Check, Items, Record
from penstock.formats.json.plain import Conversion, read_plain
from penstock.formats.json.program import Arenas, Program, arrow_type
from penstock.formats.value_format import Framing
from penstock.formats.values import Values
from penstock.kernels import json_layout as layout

# Fast checks of JSON Schema conditions on whole columns.
#
# Values that may fail are read again by the slow reader (`plain.py`), which decides exactly.
#
# Source: JSON Schema 2020-12, "Validation".


Flags = npt.NDArray[np.bool_]

_EXACT_MAX: Final = 1e15
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
    "minLength": operator.ge,
    "maxLength": operator.le,
    "minItems": operator.ge,
    "maxItems": operator.le,
}


def doubtful(checks: Sequence[Check], values: pa.Array, words: npt.NDArray[np.int64]) -> Flags:
    """Flag the values that may fail a check, which the slow reader then checks exactly.

    The flags of nulls are undefined.

    Args:
        words: the values as the kernel wrote them, in 64 bits each.
    """
    if values.type == pa.string():
        return _doubtful(checks, values, _text_holds)
    numbers = words.view(np.float64) if values.type == pa.float64() else words
    return _doubtful(checks, numbers, _number_holds)


def doubtful_sizes(checks: Sequence[Check], sizes: npt.NDArray[np.int64]) -> Flags:
    """Flag the sizes of JSON arrays that may fail a check, such as `minItems`."""
    return _doubtful(checks, sizes, _number_holds)


def _doubtful(checks: Sequence[Check], values: Any, holds: Callable[[Any, Check], Flags]) -> Flags:
    made = np.zeros(len(values), np.bool_)
    for check in checks:
        made |= ~holds(values, check)
    return made


def _text_holds(values: pa.Array, check: Check) -> Flags:
    if check.keyword == "enum":
        found = pc.is_in(values, value_set=pa.array(check.bound, pa.string()))
        return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)
    sizes = pc.utf8_length(values).fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(_COMPARISONS[check.keyword](sizes, check.bound), np.bool_)


def _number_holds(values: Any, check: Check) -> Flags:
    if check.keyword == "enum":
        return np.isin(values, np.array(check.bound))
    if check.keyword == "multipleOf":
        return _is_multiple(values, check.bound)
    if isinstance(check.bound, float):
        values = values.astype(np.float64)
    return np.asarray(_COMPARISONS[check.keyword](values, check.bound), np.bool_)


def _is_multiple(values: Any, step: int | float) -> Flags:
    """Return a flag for each value: whether it is certainly a multiple of `step`.

    A double counts as a multiple if it is the double nearest to one. All flags are False if `step`
    has more than 15 digits.
    """
    if values.dtype == np.int64 and isinstance(step, int):
        return np.asarray(values % step == 0, np.bool_)
    exact = Decimal(str(step))
    places = max(0, -int(exact.as_tuple().exponent))
    if places > 15 or abs(exact.scaleb(places)) > _EXACT_MAX:
        return np.zeros(len(values), np.bool_)
    unscaled = float(exact.scaleb(places))
    wanted = values.astype(np.float64)
    multiple = np.rint(wanted / step) * unscaled
    return np.asarray((abs(multiple) < _EXACT_MAX) & (multiple / 10.0**places == wanted), np.bool_)


Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonReader:
    """Reader of JSON objects of one shape, with or without a registry's header (`framed`)."""

    record: Record
    framed: Framing = "none"
    ids: tuple[int, ...] = ()
    conversion: Conversion = field(default_factory=Conversion)

    def arrow_type(self) -> pa.DataType:
        return arrow_type(self.record)

    def read(
        self, values: pa.BinaryArray, headers: pa.ListArray | None = None
    ) -> tuple[pa.StructArray, pa.StringArray]:
        """Return a struct per value, and the error text of each invalid value.

        The struct of an invalid value is null.
        """
        found = Values.of(values)
        foreign = framing.skip_header(found, (), self.ids) if self.framed == "confluent" else None
        decoded, errors = self.read_values(found)
        return decoded, framing.with_errors(errors, foreign)

    def read_values(self, values: Values) -> tuple[pa.StructArray, pa.StringArray]:
        """Return what `read` returns for values without a header."""
        batch, made = self._parsed(values)
        slow = np.flatnonzero(batch.status == layout.SLOW)
        found = [
            read_plain(self.record, batch.content(row), self.conversion) for row in slow.tolist()
        ]
        for row, (_, words) in zip(slow.tolist(), found, strict=True):
            if words is not None:
                batch.errors[row] = words
        return _replaced(made, slow, [value for value, _ in found]), batch.error_texts()

    def certain_values(self, values: Values) -> pa.StructArray | None:
        """Return a struct per value; None if the kernels cannot read some of the values."""
        batch, made = self._parsed(values)
        return made if (batch.status == layout.GOOD).all() else None

    def _parsed(self, values: Values) -> tuple[_Batch, pa.StructArray]:
        batch = _Batch(values)
        arenas = Arenas(Program.of(self.record, self.conversion), len(values), batch.size_bytes)
        batch.parse(arenas)
        batch.convert(arenas)
        return batch, _Columns(arenas, batch).rows()


def _replaced(made: pa.Array, rows: Longs, values: Sequence[Any]) -> pa.Array:
    right = np.array([value is not None for value in values], np.bool_)
    if not right.any():
        return made
    more = pa.array([value for value in values if value is not None], made.type)
    index = np.arange(len(made))
    index[rows[right]] = len(made) + np.arange(len(more))
    return pa.concat_arrays([made, more]).take(pa.array(index))


class _Batch:
    def __init__(self, found: Values) -> None:
        self.data, self.starts, self.ends = found.data, found.starts, found.ends
        self.size_bytes = found.size_bytes
        self.status = np.where(found.problems, layout.ABSENT, layout.GOOD).astype(np.uint8)
        wrong = np.flatnonzero(found.problems > 0)
        self.errors = {
            row: framing.WORDS[problem]
            for row, problem in zip(wrong.tolist(), found.problems[wrong].tolist(), strict=True)
        }

    def content(self, row: int) -> bytes:
        return self.data[self.starts[row] : self.ends[row]].tobytes()

    def parse(self, arenas: Arenas) -> None:
        """Read all values with the kernel; whenever an array is full, enlarge it and continue."""
        from penstock.kernels.json_values import read_values

        done = 0
        while done < self.starts.size:
            done = read_values(
                self.data, self.starts, self.ends, done, self.status, arenas.nodes, arenas.fields,
                arenas.columns, arenas.names, arenas.levels, arenas.stack, arenas.noted,
                arenas.words, arenas.words.view(np.float64), arenas.flags, arenas.heap,
                arenas.marks, arenas.state,
            )  # fmt: skip
            if done < self.starts.size:
                arenas.grow()

    def convert(self, arenas: Arenas) -> None:
        """Convert the texts of marked numbers to the nearest floats with Arrow."""
        marks = arenas.marks[: arenas.state[layout.MARKS]]
        reals = arenas.words.view(np.float64)
        for single, data_type in ((0, pa.float64()), (1, pa.float32())):
            chosen = marks[marks[:, layout.MARK_SINGLE] == single]
            if not chosen.size:
                continue
            texts = self.texts(np.ascontiguousarray(chosen[:, layout.MARK_TEXT]), arenas)
            try:
                made = texts.cast(data_type).to_numpy(zero_copy_only=False).astype(np.float64)
            except pa.ArrowInvalid:
                # A number is too large or too small for the type, so convert one by one.
                made = np.array([float(text) for text in texts.to_pylist()])
                made[(made == 0) | (abs(made) > _SURE[data_type])] = np.inf
            reals[chosen[:, layout.MARK_WORD]] = made
            self.status[chosen[~np.isfinite(made), layout.MARK_ROW]] = layout.SLOW

    def texts(self, words: Longs, arenas: Arenas) -> pa.StringArray:
        from penstock.kernels.json_values import gather_texts

        offsets = np.zeros(words.size + 1, np.int32)
        np.cumsum(words & layout.SIZE_MASK, out=offsets[1:])
        target = np.empty(int(offsets[-1]), np.uint8)
        gather_texts(self.data, arenas.heap, words, offsets, target)
        return pa.Array.from_buffers(
            pa.string(), words.size, [None, pa.py_buffer(offsets), pa.py_buffer(target)], 0
        )

    def error_texts(self) -> pa.StringArray:
        count = self.status.size
        if not self.errors:
            return pa.nulls(count, pa.string())
        which = np.zeros(count, np.int64)
        which[list(self.errors)] = np.arange(1, len(self.errors) + 1)
        table = pa.array([None, *self.errors.values()], pa.string())
        return table.take(pa.array(which))


_SURE = {pa.float64(): 1e308, pa.float32(): 0.0}
"""Largest absolute value, by type, up to which Python's double of a text is used."""


class _Columns:
    def __init__(self, arenas: Arenas, batch: _Batch) -> None:
        self._arenas = arenas
        self._batch = batch
        self._shapes = arenas.program.shapes

    def rows(self) -> pa.Array:
        """Return a struct per row; null for null values and for rows of the slow reader."""
        parts = self._parts(0)
        return self._struct(0, parts, self._batch.status == layout.GOOD)

    def _array(self, node: int) -> pa.Array:
        kind = self._arenas.nodes[node, layout.KIND]
        if kind == layout.RECORD:
            flags = self._arenas.flags_of(self._arenas.column_of(node))
            return self._struct(node, self._parts(node), flags)
        if kind in (layout.LIST, layout.MAP):
            return self._list(node, kind == layout.MAP)
        return self._leaf(node)

    def _parts(self, node: int) -> list[pa.Array]:
        return [self._array(child) for child in self._arenas.program.children[node]]

    def _struct(self, node: int, parts: list[pa.Array], there: Any) -> pa.Array:
        nulls = len(there) - int(np.count_nonzero(there))
        made = arrow_type(self._shapes[node])
        return pa.Array.from_buffers(made, len(there), [validity(there)], nulls, children=parts)

    def _doubt(self, node: int, wrong: Any) -> None:
        """Leave rows to the slow reader if `wrong` flags their value at a node."""
        if wrong.any():
            level = int(self._arenas.nodes[node, layout.LEVEL])
            rows = self._rows_of(level)[wrong]
            self._batch.status[rows[self._batch.status[rows] == layout.GOOD]] = layout.SLOW

    def _rows_of(self, level: int) -> Longs:
        if level == 0:
            return np.arange(self._batch.status.size)
        node = self._arenas.program.lists[level]
        lengths = self._arenas.words_of(self._arenas.column_of(node))
        return np.repeat(self._rows_of(int(self._arenas.nodes[node, layout.LEVEL])), lengths)

    def _list(self, node: int, mapped: bool) -> pa.Array:
        column = self._arenas.column_of(node)
        lengths = self._arenas.words_of(column)
        offsets = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        items = self._parts(node)[0]
        flags = self._arenas.flags_of(column)
        shape = self._shapes[node]
        if isinstance(shape, Items) and shape.checks:
            self._doubt(node, flags.astype(np.bool_) & doubtful_sizes(shape.checks, lengths))
        made = arrow_type(shape)
        if mapped:
            words = self._arenas.words_of(self._arenas.key_column_of(node))
            keys = self._batch.texts(words, self._arenas)
            entry = pa.struct([made.key_field, made.item_field])
            items = pa.Array.from_buffers(entry, len(items), [None], 0, children=[keys, items])
        return pa.Array.from_buffers(
            made, len(lengths), [validity(flags), pa.py_buffer(offsets)],
            int(len(flags) - np.count_nonzero(flags)), children=[items],
        )  # fmt: skip

    def _leaf(self, node: int) -> pa.Array:
        column = self._arenas.column_of(node)
        words, flags = self._arenas.words_of(column), self._arenas.flags_of(column)
        leaf: Any = self._shapes[node]
        made = arrow_type(leaf)
        nulls = int(len(flags) - np.count_nonzero(flags))
        if made == pa.string():
            texts = self._batch.texts(words, self._arenas)
            held = texts.buffers()[1:]
        else:
            held = [pa.py_buffer(_native(words, made))]
        array = pa.Array.from_buffers(made, len(flags), [validity(flags), *held], nulls)
        if leaf.checks:
            self._doubt(node, flags.astype(np.bool_) & doubtful(leaf.checks, array, words))
        return array


def _native(words: Longs, made: pa.DataType) -> Any:
    if made == pa.float32():
        return words.view(np.float64).astype(np.float32)
    return narrow(words, made.bit_width)
