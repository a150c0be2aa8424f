"""Encoder of Arrow columns as Avro values, column by column.

Every column becomes an array with the encoded bytes of each row; the arrays of a record's fields
are joined row by row. Columns are matched with fields by name. The types are those that decoded
values have: a union of several types is a struct with a member per branch, of which one is set.

Source: the Avro 1.12 specification, "Binary Encoding".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import InvalidError
from penstock.formats.avro import (
    NULL,
    Decimal,
    Enum,
    Field,
    Fixed,
    Items,
    Named,
    Node,
    Primitive,
    Record,
    Union,
    WriterSchema,
    plain_union,
    valued,
)
from penstock.formats.values import Values

_SEVEN: Final = np.uint64(7)
_UUID_BYTES: Final = 16
_UNITS: Final = {
    "timestamp-millis": pa.timestamp("ms"), "timestamp-micros": pa.timestamp("us"),
    "timestamp-nanos": pa.timestamp("ns"), "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"), "local-timestamp-nanos": pa.timestamp("ns"),
    "time-millis": pa.time32("ms"), "time-micros": pa.time64("us"), "date": pa.date32(),
}  # fmt: skip
"""Arrow types from which times are converted to numbers, by logical type."""


class Unencodable(InvalidError):
    """Column that has no Avro value, or values that do not fit the schema."""


def encode(node: Node, column: Any, where: str = "") -> pa.BinaryArray:
    """Return the Avro values of a column, whose rows must not be null unless the schema has null.

    Raises:
        Unencodable: the column or a value does not fit the schema; the error names the field.
    """
    if isinstance(node, Union):
        return _union(node, column, where)
    if node == NULL:
        return _repeated(b"", len(column))
    if column.null_count:
        raise _unfit(where, f"{column.null_count} rows are null, but the schema has no null")
    try:
        return _value(node, column, where)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise _unfit(where, f"{column.type} cannot be written: {error}") from error


def _unfit(where: str, reason: str) -> Unencodable:
    return Unencodable(f"{f'field {where}' if where else 'the value'}: {reason}")


def _value(node: Node, column: Any, where: str) -> pa.BinaryArray:
    match node:
        case Record():
            return _record(node, column, where)
        case Items(item=item):
            lists = column.cast(pa.list_(column.type.value_type))
            items = encode(item, lists.flatten(), f"{where}[]")
            return _blocks(pc.list_value_length(lists), items)
        case Named(value=value):
            if not pa.types.is_map(column.type):
                raise _unfit(where, f"is {column.type}, must be a map with texts as keys")
            key, item = column.type.key_field, column.type.item_field
            entry = pa.struct([key.with_name("key"), item.with_name("value")])
            lists = column.cast(pa.list_(entry))
            keys, values = lists.flatten().flatten()
            texts = _sized(keys.cast(pa.string()).cast(pa.binary()))
            pairs = _joined(texts, encode(value, values, f"{where}{{}}"))
            return _blocks(pc.list_value_length(lists), pairs)
        case Enum(symbols=symbols):
            index = pc.index_in(column.cast(pa.string()), pa.array(symbols))
            if index.null_count:
                first = column.filter(index.is_null())[0].as_py()
                raise _unfit(where, f"{first!r} is not a symbol of the enum {node.name}")
            return varints(index.to_numpy().astype(np.int64))
        case Decimal():
            return _decimal(node, column, where)
        case Fixed():
            return _fixed_octets(node, column, where)
        case Primitive():
            return _primitive(node, column, where)
    raise _unfit(where, "has a recursive type, which no column can have")


def _primitive(node: Primitive, column: Any, where: str) -> pa.BinaryArray:
    match node.kind:
        case "boolean":
            return _fixed(column.cast(pa.bool_()).cast(pa.uint8()).to_numpy())
        case "float":
            return _fixed(column.cast(pa.float32()).to_numpy())
        case "double":
            return _fixed(column.cast(pa.float64()).to_numpy())
        case "string":
            return _sized(column.cast(pa.string()).cast(pa.binary()))
        case "bytes":
            return _sized(column.cast(pa.binary()))
    if node.logical is not None and pa.types.is_temporal(column.type):
        unit = _UNITS[node.logical]
        if pa.types.is_timestamp(unit):
            unit = pa.timestamp(unit.unit, column.type.tz if _is_zoned(column.type) else None)
        column = column.cast(unit)
        column = column.cast(pa.int32() if unit.bit_width == 32 else pa.int64())
    numbers = column.cast(pa.int64()).to_numpy()
    if node.kind == "int" and (numbers != numbers.astype(np.int32)).any():
        raise _unfit(where, "some numbers do not fit an int")
    return varints(numbers)


def _fixed_octets(node: Fixed, column: Any, where: str) -> pa.BinaryArray:
    octets = _uuids(column) if node.logical == "uuid" else column.cast(pa.binary())
    if pc.any(pc.not_equal(pc.binary_length(octets), node.size_bytes)).as_py():
        raise _unfit(where, f"some values do not have {node.size_bytes} bytes")
    return octets


def _is_zoned(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


def varints(numbers: npt.NDArray[np.int64]) -> pa.BinaryArray:
    """Return numbers as varints whose lowest bit is the sign."""
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    sizes = np.ones(numbers.size, np.int64)
    for group in range(1, 10):
        sizes += zigzag >= np.uint64(1 << 7 * group)
    offsets = np.zeros(numbers.size + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    octets = np.empty(int(offsets[-1]), np.uint8)
    for group in range(int(sizes.max(initial=0))):
        rows = np.flatnonzero(sizes > group)
        part = (zigzag[rows] >> (_SEVEN * np.uint64(group))) & np.uint64(0x7F)
        more = np.where(sizes[rows] > group + 1, np.uint64(0x80), np.uint64(0))
        octets[offsets[rows] + group] = (part | more).astype(np.uint8)
    return pa.Array.from_buffers(
        pa.binary(), numbers.size, [None, pa.py_buffer(offsets), pa.py_buffer(octets)]
    )


def _fixed(numbers: npt.NDArray[Any]) -> pa.BinaryArray:
    """Return the little-endian bytes of numbers of one width."""
    width = numbers.dtype.itemsize
    offsets = np.arange(0, width * numbers.size + 1, width, dtype=np.int32)
    content = np.ascontiguousarray(numbers)
    return pa.Array.from_buffers(
        pa.binary(), numbers.size, [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    )


def _joined(*parts: Any) -> pa.BinaryArray:
    return pc.binary_join_element_wise(*parts, b"")


def _sized(octets: Any) -> pa.BinaryArray:
    sizes = pc.binary_length(octets).to_numpy().astype(np.int64)
    return _joined(varints(sizes), octets)


def _repeated(content: bytes, count: int) -> pa.BinaryArray:
    return pa.repeat(pa.scalar(content, pa.binary()), count)


def _blocks(lengths: Any, items: pa.BinaryArray) -> pa.BinaryArray:
    """Return lists as one block each, and the end of the list."""
    counts = lengths.to_numpy().astype(np.int64)
    offsets = np.zeros(counts.size + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    inner = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), items), b"")
    head = pc.if_else(pa.array(counts > 0), varints(counts), pa.scalar(b"", pa.binary()))
    return _joined(head, inner, pa.scalar(b"\0", pa.binary()))


def _decimal(node: Decimal, column: Any, where: str) -> pa.BinaryArray:
    made = column.cast(pa.decimal128(node.precision, node.scale))
    _, content = made.buffers()
    words = np.frombuffer(content, np.uint8)[16 * made.offset : 16 * (made.offset + len(made))]
    octets = words.reshape(-1, 16)[:, ::-1]
    if node.size_bytes is None:
        return _sized(_fixed(np.ascontiguousarray(octets).view("V16").reshape(-1)))
    size = node.size_bytes
    sign = np.where(octets[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    if size >= 16:
        wide = np.concatenate([np.repeat(sign, size - 16, axis=1), octets], axis=1)
        return _fixed(np.ascontiguousarray(wide).view(f"V{size}").reshape(-1))
    cut, kept = octets[:, : 16 - size], octets[:, 16 - size :]
    if (cut != sign).any() or ((kept[:, :1] >= 0x80) != (sign == 0xFF)).any():
        raise _unfit(where, f"some numbers do not fit {size} bytes")
    return _fixed(np.ascontiguousarray(kept).view(f"V{size}").reshape(-1))


def _uuids(column: Any) -> pa.BinaryArray:
    if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
        return column.cast(pa.binary())
    digits = pc.replace_substring(column.cast(pa.string()), "-", "")
    if not pc.all(pc.match_substring_regex(digits, "^[0-9A-Fa-f]{32}$"), min_count=0).as_py():
        raise pa.ArrowInvalid("some texts are not UUIDs")
    whole = bytes.fromhex("".join(digits.to_pylist()))
    return _fixed(np.frombuffer(whole, f"V{_UUID_BYTES}"))


def _record(node: Record, column: Any, where: str) -> pa.BinaryArray:
    if not pa.types.is_struct(column.type):
        raise _unfit(where, f"is {column.type}, must be a struct for the record {node.name}")
    given = {field.name: part for field, part in zip(column.type, column.flatten(), strict=True)}
    parts: list[Any] = []
    for field in node.fields:
        inner = f"{where}.{field.name}" if where else field.name
        if field.name in given:
            parts.append(encode(field.node, given.pop(field.name), inner))
        elif field.default is not None:
            parts.append(encode(field.node, _default(field, len(column), inner), inner))
        else:
            raise _unfit(inner, "is missing in the data, and has no default")
    if given:
        raise _unfit(where, f"the schema has no field {', '.join(given)}")
    return _joined(*parts)


def _default(field: Field, count: int, where: str) -> Any:
    """Return a column with the value that readers give a field which the writer lacks."""
    from penstock.formats.avro_decode import run
    from penstock.formats.avro_program import program

    writer = WriterSchema(root=Record(fields=()), records={})
    made = program(writer, Record(fields=(field,)))
    rows, errors = run(made, Values.of(pa.array([b""], pa.binary())))
    if not errors.null_count:
        raise _unfit(where, f"the schema is wrong: {errors[0]}")
    return rows.field(0).take(pa.array(np.zeros(count, np.int64)))


def _union(node: Union, column: Any, where: str) -> pa.BinaryArray:
    branches = valued(node)
    plain = plain_union(branches)
    if len(branches) > 1 and plain is None:
        parts = _members(column, branches, where)
    elif plain is not None:
        numbers = [part for part in branches if isinstance(part, Primitive)]
        parts = [(part, column) for part in numbers if part.kind == plain.kind]
    else:
        parts = [(branch, column) for branch in branches]
    made = pa.nulls(len(column), pa.binary())
    for branch, part in parts:
        encoded = _joined(_number(node, branch), encode(branch, part.drop_null(), where))
        made = pc.coalesce(made, _scattered(encoded, part))
    if made.null_count:
        if NULL not in node.branches:
            raise _unfit(where, f"{made.null_count} rows are null, but the schema has no null")
        made = made.fill_null(_number(node, NULL))
    return made


def _number(node: Union, branch: Node) -> pa.BinaryScalar:
    return varints(np.array([node.branches.index(branch)], np.int64))[0]


def _members(column: Any, branches: Sequence[Node], where: str) -> list[tuple[Node, Any]]:
    names = [f"member{number}" for number in range(len(branches))]
    if not pa.types.is_struct(column.type) or [f.name for f in column.type] != names:
        raise _unfit(where, f"is {column.type}, must be a struct of {', '.join(names)}")
    members = column.flatten()
    given = sum(member.is_valid().cast(pa.int8()).to_numpy() for member in members)
    if len(column) and given.max() > 1:
        raise _unfit(where, "some rows have several members of a union")
    return list(zip(branches, members, strict=True))


def _scattered(encoded: pa.BinaryArray, column: Any) -> pa.BinaryArray:
    """Return one entry for each row of a column, from those of its rows that are not null."""
    if not column.null_count:
        return encoded
    there = column.is_valid().to_numpy(zero_copy_only=False)
    places = np.cumsum(there) - 1
    return encoded.take(pa.array(places, mask=~there))
