"""Reader of Protobuf's wire format into columns, by tables made from a message type.

A message is a series of tags and values in any order. If a scalar field that is not repeated occurs
several times, the last value is used. A nested message that occurs several times, which Protobuf
would merge, is an error. If several members of a oneof occur, the last one is used, but all are
checked. A value with another wire type than its field's is an unknown field; only numbers may be
packed or not. Unknown fields are skipped.

A row of `fields`; the fields of a message are together, in the order of their numbers:

    NUMBER    number of the field
    WIRE      its wire type
    KIND      kind of its value
    TARGET    its column, or the column of its items if it is repeated
    INNER     the message of its value, or -1
    ONEOF     its oneof group, or -1
    FLAGS     REPEATED; PACKABLE; PRESENCE: a missing field is null

A row of `messages`:

    FIRST, BEHIND  its first field, and the field after its last one
    COLUMN         its column
    SPECIAL        its kind: STRUCT, TIMESTAMP or DURATION
    WHOLE          the field that gets an empty message if it is missing, or -1
    EXACT          1 if nanoseconds that the column cannot hold are an error

Places in problems count from 2: first the messages, then two places for each field, one for the
field and one for its items.

Source: the Protocol Buffers guide "Encoding".
"""

from __future__ import annotations

from typing import Any, Final

from penstock.kernels.columns import (
    AT,
    COLUMNS,
    COUNT,
    ROOM,
    mark_row,
    put_items,
    put_nothing,
    put_parts,
    set_text,
    undo_row,
)
from penstock.kernels.compiling import kernel
from penstock.kernels.memory import load_word
from penstock.kernels.numbers import ENDS_EARLY, load_half, read_varint, unzigzag
from penstock.kernels.types import READ, int64
from penstock.kernels.utf8 import is_utf8

NUMBER, WIRE, KIND, TARGET, INNER, ONEOF, FLAGS = range(7)
FIELD_WIDTH: Final = 7
FIRST, BEHIND, COLUMN, SPECIAL, WHOLE, EXACT = range(6)
MESSAGE_WIDTH: Final = 6
REPEATED, PACKABLE, PRESENCE = 1, 2, 4
STRUCT, TIMESTAMP, DURATION = 0, 1, 2
SIGNED_32, UNSIGNED_32, ZIGZAG_32, SIGNED_64, ZIGZAG_64, UNSIGNED_64, BOOLEAN, BYTES, STRING = (
    range(9)
)
VARINT, FIXED_64, SIZED, FIXED_32 = 0, 1, 2, 5
"""Wire types."""

(
    NO_TAG, GROUP, WIRE_6, WIRE_7, NO_TEXT, AGAIN, NO_TIMESTAMP, NO_DURATION, NO_NANOS, FINER,
) = range(6, 16)  # fmt: skip
REASONS: Final = 32
PLACES: Final = 2
_FULL: Final = 31
_TAG_MAX: Final = 2**32 - 1
_MICROS: Final = 1_000_000
_NANOS_MAX: Final = 999_999_999
_SECONDS_MAX: Final = (2**63 - 1) // _MICROS - 1

# State of each open message: the message, its end, and the expected field.
_OPEN, _END, _EXPECTED = range(3)
FRAME_WIDTH: Final = 3
_TABLE: Final = "int64[:, ::1]"


@kernel(f"int64({_TABLE}, {_TABLE}, int64, int64, int64)", inlined=True)
def _find(messages: Any, fields: Any, message: int, number: int, expected: int) -> int:
    """Return the field with a number, or -1; try the expected field first."""
    low, behind = messages[message, FIRST], messages[message, BEHIND]
    for field in range(expected, min(expected + 2, behind)):
        if fields[field, NUMBER] == number:
            return field
    while low < behind:
        middle = (low + behind) // 2
        if fields[middle, NUMBER] < number:
            low = middle + 1
        else:
            behind = middle
    found = low < messages[message, BEHIND] and fields[low, NUMBER] == number
    return low if found else -1


@kernel(f"UniTuple(int64, 3)({READ}, int64, int64, int64)", inlined=True)
def _step(data: Any, at: int, end: int, wire: int) -> tuple[int, int, int]:
    """Find the value at `at`, of a known wire type; return its number, its start and its end.

    The number is 0 if the value is not a number. The end is the negative number of a problem if
    there is one.
    """
    if wire == VARINT:
        value, behind = read_varint(data, at, end)
        return value, at, behind
    if wire == SIZED:
        size, at = read_varint(data, at, end)
        # A size of 64 bits is negative as a signed number, and larger than the rest.
        if at >= 0 and (size < 0 or size > end - at):
            at = -ENDS_EARLY
        return 0, at, at + size if at >= 0 else at
    if wire == FIXED_64:
        if end - at < 8:
            return 0, at, -ENDS_EARLY
        return int64(load_word(data, at)), at, at + 8
    if wire == FIXED_32:
        if end - at < 4:
            return 0, at, -ENDS_EARLY
        return load_half(data, at), at, at + 4
    return 0, at, -GROUP if wire < FIXED_32 else -WIRE_6 if wire == 6 else -WIRE_7


@kernel("int64(int64, int64)", inlined=True)
def _word(kind: int, value: int) -> int:
    if kind == SIGNED_32:
        return value << 32 >> 32
    if kind == UNSIGNED_32:
        return value & 0xFFFFFFFF
    if kind == ZIGZAG_32:
        return unzigzag(value & 0xFFFFFFFF)
    if kind == ZIGZAG_64:
        return unzigzag(value)
    return value != 0 if kind == BOOLEAN else value


@kernel(f"int64({_TABLE}, {COLUMNS}, int64, {READ}, int64, int64, int64)", inlined=True)
def _set(
    fields: Any, table: Any, valid: Any, words: Any, octets: Any, field: int,
    data: Any, value: int, start: int, behind: int,
) -> int:  # fmt: skip
    """Write a scalar as the next entry of its field's column; return a problem or 0.

    COUNT does not change, so a later value of the same field can replace the entry.
    """
    kind, column = fields[field, KIND], fields[field, TARGET]
    count = table[column, COUNT]
    if count >= table[column, ROOM]:
        return _FULL
    if kind >= BYTES:
        if kind == STRING and not is_utf8(data, start, behind):
            return NO_TEXT
        fits = set_text(table, valid, words, octets, column, data, start, behind - start)
        return 0 if fits else _FULL
    entry = table[column, AT] + count
    valid[entry] = 1
    if kind == UNSIGNED_64:
        words[entry + count] = value
        words[entry + count + 1] = 0
    else:
        words[entry] = _word(kind, value)
    return 0


@kernel(f"UniTuple(int64, 2)({_TABLE}, {COLUMNS}, int64, {READ}, int64, int64)", inlined=True)
def _unpack(
    fields: Any, table: Any, valid: Any, words: Any, octets: Any, field: int,
    data: Any, at: int, end: int,
) -> tuple[int, int]:  # fmt: skip
    """Append the numbers of a packed field, at `at` to `end`; return a problem or 0, and a flag.

    The flag is 1 if the problem is in an item, and 0 if it is in the field as a whole.
    """
    wire = fields[field, WIRE]
    size = 8 if wire == FIXED_64 else 4 if wire == FIXED_32 else 1
    if (end - at) % size:
        return ENDS_EARLY, 0
    while at < end:
        value, start, at = _step(data, at, end, wire)
        if at < 0:
            return -at, at != -ENDS_EARLY
        problem = _set(fields, table, valid, words, octets, field, data, value, start, at)
        if problem:
            return problem, 1
        table[fields[field, TARGET], COUNT] += 1
    return 0, 0


@kernel(
    f"int64({_TABLE}, {_TABLE}, {_TABLE}, uint8[::1], int64[::1], int64[::1], {_TABLE}, int64,"
    " int64, int64)",
    inlined=True,
)
def _open(
    messages: Any, fields: Any, table: Any, valid: Any, words: Any, seen: Any, frames: Any,
    depth: int, message: int, end: int,
) -> int:  # fmt: skip
    column = messages[message, COLUMN]
    if table[column, COUNT] >= table[column, ROOM]:
        return _FULL
    put_parts(table, valid, column)
    for field in range(messages[message, FIRST], messages[message, BEHIND]):
        seen[field] = 0
    frames[depth, _OPEN] = message
    frames[depth, _END] = end
    frames[depth, _EXPECTED] = messages[message, FIRST]
    return 0


@kernel(
    f"void({_TABLE}, {_TABLE}, uint8[::1], int64[::1], int64[::1], int64[::1], int64)", inlined=True
)
def _close_field(
    fields: Any, table: Any, valid: Any, words: Any, seen: Any, last: Any, field: int
) -> None:
    flags, column = fields[field, FLAGS], fields[field, TARGET]
    if flags & REPEATED:
        put_items(table, valid, words, column - 1)
        return
    inner, group = fields[field, INNER] >= 0, fields[field, ONEOF]
    if not seen[field]:
        put_nothing(table, valid, words, column)
    elif not inner:
        table[column, COUNT] += 1
    entry = table[column, AT] + table[column, COUNT] - 1
    if not seen[field]:
        valid[entry] = not inner and not flags & PRESENCE
    elif group >= 0 and last[group] != field:
        valid[entry] = 0


@kernel(
    f"int64({_TABLE}, {_TABLE}, {_TABLE}, uint8[::1], int64[::1], int64[::1], int64[::1], int64)",
    inlined=True,
)
def _close(
    messages: Any, fields: Any, table: Any, valid: Any, words: Any, seen: Any, last: Any,
    message: int,
) -> int:  # fmt: skip
    for field in range(messages[message, FIRST], messages[message, BEHIND]):
        _close_field(fields, table, valid, words, seen, last, field)
    special = messages[message, SPECIAL]
    if special == STRUCT:
        return 0
    column = messages[message, COLUMN]
    entry = table[column, COUNT] - 1
    seconds = words[table[column + 1, AT] + entry]
    nanos = words[table[column + 2, AT] + entry]
    if seconds > _SECONDS_MAX or seconds < -_SECONDS_MAX:
        return NO_TIMESTAMP if special == TIMESTAMP else NO_DURATION
    # Both parts of a duration have the same sign; a timestamp's nanoseconds are not negative.
    backwards = nanos < 0 and (special == TIMESTAMP or seconds > 0)
    if nanos > _NANOS_MAX or nanos < -_NANOS_MAX or backwards:
        return NO_NANOS
    if special == DURATION and seconds < 0 and nanos > 0:
        return NO_NANOS
    if messages[message, EXACT] and nanos % 1000 != 0:
        return FINER
    part = nanos // 1000 if nanos >= 0 else -(-nanos // 1000)
    words[table[column, AT] + entry] = seconds * _MICROS + part
    return 0


@kernel(
    f"UniTuple(int64, 2)({_TABLE}, {_TABLE}, {COLUMNS}, int64[::1], int64[::1], {_TABLE}, int64,"
    f" int64, {READ}, int64, int64, int64, int64)",
    inlined=True,
)
def _take(
    messages: Any, fields: Any, table: Any, valid: Any, words: Any, octets: Any, seen: Any,
    last: Any, frames: Any, depth: int, field: int,
    data: Any, wire: int, value: int, start: int, behind: int,
) -> tuple[int, int]:  # fmt: skip
    """Write a scalar of a field, or open its message; return a problem or 0, and its place."""
    flags, inner = fields[field, FLAGS], fields[field, INNER]
    place = PLACES + messages.shape[0] + 2 * field
    if fields[field, ONEOF] >= 0:
        last[fields[field, ONEOF]] = field
    if inner >= 0:
        if seen[field] and not flags & REPEATED:
            return AGAIN, place
        seen[field] = 1
        problem = _open(
            messages, fields, table, valid, words, seen, frames, depth + 1, inner, behind
        )
        return problem, PLACES + inner
    seen[field] = 1
    if wire == SIZED and flags & PACKABLE:
        problem, item = _unpack(
            fields, table, valid, words, octets, field, data, start, behind
        )  # fmt: skip
        return problem, place + item
    problem = _set(fields, table, valid, words, octets, field, data, value, start, behind)
    if flags & REPEATED:
        table[fields[field, TARGET], COUNT] += problem == 0
        place += 1
    return problem, place


@kernel(
    f"UniTuple(int64, 4)({_TABLE}, {_TABLE}, {COLUMNS}, int64[::1], int64[::1], {_TABLE}, int64,"
    f" {READ}, int64)",
    inlined=True,
)
def _piece(
    messages: Any, fields: Any, table: Any, valid: Any, words: Any, octets: Any, seen: Any,
    last: Any, frames: Any, depth: int, data: Any, at: int,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Read one field of the open message: a tag and its value.

    Return a problem or 0, the place of the problem, the next position, and 1 if the value is a
    message that is now open, else 0.
    """
    message, end = frames[depth, _OPEN], frames[depth, _END]
    tag, at = read_varint(data, at, end)
    if at < 0:
        return -at, PLACES + message, 0, 0
    if tag < 8 or tag > _TAG_MAX:
        return NO_TAG, PLACES + message, 0, 0
    wire = tag & 7
    value, start, behind = _step(data, at, end, wire)
    if behind < 0:
        return -behind, PLACES + message, 0, 0
    field = _find(messages, fields, message, tag >> 3, frames[depth, _EXPECTED])
    if field < 0:
        return 0, 0, behind, 0
    frames[depth, _EXPECTED] = field
    if wire != fields[field, WIRE] and not (wire == SIZED and fields[field, FLAGS] & PACKABLE):
        return 0, 0, behind, 0
    problem, place = _take(
        messages, fields, table, valid, words, octets, seen, last, frames, depth, field,
        data, wire, value, start, behind,
    )  # fmt: skip
    if fields[field, INNER] >= 0:
        return problem, place, start, 1
    return problem, place, behind, 0


@kernel(
    f"UniTuple(int64, 2)({_TABLE}, {_TABLE}, {COLUMNS}, int64[::1], int64[::1], {_TABLE}, {READ},"
    " int64, int64)",
    inlined=True,
)
def _read(
    messages: Any, fields: Any, table: Any, valid: Any, words: Any, octets: Any, seen: Any,
    last: Any, frames: Any, data: Any, at: int, end: int,
) -> tuple[int, int]:  # fmt: skip
    problem, place = 0, 0
    depth = 0
    _open(messages, fields, table, valid, words, seen, frames, depth, 0, end)
    while depth >= 0 and problem == 0:
        message = frames[depth, _OPEN]
        whole = messages[message, WHOLE]
        if at < frames[depth, _END]:
            problem, place, at, entered = _piece(
                messages, fields, table, valid, words, octets, seen, last, frames, depth, data, at
            )
            depth += entered
        elif whole >= 0 and not seen[whole]:
            seen[whole] = 1
            inner = fields[whole, INNER]
            depth += 1
            problem = _open(messages, fields, table, valid, words, seen, frames, depth, inner, at)
            place = PLACES + inner
        else:
            problem = _close(messages, fields, table, valid, words, seen, last, message)
            place = PLACES + message
            depth -= 1
    return problem, place


@kernel("int64(int64[:, ::1], int64[:, ::1], int64)", inlined=True)
def _column_at(messages: Any, fields: Any, place: int) -> int:
    message = place - PLACES
    if message < messages.shape[0]:
        return messages[message, COLUMN]  # type: ignore[no-any-return]
    return fields[(message - messages.shape[0]) // 2, TARGET]  # type: ignore[no-any-return]


@kernel(
    f"UniTuple(int64, 2)({_TABLE}, {_TABLE}, {COLUMNS}, {_TABLE}, int64[::1], int64[::1], {_TABLE},"
    f" {READ}, int64[::1], int64[::1], int64[::1], int64)"
)
def read_protobuf(
    messages: Any, fields: Any, table: Any, valid: Any, words: Any, octets: Any, marks: Any,
    seen: Any, last: Any, frames: Any, data: Any, starts: Any, ends: Any, problems: Any, row: int,
) -> tuple[int, int]:  # fmt: skip
    """Read the values from row `row` on into columns; return the row to continue at, and a column.

    If a column is full, both name where to continue after the caller has enlarged it. Otherwise the
    row is the number of values. A value with an earlier or a new problem is null.
    """
    while row < starts.size:
        if problems[row] == 0:
            mark_row(table, marks)
            problem, place = _read(
                messages, fields, table, valid, words, octets, seen, last, frames,
                data, starts[row], ends[row],
            )  # fmt: skip
            if problem:
                undo_row(table, marks)
            if problem == _FULL:
                return row, _column_at(messages, fields, place)
            if problem:
                problems[row] = place * REASONS + problem
        if problems[row] != 0:
            put_nothing(table, valid, words, 0)
        row += 1
    return row, 0
