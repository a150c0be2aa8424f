"""Reader of the schema ids of records, as Confluent's serializers write them.

An id begins with a magic byte. It is in front of a key or value, or in a header, whose value takes
precedence:

    00  4 bytes   number of the schema, big endian
    01  16 bytes  GUID of the schema

Further bytes are the payload, or a Protobuf message's indexes. Each record gets the number of its
id in a table of different ids. `read_schema_ids` also checks the records as `read_records` does
with CONSECUTIVE and HEADERS.

Source: `SchemaId` and `DualSchemaIdDeserializer` of Confluent's clients.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from penstock.kernels.compiling import kernel
from penstock.kernels.records import (
    BAD_HEADERS,
    GAP,
    INT_BYTES,
    MANY_HEADERS,
    MISFIT,
    PLACE,
    RECORD,
    big_endian,
    read_fields,
    read_varint,
)
from penstock.kernels.types import READ

NULL: Final = 0
"""Number of a record without a key or value, which needs no id."""
ABSENT: Final = 1
"""Number of a record without an id."""
FIRST: Final = 2
"""Number of the first id in the table."""

KIND: Final = 0
HIGH: Final = 1
LOW: Final = 2
ID_FIELDS: Final = 3
"""Fields of the table: kind of the id, and its words."""
SCHEMA_NUMBER: Final = 0
SCHEMA_GUID: Final = 1
"""Kinds of ids, which are also their magic bytes."""

MANY_IDS: Final = 8
"""Problem after those of `records.py`: the table is full."""
SLOTS_PER_ID: Final = 4

FOUND: Final = 0
LACKING: Final = 1
"""Results in `state`: the number of ids in the table, and the number of records without an id. A
problem's record and position are where `records.py` has them.
"""

_HEADER_BYTES_MIN: Final = 2
_NUMBER_BYTES: Final = 5
_GUID_BYTES: Final = 17
_PROBES_MAX: Final = 64
"""Most slots to search for an id. Chosen ids could otherwise make each search long; at one id for
four slots, others never need as many.
"""
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
_SPREAD_HIGH: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_HALF: Final = np.uint64(32)
_NUMBER_MASK: Final = 0xFFFFFFFF


@kernel(f"UniTuple(int64, 3)({READ}, int64, int64, int64, {READ})")
def _find_header(data: Any, at: Any, end: Any, count: Any, name: Any) -> tuple[Any, Any, Any]:
    """Check that `count` headers fill the bytes up to `end`; find the last one called `name`.

    Return a problem or 0, and the position and length of the header's value. The length is -1 if
    there is no such header, or its value is null.
    """
    if count * _HEADER_BYTES_MIN > end - at:
        return MANY_HEADERS, 0, -1
    found_at, found_length = 0, -1
    for _ in range(count):
        length, at = read_varint(data, at, end, INT_BYTES)
        if length < 0:
            return BAD_HEADERS, 0, -1
        named = length == name.size and length <= end - at
        for index in range(name.size):
            if not named:
                break
            named = data[at + index] == name[index]
        length, at = read_varint(data, at + length, end, INT_BYTES)
        if length < -1:
            return BAD_HEADERS, 0, -1
        if named:
            found_at, found_length = at, length
        at += max(length, 0)
    return (0 if at == end else BAD_HEADERS), found_at, found_length


@kernel("int64(int64, int64, int64, int64[:, ::1], int32[::1], int64[::1])")
def _search(kind: Any, high: Any, low: Any, ids: Any, slots: Any, state: Any) -> Any:
    """Return the index of an id in the table, into which it is entered; -1 if there is no room."""
    mixed = np.uint64(low) * _SPREAD ^ np.uint64(high) * _SPREAD_HIGH
    slot = np.int64((mixed ^ mixed >> _HALF) & np.uint64(slots.size - 1))
    for _ in range(min(_PROBES_MAX, slots.size)):
        index = np.int64(slots[slot]) - 1
        if index < 0:
            index = state[FOUND]
            if index == ids.shape[0]:
                return -1
            ids[index, KIND], ids[index, HIGH], ids[index, LOW] = kind, high, low
            state[FOUND] = index + 1
            slots[slot] = index + 1
            return index
        if ids[index, LOW] == low and ids[index, HIGH] == high and ids[index, KIND] == kind:
            return index
        slot = (slot + 1) & (slots.size - 1)
    return -1


@kernel(f"UniTuple(int64, 3)({READ}, int64, int64)", inlined=True)
def _read_id(data: Any, at: Any, length: Any) -> tuple[Any, Any, Any]:
    """Return the kind and the words of the id that begins at a position; the kind -1 for none."""
    if length >= _NUMBER_BYTES:
        if data[at] == SCHEMA_NUMBER:
            return SCHEMA_NUMBER, 0, big_endian(data, at + 1, 4) & _NUMBER_MASK
        if length >= _GUID_BYTES and data[at] == SCHEMA_GUID:
            return SCHEMA_GUID, big_endian(data, at + 1, 8), big_endian(data, at + 9, 8)
    return -1, 0, 0


@kernel(
    f"int64({READ}, int64, boolean, {READ}, uint16[::1], int64[:, ::1], int32[::1], int64[::1])"
)
def read_schema_ids(
    data: Any, count: Any, keys: bool, name: Any, numbers: Any, ids: Any, slots: Any, state: Any
) -> Any:
    """Read the ids of the keys or values of exactly `count` records; return a problem or 0.

    `name` is the name of the header with the id. `numbers` has room for all records. `ids` and
    `slots` are the table, with `SLOTS_PER_ID` times a power of two slots, all 0.
    """
    at, problem, index, kind, high, low = 0, 0, 0, -1, 0, 0
    for record in range(count):
        (
            problem, _, delta, key_at, key_length, value_at, value_length, headers, headers_at, at,
        ) = read_fields(data, at, data.size)  # fmt: skip
        if problem == 0 and delta != record:
            problem, at = GAP, delta
        start, length = (key_at, key_length) if keys else (value_at, value_length)
        number = NULL if length < 0 else ABSENT
        if problem == 0 and headers:
            problem, header_at, header_length = _find_header(data, headers_at, at, headers, name)
            if header_length >= 0:
                start, length = header_at, header_length
        if problem == 0 and number:
            own_kind, own_high, own_low = _read_id(data, start, length)
            if own_kind >= 0:
                if own_low != low or own_high != high or own_kind != kind:
                    kind, high, low = own_kind, own_high, own_low
                    index = _search(kind, high, low, ids, slots, state)
                number = FIRST + index
                problem = MANY_IDS if index < 0 else 0
            else:
                state[LACKING] += 1
        if problem:
            state[RECORD] = record
            break
        numbers[record] = number
    if problem == 0 and at != data.size:
        problem, state[RECORD] = MISFIT, max(count - 1, 0)
    state[PLACE] = at
    return problem
