"""Planning of a fetch: trims extents to batches, and merges their byte ranges.

Each partition's extents are cut to the batches from the fetch offset up to the partition's limit of
bytes. The batch index knows the size of each batch (`layout`), so the end of a batch is found
without reading. Ranges of one object that are close to each other are read as one.

    extents of a partition    [b b b b][b b b]          wanted: from here ─┐
    pieces                      └ trimmed: [· b b b][b b ·]  <─────────────┘
    ranges of an object       |────────────|   |────|        a gap of up to MERGE_GAP_BYTES is read

Source: Inkless's `FetchPlanner` and `FindBatchesJob`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from struct import iter_unpack
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple

import msgspec

from penstock.base.errors import InvalidError
from penstock.base.settings import LONG_MAX
from penstock.records.extents import Extent

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


MERGE_GAP_BYTES: Final = 64 << 10
"""Largest gap between two ranges of an object that are read as one."""

LAYOUT = "<ii"
"""Layout entry of a batch: its size in bytes, and its number of offsets."""


class Piece(NamedTuple):
    """Adjacent batches of one extent, to be read.

    `start` is their position in the object. `batches` has the size in bytes and the number of
    offsets that each batch must have.
    """

    extent: Extent
    start: int
    size_bytes: int
    base_offset: int
    next_offset: int
    batches: tuple[tuple[int, int], ...]


class Range(NamedTuple):
    """Byte range of an object that is read with one request."""

    key: str
    start: int
    size_bytes: int


class RangeLocation(NamedTuple):
    """Location of a piece: the index of its range, and its byte offset in the range."""

    range_index: int
    offset: int


class Plan(NamedTuple):
    """Ranges to read, and the location of each piece in them; pieces keep their order."""

    ranges: list[Range]
    locations: list[RangeLocation]


def layout_of(extent: Extent) -> list[tuple[int, int]]:
    return list(iter_unpack(LAYOUT, extent.layout))


def batches_of(extent: Extent) -> npt.NDArray[np.int32]:
    """Return one row per batch of an extent: its size in bytes, and its number of offsets."""
    import numpy as np

    return np.frombuffer(extent.layout, dtype="<i4").reshape(-1, 2)


def trimmed(extent: Extent, start: int, end: int) -> Extent | None:
    """Return the extent without the batches outside of [start, end); None if no batch is left.

    An extent without layout is returned unchanged.
    """
    if start >= end or end <= extent.base_offset or start >= extent.next_offset:
        return None
    whole = start <= extent.base_offset and end >= extent.next_offset
    if whole or not extent.layout:
        return extent
    import numpy as np

    batches = batches_of(extent)
    after = extent.base_offset + np.cumsum(batches[:, 1], dtype=np.int64)
    first = int(np.searchsorted(after, start, side="right"))
    last = int(np.searchsorted(after, end, side="left")) + 1
    kept = batches[first:last]
    if not len(kept):
        return None
    return extent._replace(
        byte_offset=extent.byte_offset + int(batches[:first, 0].sum(dtype=np.int64)),
        size_bytes=int(kept[:, 0].sum(dtype=np.int64)),
        base_offset=int(after[first] - kept[0, 1]),
        next_offset=int(after[first:last][-1]),
        layout=kept.tobytes(),
    )


def trim(
    extents: Sequence[Extent],
    offset: int,
    *,
    max_bytes: int,
    at_least_one: bool,
) -> list[Piece]:
    """Return the batches from the one that contains `offset`, up to `max_bytes`.

    The extents must be in offset order; the result ends at the first gap between them. With
    `at_least_one`, the first batch is returned even if it is larger.
    """
    pieces: list[Piece] = []
    left = max_bytes
    for extent in extents:
        if pieces and pieces[-1].next_offset != extent.base_offset:
            break
        piece, whole = _trimmed(extent, offset, left, at_least_one and not pieces)
        if piece is not None:
            pieces.append(piece)
            left -= piece.size_bytes
        if not whole:
            break
    return pieces


def _trimmed(
    extent: Extent, offset: int, left: int, at_least_one: bool
) -> tuple[Piece | None, bool]:
    """Return the batches of an extent from `offset` on, at most `left` bytes; None if no batch.

    The second result is whether they reach the extent's end, so that the next extent may follow.
    """
    position = extent.byte_offset
    base = extent.base_offset
    start, first_offset, size_bytes = position, base, 0
    batches: list[tuple[int, int]] = []
    whole = True
    for batch in iter_unpack(LAYOUT, extent.layout):
        batch_bytes, offsets = batch
        after = base + offsets
        if after > offset:
            if size_bytes + batch_bytes > left and not (at_least_one and not batches):
                whole = False
                break
            if not batches:
                start, first_offset = position, base
            batches.append((batch_bytes, offsets))
            size_bytes += batch_bytes
        position += batch_bytes
        base = after
    if not batches:
        return None, whole
    return Piece(extent, start, size_bytes, first_offset, base, tuple(batches)), whole


def merge(pieces: Sequence[Piece], *, gap_bytes: int = MERGE_GAP_BYTES) -> Plan:
    """Return ranges that cover all pieces, grouped by object, with close ranges merged."""
    by_key: dict[str, list[int]] = {}
    for index, piece in enumerate(pieces):
        by_key.setdefault(piece.extent.key, []).append(index)
    ranges: list[Range] = []
    locations: list[RangeLocation] = [RangeLocation(0, 0)] * len(pieces)
    for key, indexes in by_key.items():
        indexes.sort(key=lambda index: pieces[index].start)
        for index in indexes:
            piece = pieces[index]
            last = ranges[-1] if ranges and ranges[-1].key == key else None
            end = piece.start + piece.size_bytes
            if last is not None and piece.start <= last.start + last.size_bytes + gap_bytes:
                size_bytes = max(last.start + last.size_bytes, end) - last.start
                ranges[-1] = last._replace(size_bytes=size_bytes)
            else:
                ranges.append(Range(key, piece.start, piece.size_bytes))
            locations[index] = RangeLocation(len(ranges) - 1, piece.start - ranges[-1].start)
    return Plan(ranges, locations)


def newest_timestamp(pieces: Iterable[Piece]) -> int:
    """Return the newest timestamp or append time of all pieces in milliseconds; -1 if none."""
    return max(
        (max(piece.extent.max_timestamp, piece.extent.append_time_ms) for piece in pieces),
        default=-1,
    )


# Extents as JSON, for exchange between brokers and remote workers.
#
#     {"object_id": 7, "key": "wal/07/…", "kind": "wal", "position": 24, "size_bytes": 900,
#      "base_offset": 10, "next_offset": 30, "max_timestamp": 1, "append_time_ms": -1,
#      "layout": "<base64>"}
#
# The fields are those of `Extent`; `position` is its byte offset.


Long = Annotated[int, msgspec.Meta(ge=-LONG_MAX - 1, le=LONG_MAX)]
"""Signed integer of 64 bits."""


class _Extent(msgspec.Struct):
    """Fields of `Extent` in the same order, for validation of the JSON."""

    object_id: Long
    key: str
    kind: Literal["wal", "segment"]
    position: Long
    size_bytes: Long
    base_offset: Long
    next_offset: Long
    max_timestamp: Long
    append_time_ms: Long
    layout: bytes


class NoExtent(InvalidError):
    """JSON that is not a valid extent."""

    code: ClassVar[str] = "invalid_request"


def extent_to_json(extent: Extent) -> dict[str, Any]:
    return {
        "object_id": extent.object_id,
        "key": extent.key,
        "kind": extent.kind,
        "position": extent.byte_offset,
        "size_bytes": extent.size_bytes,
        "base_offset": extent.base_offset,
        "next_offset": extent.next_offset,
        "max_timestamp": extent.max_timestamp,
        "append_time_ms": extent.append_time_ms,
        "layout": b64encode(extent.layout).decode("ascii"),
    }


def extent_from_json(item: Mapping[str, Any]) -> Extent:
    """Decode the result of `extent_to_json`.

    Raises:
        NoExtent: the JSON is not a valid extent.
    """
    try:
        found = msgspec.convert(item, _Extent)
    except (msgspec.ValidationError, ValueError) as error:
        raise NoExtent(f"invalid extent in JSON: {error}") from None
    return Extent(*msgspec.structs.astuple(found))
