"""Protobuf's wire format, vectorised over all values of a batch.

    decoded, errors = decode(message, cursors)

The pieces of all fields are found first (`scan.py`), then each field is read for all messages
together; nested messages and items are cursors of their own. Of a field that is not repeated and
comes several times the last one counts; for a nested message, which Protobuf would merge, that is
an error of the value. Of a oneof the member written last counts. A piece of another wire type than
the field's is an unknown field, but for numbers, which may be packed or not as the writer likes.
Two things are refused that some libraries let through: groups among the unknown fields, and
numbers of ten bytes with more than 64 bits.

Source: the Protocol Buffers guide "Encoding".
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.protobuf.scalars import read_scalar, scalar_type, zero
from penstock.formats.protobuf.scan import WIRE_MASK, Pieces, scan
from penstock.formats.protobuf.schema import (
    FIXED64,
    SIZED,
    VARINT,
    Field,
    Message,
    Scalar,
)
from penstock.formats.vectorised import arrays
from penstock.formats.vectorised.cursor import ENDS_EARLY, Cursors, Longs, numbered

_MICROS: Final = 1_000_000
_SECONDS_MAX: Final = (2**63 - 1) // _MICROS - 1
_SPECIAL_TYPES: Final = {"timestamp": arrays.TIMESTAMP, "duration": pa.int64()}
Found = dict[int, Pieces]


def decode(message: Message, cursors: Cursors) -> tuple[pa.StructArray, pa.StringArray]:
    """Decode the values at the cursors, and say what is wrong with those that cannot be.

    Shapes: one struct of `arrow_type(message)` and one error per value, in order; both are null
    where there is no value.
    """
    columns = _fields(message, cursors, "")
    names = [field.name for field in message.fields]
    made = arrays.structs(names, columns, cursors.problem != 0)
    return made, cursors.problems.texts(cursors.problem)


def arrow_type(message: Message) -> pa.DataType:
    """The type of the column that a message becomes."""
    if message.special == "wrapper":
        return _type_of(message.fields[0].holds)
    if message.special is not None:
        return _SPECIAL_TYPES[message.special]
    return pa.struct([pa.field(field.name, _field_type(field)) for field in message.fields])


def _type_of(holds: Scalar | Message) -> pa.DataType:
    return scalar_type(holds) if isinstance(holds, Scalar) else arrow_type(holds)


def _field_type(field: Field) -> pa.DataType:
    if field.is_map and isinstance(field.holds, Message):
        key, value = field.holds.fields
        return pa.map_(_type_of(key.holds), _type_of(value.holds))
    return pa.list_(_type_of(field.holds)) if field.repeated else _type_of(field.holds)


def _fields(message: Message, cursors: Cursors, where: str) -> list[pa.Array]:
    """A column per field; cursors end at their ends."""
    found = scan(cursors, f"field {where}: " if where else "")
    found = {field.number: _fitting(field, found) for field in message.fields}
    columns: dict[str, pa.Array] = {}
    for field in message.fields:
        at = f"{where}.{field.name}" if where else field.name
        reader = _repeated if field.repeated else _single
        columns[field.name] = reader(field, found[field.number], cursors, at)
    _keep_last_of_oneofs(message, found, columns, len(cursors))
    return list(columns.values())


def _fitting(field: Field, found: Found) -> Pieces:
    pieces = found.get(field.number, _NONE)
    wire = pieces.tag & WIRE_MASK
    fits = wire == field.holds.wire
    if field.repeated and isinstance(field.holds, Scalar) and field.holds.packable:
        fits |= wire == SIZED
    return pieces if fits.all() else pieces.of(np.flatnonzero(fits))


def _keep_last_of_oneofs(
    message: Message, found: Found, columns: dict[str, pa.Array], count: int
) -> None:
    """Take away the values of members that another member was written after.

    They have been read all the same: a value with a broken part is broken, whatever replaced it.
    """
    groups: dict[str, list[Field]] = {}
    for field in message.fields:
        if field.oneof is not None:
            groups.setdefault(field.oneof, []).append(field)
    for members in groups.values():
        written = {member.name: _last_written(found[member.number], count) for member in members}
        last = np.max(list(written.values()), axis=0)
        for name, own in written.items():
            replaced = (own >= 0) & (own < last)
            if replaced.any():
                columns[name] = columns[name].take(pa.array(np.arange(count), mask=replaced))


def _last_written(pieces: Pieces, count: int) -> Longs:
    """Where the last piece of each cursor starts; -1 for those that have none."""
    last = np.full(count, -1, np.int64)
    np.maximum.at(last, pieces.owner, pieces.start)
    return last


def _single(field: Field, pieces: Pieces, cursors: Cursors, where: str) -> pa.Array:
    count = len(cursors)
    index = np.full(count, -1, np.int64)
    index[pieces.owner] = np.arange(pieces.owner.size)
    rows = np.flatnonzero(index >= 0)
    if isinstance(field.holds, Message) and rows.size != pieces.owner.size:
        times = np.bincount(pieces.owner, minlength=count)
        cursors.fail(times > 1, f"field {where}: the message comes more than once")
    elif rows.size != pieces.owner.size:
        _check_all(field.holds, pieces.ordered(), cursors, where)
    last = index[rows]
    part = cursors.within(pieces.start[last], pieces.end[last])
    values = _read(field.holds, part, where)
    cursors.inherit(rows, part)
    made = arrays.spread(values, rows, count)
    if field.presence or isinstance(field.holds, Message) or rows.size == count:
        return made
    return pc.fill_null(made, zero(field.holds))


def _check_all(holds: Scalar | Message, pieces: Pieces, cursors: Cursors, where: str) -> None:
    """Fail the cursors with a broken piece, among those too that a later one replaces."""
    part = cursors.within(pieces.start, pieces.end)
    _read(holds, part, where)
    cursors.inherit(pieces.owner, part)


def _repeated(field: Field, pieces: Pieces, cursors: Cursors, where: str) -> pa.Array:
    pieces = pieces.ordered()
    owner, start, end = pieces.owner, pieces.start, pieces.end
    if isinstance(field.holds, Scalar) and field.holds.packable:
        owner, start, end = _unpacked(field.holds, pieces, cursors, where)
    part = cursors.within(start, end)
    counts = np.bincount(owner, minlength=len(cursors))
    if field.is_map and isinstance(field.holds, Message):
        keys, values = _entries(field.holds, part, f"{where}{{}}")
        cursors.inherit(owner, part)
        return arrays.maps(counts, keys, values)
    values = _read(field.holds, part, f"{where}[]")
    cursors.inherit(owner, part)
    return arrays.lists(counts, values)


def _entries(entry: Message, part: Cursors, where: str) -> tuple[pa.Array, pa.Array]:
    """Keys and values; what an entry leaves out is zero or empty."""
    keys, values = _fields(entry, part, where)
    key, value = entry.fields
    if isinstance(key.holds, Scalar):
        keys = pc.fill_null(keys, zero(key.holds))
    if isinstance(value.holds, Scalar):
        return keys, pc.fill_null(values, zero(value.holds))
    if values.null_count:
        # A message that was left out is one with nothing in it.
        at = np.full(1, part.octets.sink, np.int64)
        empty = _read(value.holds, part.within(at, at), where)
        both = pa.concat_arrays([values, empty])
        index = np.arange(len(values))
        index[values.is_null().to_numpy(zero_copy_only=False)] = len(values)
        values = both.take(pa.array(index))
    return keys, values


def _unpacked(
    scalar: Scalar, pieces: Pieces, cursors: Cursors, where: str
) -> tuple[Longs, Longs, Longs]:
    """Owner, start and end of each number, packed or not."""
    packed = (pieces.tag & WIRE_MASK) == SIZED
    start = np.where(packed, pieces.start, 0)
    end = np.where(packed, pieces.end, 0)
    wrong = np.zeros(len(cursors), np.bool_)
    if scalar.wire == VARINT:
        ends = cursors.octets.varint_ends
        wrong[pieces.owner] |= packed & (end > start) & (cursors.octets.data[end - 1] >= 0x80)
        first = np.searchsorted(ends, start)
        counts = np.where(packed, np.searchsorted(ends, end) - first, 1)
    else:
        size = 8 if scalar.wire == FIXED64 else 4
        wrong[pieces.owner[packed & ((end - start) % size != 0)]] = True
        counts = np.where(packed, (end - start) // size, 1)
    # A message that fails is null as a whole: its numbers may be anything.
    cursors.fail(wrong, f"field {where}: {ENDS_EARLY}")
    piece, number = numbered(counts)
    if scalar.wire == VARINT:
        before = ends[np.maximum(first[piece] + number - 1, 0)] + 1
        begin = np.where(number == 0, pieces.start[piece], before)
    else:
        begin = pieces.start[piece] + number * size
    return pieces.owner[piece], begin, pieces.end[piece]


def _read(holds: Scalar | Message, part: Cursors, where: str) -> pa.Array:
    if isinstance(holds, Scalar):
        return read_scalar(holds, part, f"field {where}: ")
    columns = _fields(holds, part, where)
    match holds.special:
        case None:
            return arrays.structs([field.name for field in holds.fields], columns)
        case "wrapper":
            return columns[0]
    seconds, nanos = (column.to_numpy(zero_copy_only=False) for column in columns)
    far = (seconds > _SECONDS_MAX) | (seconds < -_SECONDS_MAX)
    part.fail(far, f"field {where}: does not fit a {holds.special}")
    micros = np.where(far, 0, seconds) * _MICROS + np.trunc(nanos / 1000).astype(np.int64)
    return arrays.as_type(micros.astype(np.int64), _SPECIAL_TYPES[holds.special])


_NONE: Final = Pieces(*(np.zeros(0, np.int64) for _ in range(4)))
