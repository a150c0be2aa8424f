"""Readers of Debezium's change events, which become a row's columns and the change.

JSON without a schema (`DebeziumReader`):

    {"op": "u", "before": …, "after": {"id": 7, …}, "source": {"lsn": 24, "ts_ms": …}, "ts_ms": …,
     "unchanged": ["body"]}

The row is `after`, for a delete `before`; a truncation has none. The column `_change` has the
operation, the LSN, the time, and the names of the columns whose value did not change and was not
sent. These are listed in `unchanged`, or have Debezium's marker as value. They are null.

Some values do not show their form, so the column's type decides: a decimal is a number, a text,
base64 of the unscaled bytes, or an object of scale and base64; a date is a number of days or a
text; a timestamp is a number of microseconds or milliseconds, or a text; bytes are base64. The
values of such columns are first read as JSON texts, and then converted by columns. Inside of
objects and maps, values are read as in the format `json`.

Source: Debezium's documentation of the PostgreSQL connector, "Data change events", "Data type
mappings", "Toasted values".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.json.decode import JsonReader
from penstock.formats.json.json_schema import Field, Items, Leaf, Record, Shape
from penstock.formats.json.plain import SHOWN_CHARACTERS, Conversion, type_name
from penstock.formats.json.program import arrow_type, unsupported
from penstock.formats.value_format import InvalidFormat

if TYPE_CHECKING:
    from penstock.formats.readers import Reader

CHANGE: Final = "_change"
"""Column with the change that a row came from."""
CHANGE_TYPE: Final = pa.struct(
    [
        ("op", pa.string()),
        ("lsn", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("unchanged", pa.list_(pa.string())),
    ]
)
MARKER: Final = "__debezium_unavailable_value"
"""Debezium's text in place of a value that did not change and was not sent."""
# Not arrays, because PyArrow imports pandas to make the first one, which takes 0.2 s.
_MARKERS: Final = (f'"{MARKER}"', '"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="')
_OPERATIONS: Final = ("c", "d", "r", "t", "u")
_TIMES: Final = Record(
    fields=tuple(Field(name=name, shape=Leaf(data_type=pa.int64())) for name in ("lsn", "ts_ms"))
)
_ENVELOPE: Final = Record(
    fields=(
        Field(name="op", shape=Leaf(data_type=pa.string(), nullable=False), required=True),
        Field(name="before", shape=Leaf()),
        Field(name="after", shape=Leaf()),
        Field(name="source", shape=_TIMES),
        Field(name="ts_ms", shape=Leaf(data_type=pa.int64())),
        Field(name="unchanged", shape=Items(item=Leaf(data_type=pa.string()))),
    )
)
_SCALED: Final = Record(
    fields=(
        Field(name="scale", shape=Leaf(data_type=pa.int32(), nullable=False), required=True),
        Field(name="value", shape=Leaf(data_type=pa.string(), nullable=False), required=True),
    )
)
_WHOLE: Final = r"^-?[0-9]{1,30}$"
_LONG_MAX: Final = 2**63 - 1
_MILLISECONDS_MAX: Final = _LONG_MAX // 1_000
_DAYS_MAX: Final = 2**31 - 1
_INFINITE: Final = (9_223_372_036_825_200_000, -9_223_372_036_832_400_000)
"""Infinite timestamps of PostgreSQL, in any unit; they are read as microseconds."""
_REALS: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_DECIMAL_BYTES: Final = 16
_PAD: Final = 64
_DIGITS: Final = np.full(256, 255, np.uint8)
"""Value of each byte as a digit of base64, with either alphabet; 255 for other bytes."""
for _number, _pair in enumerate(zip(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=",
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=", strict=True,
)):  # fmt: skip
    _DIGITS[list(_pair)] = _number

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class DebeziumReader:
    """Reader of change events of tables with the columns of `record`; it can be pickled.

    Args:
        record: shape of a row, as `checked` returns it.
        conversion: how numbers and times that do not fit exactly are converted.
        milliseconds: timestamp columns whose numbers are milliseconds; others are microseconds.
        base64_decimals: whether a string is base64 of a decimal's bytes, not its digits.
    """

    record: Record
    conversion: Conversion
    milliseconds: tuple[str, ...] = ()
    base64_decimals: bool = True

    def arrow_type(self) -> pa.DataType:
        columns = [(field.name, _column_type(field.shape)) for field in self.record.fields]
        return pa.struct([*columns, (CHANGE, CHANGE_TYPE)])

    def read(
        self, values: pa.BinaryArray, headers: pa.ListArray | None = None
    ) -> tuple[pa.StructArray, pa.StringArray]:
        """Return a struct per value, and the error text of each invalid value.

        The struct of an invalid value, and of a tombstone, is null.
        """
        envelopes, errors = JsonReader(record=_ENVELOPE).read(values)
        op, before, after, source, produced_ms, listed = envelopes.flatten()
        lsn, committed_ms = source.flatten()
        at = pc.coalesce(committed_ms, produced_ms)
        before, after = _without_null(before), _without_null(after)
        row = pc.if_else(pc.equal(op, "d"), before, pc.if_else(pc.equal(op, "t"), None, after))
        texts = [errors, *_complaints(op, before, after, at)]
        decoded, wrong = self._row_reader().read(row.cast(pa.binary()))
        texts.append(wrong)
        columns: list[pa.Array] = []
        marked: dict[int, Flags] = {}
        for number, (field, column) in enumerate(
            zip(self.record.fields, decoded.flatten(), strict=True)
        ):
            missing = _marked(field.shape, column)
            if missing is not None:
                marked[number] = missing
                column = pc.if_else(pa.array(missing), None, column)
            found, wrong = self._converted(field.name, field.shape, column)
            columns.append(found)
            texts.append(wrong)
        errors = pc.coalesce(*texts)
        names = [field.name for field in self.record.fields]
        change = pa.StructArray.from_arrays(
            [op, lsn, _micros(at), _unchanged(names, listed, marked)], fields=list(CHANGE_TYPE)
        )
        invalid = pc.or_(errors.is_valid(), envelopes.is_null())
        return (
            pa.StructArray.from_arrays(
                [*columns, change], fields=list(self.arrow_type()), mask=invalid
            ),
            errors,
        )

    def _row_reader(self) -> JsonReader:
        fields = tuple(replace(field, shape=_as_text(field.shape)) for field in self.record.fields)
        return JsonReader(record=replace(self.record, fields=fields), conversion=self.conversion)

    def _converted(self, name: str, shape: Shape, column: Any) -> tuple[pa.Array, pa.StringArray]:
        """Return a column with its own type, and the error text of each invalid value."""
        if not _is_text(shape):
            return column, pa.nulls(len(column), pa.string())
        if isinstance(shape, Leaf):
            return self._leaves(name, shape, column)
        item: Any = shape.item if isinstance(shape, Items) else shape
        found, wrong = self._leaves(f"{name}[]", item, pc.list_flatten(column))
        lengths = pc.list_value_length(column).fill_null(0).to_numpy()
        rows = pc.list_parent_indices(column).to_numpy()
        bad = np.flatnonzero(wrong.is_valid().to_numpy(zero_copy_only=False))
        first, index = np.unique(rows[bad], return_index=True)
        which = np.full(len(column), -1, np.int64)
        which[first] = bad[index]
        errors = wrong.take(pa.array(which, mask=which < 0))
        return _lists(found, lengths, column.is_null()), errors

    def _leaves(self, name: str, leaf: Leaf, texts: Any) -> tuple[pa.Array, pa.StringArray]:
        kind: Any = leaf.data_type
        texts = _without_null(texts)
        if kind == pa.binary():
            found = base64_bytes(_strings(texts))
            bad = pc.and_(texts.is_valid(), found.is_null())
            shown = pc.utf8_slice_codeunits(pc.if_else(bad, texts, None), 0, SHOWN_CHARACTERS)
            wrong = _joined(f"field {name}: ", shown, f" is not {type_name(kind)}")
            return found, wrong
        found = pa.nulls(len(texts), kind)
        if pa.types.is_decimal(kind):
            leaf = replace(leaf, text_too=not self.base64_decimals)
            texts = self._numerals(kind, texts)
        elif pa.types.is_floating(kind):
            found = _odd_reals(texts).cast(kind)
        else:
            found = _times(kind, texts, milliseconds=name.removesuffix("[]") in self.milliseconds)
        rest = pc.if_else(found.is_valid(), None, texts)
        if rest.null_count == len(rest):
            return found, pa.nulls(len(texts), pa.string())
        record = Record(fields=(Field(name=name, shape=leaf),))
        values = _joined(f"{{{json.dumps(name, ensure_ascii=False)}:", rest, "}")
        read, wrong = JsonReader(record=record, conversion=self.conversion).read(
            values.cast(pa.binary())
        )
        return pc.coalesce(found, read.flatten()[0]), wrong

    def _numerals(self, kind: pa.Decimal128Type, texts: Any) -> pa.StringArray:
        """Return JSON texts of decimals with numbers in place of base64; others are unchanged."""
        found = [texts]
        objects = pc.if_else(pc.starts_with(texts, "{"), texts, None)
        if objects.null_count < len(objects):
            scale, value = JsonReader(record=_SCALED).read(objects.cast(pa.binary()))[0].flatten()
            found.insert(0, _scaled(base64_bytes(value), pc.negate(scale).cast(pa.string())))
        if self.base64_decimals:
            found.insert(0, _scaled(base64_bytes(_strings(texts)), str(-kind.scale)))
        return pc.coalesce(*found)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeReader:
    """Reader of change events in another format, such as Avro; it can be pickled.

    Args:
        reader: reader of the envelopes.
        envelope: their type, as `checked_envelope` returns it.
    """

    reader: Reader
    envelope: pa.StructType

    def arrow_type(self) -> pa.DataType:
        return pa.struct([*self.envelope.field("after").type, (CHANGE, CHANGE_TYPE)])

    def read(
        self, values: pa.BinaryArray, headers: pa.ListArray | None = None
    ) -> tuple[pa.StructArray, pa.StringArray]:
        """Return results as `DebeziumReader.read` does."""
        found, errors = self.reader.read(values, headers)
        parts = dict(zip(found.type.names, found.flatten(), strict=True))
        op, before, after = parts["op"], parts["before"], parts["after"]
        lsn, committed_ms = (
            parts["source"].flatten()[at].cast(pa.int64())
            if (at := parts["source"].type.get_field_index(name)) >= 0
            else pa.nulls(len(found), pa.int64())
            for name in ("lsn", "ts_ms")
        )
        at = pc.coalesce(committed_ms, parts["ts_ms"])
        errors = pc.coalesce(errors, *_complaints(op, before, after, at))
        row = pc.if_else(pc.equal(op, "d"), before, after)
        columns: list[pa.Array] = []
        marked: dict[int, Flags] = {}
        for number, column in enumerate(row.flatten()):
            texts = column.type == pa.string()
            missing = pc.equal(column, MARKER).fill_null(False) if texts else None
            if missing is not None and pc.any(missing).as_py():
                marked[number] = missing.to_numpy(zero_copy_only=False)
                column = pc.if_else(missing, None, column)
            columns.append(column)
        unchanged = _unchanged(row.type.names, parts["unchanged"], marked)
        change = pa.StructArray.from_arrays(
            [op, lsn, _micros(at), unchanged], fields=list(CHANGE_TYPE)
        )
        invalid = pc.or_(errors.is_valid(), found.is_null())
        kind = self.arrow_type()
        return pa.StructArray.from_arrays(
            [*columns, change], fields=list(kind), mask=invalid
        ), errors


def with_unchanged(text: str) -> str:
    """Return an envelope's Avro schema with the field `unchanged`, which older versions lack.

    A reader without this field would drop it from values that have it.
    """
    schema = json.loads(text)
    if all(field["name"] != "unchanged" for field in schema.get("fields", ())):
        kind = ["null", {"type": "array", "items": ["null", "string"]}]
        added = {"name": "unchanged", "type": kind, "default": None}
        schema["fields"] = [*schema.get("fields", ()), added]
    return json.dumps(schema)


def checked_envelope(kind: Any) -> pa.StructType:
    """Return the type of envelopes for a reader.

    Raises:
        InvalidFormat: it is not that of change events, or a column has the name of the change.
    """
    parts = {field.name: field.type for field in kind}
    rows = [parts.get(name, pa.null()) for name in ("before", "after")]
    plain = (parts.get("op"), parts.get("ts_ms")) == (pa.string(), pa.int64())
    if not plain or rows[0] != rows[1] or not pa.types.is_struct(rows[1]):
        reason = "needs values with the fields op, ts_ms, before and after, with rows of one type"
        raise InvalidFormat("envelope", "debezium", reason)
    if CHANGE in (field.name.lower() for field in rows[1]):
        reason = f"has a column {CHANGE}, the name of the column with the change. Rename it"
        raise InvalidFormat("envelope", "debezium", reason)
    return kind


def _unchanged(names: list[str], listed: pa.ListArray, marked: dict[int, Flags]) -> pa.ListArray:
    """Return the names of each row's columns that are listed or marked as not sent."""
    count = len(listed)
    if not marked and not pc.any(pc.greater(pc.list_value_length(listed), 0)).as_py():
        return pa.nulls(count, CHANGE_TYPE.field("unchanged").type)
    unchanged = np.zeros((count, len(names)), np.bool_)
    rows = pc.list_parent_indices(listed).to_numpy()
    which = pc.index_in(pc.list_flatten(listed), value_set=pa.array(names))
    known = which.is_valid().to_numpy(zero_copy_only=False)
    unchanged[rows[known], which.drop_null().to_numpy()] = True
    for number, missing in marked.items():
        unchanged[:, number] |= missing
    flat = pa.array(names).take(pa.array(np.nonzero(unchanged)[1]))
    return _lists(flat, unchanged.sum(axis=1))


def checked(record: Record) -> Record:
    """Return the shape of rows for a reader.

    Raises:
        InvalidFormat: a column has a type, a name or a condition that change events do not allow.
    """
    for field in record.fields:
        if field.name.lower() == CHANGE:
            reason = "is the name of the column with the change. Rename it"
        elif field.required:
            reason = (
                "must be nullable, because deletes and unchanged values have nulls. Remove not "
                "null, and write a rule"
            )
        elif unsupported(_as_text(field.shape)) and not _is_text(field.shape):
            reason = "has a type that cannot be read from change events. Declare it as string"
        else:
            continue
        raise InvalidFormat("schema", field.name, reason)
    return record


def base64_bytes(texts: pa.StringArray) -> pa.BinaryArray:
    """Return the bytes of texts in base64; null for a text in another form and for null."""
    whole = pc.equal(pc.bit_wise_and(pc.binary_length(texts), 3), 0).fill_null(False)
    rows = np.flatnonzero(whole.to_numpy(zero_copy_only=False))
    chosen = texts.take(pa.array(rows))
    sizes = pc.binary_length(chosen).to_numpy().astype(np.int64)
    ends = np.cumsum(sizes)
    held = chosen.buffers()[2]
    size = int(ends[-1]) if rows.size else 0
    codes = _DIGITS[np.frombuffer(held, np.uint8, size)] if size else np.zeros(0, np.uint8)
    padded = codes == _PAD
    last, before_last = (
        np.where(sizes > 0, padded[ends - back], False) if size else np.zeros(rows.size, np.bool_)
        for back in (1, 2)
    )
    trailing = last.astype(np.int64) + (last & before_last)
    good = (_sums(padded, sizes, ends) == trailing) & (_sums(codes == 255, sizes, ends) == 0)
    digits = np.where(padded | (codes == 255), 0, codes).astype(np.uint32).reshape(-1, 4)
    words = digits[:, 0] << 18 | digits[:, 1] << 12 | digits[:, 2] << 6 | digits[:, 3]
    made = np.stack([words >> 16, words >> 8, words], axis=1).astype(np.uint8).reshape(-1)
    stays = np.ones(made.size, np.bool_)
    made_ends = ends // 4 * 3
    for back in (1, 2):
        stays[made_ends[trailing >= back] - back] = False
    offsets = np.zeros(rows.size + 1, np.int32)
    np.cumsum(sizes // 4 * 3 - trailing, out=offsets[1:])
    decoded = pa.Array.from_buffers(
        pa.binary(), rows.size, [None, pa.py_buffer(offsets), pa.py_buffer(made[stays])]
    )
    index = np.full(len(texts), -1, np.int64)
    index[rows[good]] = np.flatnonzero(good)
    return decoded.take(pa.array(index, mask=index < 0))


def _sums(flags: Flags, sizes: Any, ends: Any) -> Any:
    counts = np.zeros(flags.size + 1, np.int64)
    np.cumsum(flags, out=counts[1:])
    return counts[ends] - counts[ends - sizes]


def _scaled(raw: pa.BinaryArray, exponent: Any) -> pa.StringArray:
    """Return numbers as texts: signed big-endian bytes, times ten to the power of `exponent`."""
    sizes = pc.binary_length(raw).fill_null(0).to_numpy().astype(np.int64)
    ends = np.cumsum(sizes)
    held = np.frombuffer(raw.buffers()[2] or b"\0", np.uint8)
    held = held if held.size else np.zeros(1, np.uint8)
    lead = held[np.clip(ends - sizes, 0, held.size - 1)]
    back = np.arange(_DECIMAL_BYTES)
    given = held[np.clip(ends[:, None] - 1 - back, 0, held.size - 1)]
    sign = np.where(lead >= 128, 255, 0).astype(np.uint8)[:, None]
    words = np.ascontiguousarray(np.where(back < sizes[:, None], given, sign))
    whole = pa.Array.from_buffers(pa.decimal128(38, 0), len(raw), [None, pa.py_buffer(words)])
    texts = pc.if_else(pa.array((sizes > 0) & (sizes <= _DECIMAL_BYTES)), whole, None)
    texts = texts.cast(pa.string())
    if (long := sizes > _DECIMAL_BYTES).any():
        # A number of more than 128 bits; it fits a column only with zeros at its end.
        exact = [str(int.from_bytes(item, signed=True)) for item in raw.filter(long).to_pylist()]
        texts = pc.replace_with_mask(texts, pa.array(long), pa.array(exact))
    return _joined(texts, "e", exponent)


def _joined(*parts: Any) -> pa.StringArray:
    return pc.binary_join_element_wise(*parts, "")


def _lists(items: pa.Array, lengths: Any, gaps: pa.Array | None = None) -> pa.ListArray:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), items, mask=gaps)


def _without_null(texts: pa.StringArray) -> pa.StringArray:
    """Return JSON texts with null in place of JSON's null."""
    return pc.if_else(pc.equal(texts, "null"), None, texts)


def _strings(texts: pa.StringArray) -> pa.StringArray:
    """Return the content of JSON strings; null for other JSON texts."""
    inner = pc.utf8_slice_codeunits(texts, 1, -1)
    found = pc.if_else(pc.starts_with(texts, '"'), inner, None)
    escaped = pc.match_substring(found, "\\").fill_null(False)
    if pc.any(escaped).as_py():
        plain = [json.loads(f'"{text}"') for text in found.filter(escaped).to_pylist()]
        found = pc.replace_with_mask(found, escaped, pa.array(plain))
    return found


def _odd_reals(texts: pa.StringArray) -> pa.DoubleArray:
    which = pc.index_in(_strings(texts), value_set=pa.array(list(_REALS)))
    return pa.array(list(_REALS.values())).take(which)


def _times(kind: pa.DataType, texts: Any, *, milliseconds: bool) -> pa.Array:
    """Return dates and timestamps that are whole numbers in range; null for other JSON texts."""
    whole = pc.match_substring_regex(texts, _WHOLE).fill_null(False)
    numbers = pc.if_else(whole, texts, None).cast(pa.decimal128(38, 0))
    limit = _DAYS_MAX if kind == pa.date32() else _LONG_MAX
    near = pc.less_equal(pc.abs(numbers), pa.scalar(Decimal(limit), pa.decimal128(38, 0)))
    numbers = pc.if_else(near, numbers, None).cast(pa.int64())
    if kind == pa.date32():
        return numbers.cast(pa.int32()).cast(kind)
    if milliseconds:
        infinite = pc.if_else(pc.is_in(numbers, value_set=pa.array(_INFINITE)), numbers, None)
        near = pc.less_equal(pc.abs(numbers), _MILLISECONDS_MAX)
        exact = pc.multiply(pc.if_else(near, numbers, None), 1_000)
        numbers = pc.coalesce(infinite, exact)
    return numbers.cast(kind)


def _micros(milliseconds: pa.Int64Array) -> pa.TimestampArray:
    near = pc.less_equal(pc.abs(milliseconds), _MILLISECONDS_MAX)
    kind = CHANGE_TYPE.field("at").type
    return pc.multiply(pc.if_else(near, milliseconds, None), 1_000).cast(kind)


def _complaints(op: Any, before: Any, after: Any, at: Any) -> Iterator[pa.StringArray]:
    known = pc.is_in(op, value_set=pa.array(_OPERATIONS))
    quoted = pc.if_else(pc.and_(op.is_valid(), pc.invert(known)), op, None)
    yield _joined("field op: '", quoted, "' is not one of c, d, r, t and u")
    deletes, truncates = pc.equal(op, "d"), pc.equal(op, "t")
    no_row: Callable[[Any], Any] = lambda row: pc.and_(op.is_valid(), row.is_null())  # noqa: E731
    changes = pc.invert(pc.or_(deletes, truncates))
    yield pc.if_else(pc.and_(changes, no_row(after)), "field after: null", None)
    said = "field before: null, but a delete needs the key"
    yield pc.if_else(pc.and_(deletes, no_row(before)), said, None)
    yield pc.if_else(no_row(at), "field ts_ms: missing", None)


def _is_text(shape: Shape) -> bool:
    """Return whether values of a shape are first read as JSON texts."""
    leaf = shape.item if isinstance(shape, Items) else shape
    kind: Any = leaf.data_type if isinstance(leaf, Leaf) and not leaf.collation else None
    return kind is not None and (
        kind == pa.binary()
        or any(
            check(kind)
            for check in (
                pa.types.is_decimal, pa.types.is_date, pa.types.is_timestamp, pa.types.is_floating,
            )
        )
    )  # fmt: skip


def _as_text(shape: Shape) -> Shape:
    if not _is_text(shape):
        return shape
    return replace(shape, item=Leaf()) if isinstance(shape, Items) else Leaf()


def _column_type(shape: Shape) -> pa.DataType:
    leaf = shape.item if isinstance(shape, Items) else shape
    if not _is_text(shape) or not isinstance(leaf, Leaf):
        return arrow_type(shape)
    return pa.list_(leaf.data_type) if isinstance(shape, Items) else leaf.data_type


def _marked(shape: Shape, column: Any) -> Flags | None:
    """Return the rows in which Debezium's marker stands for a value; None if there are none."""
    markers = pa.array(_MARKERS if _is_text(shape) else (MARKER,))
    items = pc.list_flatten(column) if isinstance(shape, Items) else column
    if items.type != pa.string():
        return None
    found = pc.is_in(items, value_set=markers).to_numpy(zero_copy_only=False)
    if not found.any():
        return None
    if not isinstance(shape, Items):
        return np.asarray(found, np.bool_)
    marked = np.zeros(len(column), np.bool_)
    marked[pc.list_parent_indices(column).to_numpy()[found]] = True
    return marked
