"""Header that a schema registry's serialisers write before a value.

    magic      uint8          0, or 1 if a GUID follows
    schema id  int32          big endian; with magic 1 a GUID of 16 bytes
    count      zigzag varint  Protobuf only: number of message indexes; 0 means the one index 0
    index      zigzag varint  one for each of `count`

Some serialisers write the same bytes into a header of the record instead, `__value_schema_id` or
`__key_schema_id`. Then the value has no header.

Without a registry, values are read with one schema, whatever their id. So a reader accepts only
pinned ids: values that were written with another schema would be read wrong. The indexes identify
a message in the schema's file. It is an error if this is not the reader's message.

Source: the wire format of Confluent's Schema Registry serialisers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NewType
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.values import ABSENT, REASONS, Longs, Values

HEADER_BYTES: Final = 5
TOO_SHORT: Final = f"shorter than the {HEADER_BYTES} bytes of the confluent framing"
NO_MAGIC: Final = "does not start with the magic byte 0 of the confluent framing"
PLACES: Final = ("", "message indexes: ")
"""Labels of places 0 and 1 in errors of every format: the whole value, and its message indexes."""
WORDS: Final = (
    "", "ends too early", "a number of more than 64 bits", TOO_SHORT, NO_MAGIC,
    "the value is of another message",
)  # fmt: skip
"""Texts of the error reasons that all formats share, by the numbers of the kernels."""
VALUE_HEADER: Final = "__value_schema_id"
KEY_HEADER: Final = "__key_schema_id"
_GUID_BYTES: Final = 16
_PATH_BYTES_MAX: Final = 100
"""Most bytes of the message indexes of a value."""

SchemaKey = NewType("SchemaKey", str)
"""Id of a schema in digits, or its GUID with hyphens."""


def skip_header(
    values: Values, indexes: tuple[int, ...] = (), ids: Sequence[int] = ()
) -> pa.StringArray | None:
    """Move the start of each value to after its header; return errors of ids that are not pinned.

    A value without a header, with a GUID, or with other message indexes, gets a problem. A value
    with another id than `ids` becomes absent. If there is no such value, the result is None. If
    `ids` is empty, all ids are accepted.
    """
    found = _read_ids(values)
    values.problems[(found < 0) & (values.problems == 0)] = WORDS.index(NO_MAGIC)
    foreign = None
    if ids:
        wrong = (values.problems == 0) & ~np.isin(found, np.array(ids, np.int64))
        if wrong.any():
            foreign = _foreign(values, found, wrong, ids)
    if indexes:
        skip_indexes(values, indexes)
    return foreign


def skip_indexes(values: Values, indexes: tuple[int, ...]) -> None:
    """Move the start of each value to after its message indexes; other ones get a problem."""
    from penstock.kernels.frames import skip_message_indexes

    skip_message_indexes(
        values.data, values.starts, values.ends, values.problems, np.array(indexes, np.int64),
        REASONS,
    )  # fmt: skip


def message_paths(values: Values) -> list[tuple[tuple[int, ...], Longs]]:
    """Return the rows of each list of message indexes; values with damaged ones are left out."""
    found: dict[tuple[int, ...], list[int]] = {}
    for row in np.flatnonzero(values.problems == 0).tolist():
        content = values.data[values.starts[row] : values.ends[row]][:_PATH_BYTES_MAX].tobytes()
        path = _message_path(content)
        if path is not None:
            found.setdefault(path, []).append(row)
    return [(path, np.array(rows, np.int64)) for path, rows in found.items()]


def _message_path(content: bytes) -> tuple[int, ...] | None:
    numbers: list[int] = []
    value = shift = 0
    for byte in content:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append((value >> 1) ^ -(value & 1))
            value = shift = 0
            if numbers[0] == len(numbers) - 1:
                return tuple(numbers[1:]) or (0,)
    return None


def with_errors(errors: pa.StringArray, more: pa.StringArray | None) -> pa.StringArray:
    """Return error texts of values; those of absent values are in `more`."""
    return errors if more is None else pc.coalesce(errors, more)


def by_schema(values: Values) -> list[tuple[SchemaKey, Longs]]:
    """Move the start of each value to after its id; return the rows of each id, in their order.

    A value without a header gets a problem.
    """
    ids = _read_ids(values)
    found: list[tuple[SchemaKey, Longs]] = [
        (SchemaKey(str(number)), rows) for number, rows in _grouped(ids) if number >= 0
    ]
    rows = np.flatnonzero((ids < 0) & (values.problems == 0))
    if rows.size:
        places = values.starts[rows, None] + np.arange(-_GUID_BYTES, 0)
        guids = values.data[places].view(f"V{_GUID_BYTES}").reshape(-1)
        for guid, inner in _grouped(guids):
            found.append((SchemaKey(str(UUID(bytes=guid.tobytes()))), rows[inner]))
    return found


def header_values(headers: pa.ListArray, name: str) -> tuple[Longs, pa.BinaryArray] | None:
    """Return the rows that have a header of this name, and its first value in each of them."""
    entries = headers.values
    named = pc.equal(entries.field("key"), name).fill_null(False)
    places = np.flatnonzero(named.to_numpy(zero_copy_only=False))
    offsets = headers.offsets.to_numpy()
    places = places[(places >= offsets[0]) & (places < offsets[-1])]
    if not places.size:
        return None
    rows = np.searchsorted(offsets, places, side="right") - 1
    rows, first = np.unique(rows, return_index=True)
    content = entries.field("value").take(pa.array(places[first])).cast(pa.binary())
    there = content.is_valid().to_numpy(zero_copy_only=False)
    return rows[there].astype(np.int64), content.drop_null()


def _read_ids(values: Values) -> Longs:
    from penstock.kernels.frames import read_frames

    ids = np.empty(len(values), np.int64)
    read_frames(values.data, values.starts, values.ends, values.problems, ids)
    return ids


def _grouped(numbers: npt.NDArray[Any]) -> Iterable[tuple[Any, Longs]]:
    if not numbers.size or (numbers == numbers[0]).all():
        return [(number, np.arange(numbers.size)) for number in numbers[:1]]
    kinds, index = np.unique(numbers, return_inverse=True)
    order = np.argsort(index.reshape(-1), kind="stable")
    bounds = np.cumsum(np.bincount(index.reshape(-1)))[:-1]
    return list(zip(kinds, np.split(order, bounds), strict=True))


def _foreign(values: Values, found: Longs, wrong: Any, ids: Sequence[int]) -> pa.StringArray:
    values.problems[wrong] = ABSENT
    pinned = ", ".join(map(str, ids))
    numbers, index = np.unique(found[wrong], return_inverse=True)
    texts = [
        f"has schema id {number}, but values with schema id {pinned} are read. Use format ="
        ' "registry", which reads each value with its own schema, or add the id to ids if the same'
        " schema reads it"
        for number in numbers.tolist()
    ]
    places = np.zeros(found.size, np.int64)
    places[wrong] = index.reshape(-1) + 1
    return pa.array([None, *texts], pa.string()).take(pa.array(places))
