"""Decoder of records for sinks: keys and values as columns.

In the format `json`, objects become structs with the fields that the batch has. Texts stay texts.
The numbers of a field get the first of these types that has every number of the batch:

    int64       whole numbers without a fraction or an exponent
    double      numbers that are equal to the shortest text of their double, such as 0.1
    decimal     up to 76 digits

Texts that are not JSON and numbers that none of these types has exactly are rejected. So are, in
each field, values whose kind (number, text, object, array, boolean) is not that of most rows. In
the format `registry`, values have the columns of the topic's newest schema.
"""

from __future__ import annotations

import io
from contextlib import suppress
from math import isinf
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from penstock.connect.connector_file import ValueOptions
from penstock.connect.converting import DIGITS_MAX, whole
from penstock.connect.errors import RowsRejected
from penstock.connect.known_types import KnownTypes
from penstock.connect.plugins import HEADERS, KEY, VALUE, Records
from penstock.connect.registering import REGISTRY, RegistryDecoder, registry_of
from penstock.formats.json.decode import JsonReader
from penstock.formats.json.json_schema import Field, Items, Leaf, Record, Shape
from penstock.formats.json.plain import SHOWN_CHARACTERS, Number, json_text, parse

DECIMAL128_DIGITS_MAX: Final = 38
_FIELD: Final = "v"
_LONG: Final = rb"[0-9][0-9.]{15}|[eE][+-]?[0-9]{3}"
"""Pattern of the texts whose numbers a double may not have."""
_NUMBER: Final = (
    r"^(?P<sign>-?)(?P<whole>[0-9]+)(?:\.(?P<fraction>[0-9]+))?"
    r"(?:[eE]\+?(?P<exponent>-?[0-9]{1,9}))?$"
)
_NO_PLACE: Final = (
    f"has no exact place: a field has up to {DIGITS_MAX} digits, or {DIGITS_MAX // 2} before and"
    " after the point"
)
_KINDS: Final = {
    Number: "a number", str: "a text", bool: "a boolean", dict: "an object", list: "an array",
}  # fmt: skip


class Decoder:
    """Decoder of keys and values by the options of a connector."""

    def __init__(self, options: ValueOptions) -> None:
        registered = options.format == REGISTRY
        self._registry = RegistryDecoder(registry_of(options), "value") if registered else None
        self._known: dict[tuple[str, str], KnownTypes] = {}

    def decode(self, records: Records) -> Records:
        """Return rows whose keys and values are columns instead of bytes.

        Keys that are no JSON stay bytes.

        Raises:
            RowsRejected: values of some rows cannot be decoded.
        """
        rows = records.rows
        given = whole(rows.column(VALUE))
        if self._registry is not None:
            values = self._registry.decode(records.topic, given, whole(rows.column(HEADERS)))
        else:
            values = self._read(given, (records.topic, VALUE))
        keys = whole(rows.column(KEY))
        with suppress(RowsRejected):
            if _begins_with_json(keys):
                keys = self._read(keys, (records.topic, KEY))
        for name, column in ((KEY, keys), (VALUE, values)):
            rows = rows.set_column(rows.schema.get_field_index(name), name, column)
        return records.with_rows(rows)

    def _read(self, texts: Any, place: tuple[str, str]) -> Any:
        """Return the values of JSON texts of a topic's column, with known types if they are."""
        known = self._known.setdefault(place, KnownTypes())
        found = known.read(texts)
        if found is None:
            found = json_column(texts)
            known.learn(found.type)
        return found


def _begins_with_json(texts: Any) -> bool:
    """Return whether the first value is JSON; also without values."""
    first = texts.is_valid().index(True).as_py()
    with suppress(ValueError, RecursionError):
        if first >= 0:
            parse(texts[first].as_py().decode())
        return True
    return False


def json_column(texts: Any) -> Any:
    """Return the values of a column of JSON texts; null stays null.

    Raises:
        RowsRejected: some texts are not JSON, or have no place in the type of a field.
    """
    given = texts.cast(pa.binary())
    there = given.filter(given.is_valid())
    if not len(there):
        return pa.nulls(len(given), pa.struct([]))
    lines = pc.binary_join_element_wise(
        pa.scalar(b'{"%b":' % _FIELD.encode()), there, pa.scalar(b"}"), b""
    )
    try:
        found = _read(b"\n".join(lines.to_pylist()))
    except pa.ArrowInvalid as error:
        raise _rejected(given, str(error)) from error
    if len(found) != len(there):
        raise _rejected(given, "a value is not one JSON text")
    if _has_doubles(found.type) and pc.any(pc.match_substring_regex(there, _LONG)).as_py():
        reasons: dict[int, str] = {}
        found = _exact(found, lines, reasons)
        if reasons:
            numbers = pc.indices_nonzero(given.is_valid()).take(pa.array(sorted(reasons)))
            raise RowsRejected(numbers.to_pylist(), [reasons[row] for row in sorted(reasons)])
    if len(there) == len(given):
        return found
    at = pc.if_else(given.is_valid(), pc.subtract(pc.cumulative_sum(
        given.is_valid().cast(pa.int64())), 1), None)  # fmt: skip
    return found.take(at)


def _read(data: bytes) -> Any:
    """Return the field of JSON lines as a column; texts are never read as times."""

    def table(schema: pa.Schema | None) -> pa.Table:
        return arrow_json.read_json(
            io.BytesIO(data),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=max(len(data), 1)),
            parse_options=arrow_json.ParseOptions(newlines_in_values=True, explicit_schema=schema),
        )

    found = table(None)
    if found.num_columns > 1:
        raise pa.ArrowInvalid("a value is not one JSON text")
    kind = found.schema.field(_FIELD).type
    is_whole = _is_whole(found)
    plain = _plain(kind, is_whole)
    if plain != kind or not is_whole:
        found = table(pa.schema([(_FIELD, plain)]))
    return whole(found.column(_FIELD))


def _plain(kind: Any, is_whole: bool) -> Any:
    """Return a type without times; if items were left out, with texts for items that are null."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type, is_whole)) for field in kind])
    if pa.types.is_list(kind):
        nulls = pa.types.is_null(kind.value_type) and not is_whole
        return pa.list_(pa.string() if nulls else _plain(kind.value_type, is_whole))
    return kind


def _is_whole(table: pa.Table) -> bool:
    """Whether Arrow has read all items of lists.

    Without a schema it leaves out nulls at the begin of the first list (apache/arrow#47417).
    """
    try:
        table.validate()
    except pa.ArrowInvalid:
        return False
    return True


# Rejected rows


def _rejected(given: Any, reason: str) -> RowsRejected:
    """Return the error for the invalid texts, or for all rows if no text is invalid by itself."""
    bad: dict[int, str] = {}
    kinds: dict[str, dict[str, dict[int, str]]] = {}
    for row, text in enumerate(given.to_pylist()):
        try:
            if text is not None:
                _note(parse(text.decode()), "", row, kinds)
        except (ValueError, RecursionError) as error:
            bad[row] = f"is not JSON: {error}"
        except OverflowError as error:
            bad[row] = str(error)
    for field, found in kinds.items():
        most = max(found, key=lambda kind: len(found[kind]))
        for kind, rows in found.items():
            for row, shown in rows.items() if kind != most else ():
                what = f"{shown} is {kind}, but most rows of the batch have {most}"
                bad.setdefault(row, f"{_named(field)}: {what}")
    if not bad:
        bad = dict.fromkeys(range(len(given)), f"the batch cannot be read: {reason}")
    rejected = sorted(bad)
    return RowsRejected(rejected, [bad[row] for row in rejected])


def _note(value: Any, path: str, row: int, kinds: dict[str, dict[str, dict[int, str]]]) -> None:
    """Add the kinds of a row's values to `kinds`, by field, kind and row.

    Raises:
        OverflowError: a number is beyond the doubles.
    """
    if value is None:
        return
    kind = _KINDS[type(value)]
    if kind == "a number" and isinf(float(value)):
        raise OverflowError(f"{_named(path)}: the number {_shown(value)} is too large")
    kinds.setdefault(path, {}).setdefault(kind, {}).setdefault(row, _shown(value))
    if isinstance(value, dict):
        for name, item in value.items():
            _note(item, f"{path}.{name}" if path else name, row, kinds)
    elif isinstance(value, list):
        for item in value:
            _note(item, f"{path}[]", row, kinds)


def _named(path: str) -> str:
    return f"field {path}" if path else "the value"


def _shown(value: Any) -> str:
    text = json_text(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


# Exact numbers


def _has_doubles(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_doubles(field.type) for field in kind)
    return _has_doubles(kind.value_type) if pa.types.is_list(kind) else bool(kind == pa.float64())


def _exact(found: Any, lines: Any, reasons: dict[int, str]) -> Any:
    """Return values with decimals where doubles do not have the numbers of the lines.

    Rows whose numbers have no place get a reason.
    """
    record = Record(fields=(Field(name=_FIELD, shape=_numbers_of(found.type)),))
    texts, errors = JsonReader(record=record).read(lines)
    for row in pc.indices_nonzero(errors.is_valid()).to_pylist():
        reasons[row] = f"is not JSON: {errors[row]}"
    if reasons:
        return found
    return _with_decimals(found, texts.field(0), "", None, reasons)


def _numbers_of(kind: Any) -> Shape:
    """Return the shape of the fields with doubles; each number is read as its text."""
    if pa.types.is_struct(kind):
        return Record(
            fields=tuple(
                Field(name=field.name, shape=_numbers_of(field.type))
                for field in kind
                if _has_doubles(field.type)
            )
        )
    return Items(item=_numbers_of(kind.value_type)) if pa.types.is_list(kind) else Leaf()


def _with_decimals(
    found: Any, texts: Any, path: str, rows: Any | None, reasons: dict[int, str]
) -> Any:
    """Return values with decimals where the texts need them.

    Args:
        rows: row of each value; None means that they are the rows.
    """
    kind = found.type
    if not _has_doubles(kind):
        return found
    if pa.types.is_struct(kind):
        columns = [
            _with_decimals(
                found.field(index),
                texts.field(field.name) if _has_doubles(field.type) else None,
                f"{path}.{field.name}" if path else field.name,
                rows,
                reasons,
            )
            for index, field in enumerate(kind)
        ]
        names = [field.name for field in kind]
        return pa.StructArray.from_arrays(columns, names, mask=found.is_null())
    if pa.types.is_list(kind):
        parents = pc.list_parent_indices(found)
        inner = parents if rows is None else rows.take(parents)
        items = _with_decimals(found.values, texts.values, f"{path}[]", inner, reasons)
        return pa.ListArray.from_arrays(found.offsets, items, mask=found.is_null())
    texts = pc.if_else(pc.equal(texts, "null"), None, texts)
    column, bad = _numbers(found, texts)
    at = pc.indices_nonzero(bad)
    owners = at if rows is None else rows.take(at)
    for row, text in zip(owners.to_pylist(), texts.take(at).to_pylist(), strict=True):
        reasons[row] = f"{_named(path)}: the number {_shown(Number(text))} {_NO_PLACE}"
    return column


def _numbers(doubles: Any, texts: Any) -> tuple[Any, Any]:
    """Return numbers as doubles or as decimals, and flags of those that have no place in them."""
    sign, digits, scale = _parts(texts)
    other_sign, other_digits, other_scale = _parts(doubles.cast(pa.string()))
    same = pc.and_(pc.equal(digits, other_digits), pc.equal(scale, other_scale))
    same = pc.and_(same, pc.or_(pc.equal(sign, other_sign), pc.equal(digits, "")))
    inexact = pc.and_(texts.is_valid(), pc.invert(same.fill_null(False)))
    bad = pc.and_(texts.is_valid(), digits.is_null())
    if not pc.any(inexact).as_py():
        return doubles, bad
    after = pc.max_element_wise(scale, 0)
    before = pc.max_element_wise(pc.subtract(pc.utf8_length(digits), scale), 0)
    most = pc.max(before).as_py() or 0, pc.max(after).as_py() or 0
    if sum(most) > DIGITS_MAX:
        wide = pc.or_(pc.greater(before, DIGITS_MAX // 2), pc.greater(after, DIGITS_MAX // 2))
        wide = wide.fill_null(False)
        first = pc.and_(wide, inexact)  # without these, doubles may have the others
        bad = pc.or_(bad, first if pc.any(first).as_py() else wide)
    if pc.any(bad).as_py():
        return doubles, bad
    kind = pa.decimal128 if sum(most) <= DECIMAL128_DIGITS_MAX else pa.decimal256
    exponent = pc.negate(scale).cast(pa.string())
    shown = pc.binary_join_element_wise(sign, pc.if_else(pc.equal(digits, ""), "0", digits),
                                        "E", exponent, "")  # fmt: skip
    return shown.cast(kind(max(sum(most), 1), most[1])), bad


def _parts(texts: Any) -> tuple[Any, Any, Any]:
    """Return the signs of numbers, their digits without outer zeros, and their scales.

    A number is its digits as a whole number, divided by ten to the power of the scale. Texts with
    exponents of ten digits, infinities and NaN are null.
    """
    found = pc.extract_regex(texts, _NUMBER)
    fraction, exponent = found.field("fraction"), found.field("exponent")
    exponent = pc.if_else(pc.equal(exponent, ""), "0", exponent).cast(pa.int64())
    digits = pc.binary_join_element_wise(found.field("whole"), fraction, "")
    digits = pc.utf8_ltrim(pc.if_else(found.is_valid(), digits, None), "0")
    short = pc.utf8_rtrim(digits, "0")
    zeros = pc.subtract(pc.utf8_length(digits), pc.utf8_length(short))
    scale = pc.subtract(pc.subtract(pc.utf8_length(fraction).cast(pa.int64()), exponent), zeros)
    return found.field("sign"), short, pc.if_else(pc.equal(short, ""), 0, scale)
