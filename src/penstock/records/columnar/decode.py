"""Batch bytes to Arrow columns, any number of batches at once and no step per record.

1. Walk the batch headers (the only loop, one round a batch), check sizes and checksums.
2. Unpack compressed batches; if there are any, all record sections are joined into one buffer,
   otherwise the given buffer is read in place.
3. Find every record's start over all batches (`scan`).
4. Read the fields of all records by column (`varints`). Every record must end exactly where its
   length says; since positions only grow, that proves every field to lie inside its record.
5. Lay an Arrow array over the buffer whose elements are, in turn, a value and the bytes up to
   the next value; one `take` of the even elements copies the values out. Keys likewise.

That has a fixed cost, so a handful of plain records is read one by one instead (`small`).

Source: Kafka's `DefaultRecord`; KIP-82 (headers).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.base.crc import Readable, crc32c
from penstock.records.columnar.arrays import Bytes, Flags, Ints
from penstock.records.columnar.fields import read_fields
from penstock.records.columnar.gather import binary_column
from penstock.records.columnar.headers import decode_headers
from penstock.records.columnar.scan import RECORD_BYTES_MIN, record_bodies
from penstock.records.columnar.schema import EXTRA_FIELDS, RECORD_SCHEMA
from penstock.records.columnar.small import decode_small
from penstock.records.compression import decompress
from penstock.records.errors import CorruptBatch, InvalidRecord, RecordTooLarge
from penstock.records.header import (
    CHECKED_FROM,
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    TIMESTAMP_TYPE_FLAG,
    decode_header,
    verify_crc,
)
from penstock.records.limits import (
    BATCHES_MAX,
    DECOMPRESSED_BATCH_BYTES_MAX,
    DECOMPRESSED_BYTES_MAX,
)

DEFAULT_COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers")
GROUP_RECORDS: Final = 16_384
_BUFFER_BYTES_MAX: Final = 2**31 - 1
_OFFSET_MAX: Final = 2**63 - 2
_LENGTH_AT: Final = 8
_MAGIC_AT: Final = 16
_INT32: Final = Struct(">i")
_HEADER_DTYPE: Final = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sections:
    """Where the records of each batch lie in `data`, and what its header says of them."""

    data: Bytes
    begins: Ints
    ends: Ints
    counts: Ints
    headers: Any  # a structured array, one row a batch

    def part(self, low: int, high: int) -> _Sections:
        return _Sections(
            data=self.data,
            begins=self.begins[low:high],
            ends=self.ends[low:high],
            counts=self.counts[low:high],
            headers=self.headers[low:high],
        )


class _Fields:
    """Where the fields of all records are, gathered group by group; length -1 is a null."""

    __slots__ = ("_all", "size")

    def __init__(self, records: int, names: Sequence[str]) -> None:
        self._all = {name: np.empty(records, dtype) for name, dtype in _dtypes(names).items()}
        self.size = 0

    def __getitem__(self, name: str) -> Any:
        return self._all[name][: self.size]

    def append(self, group: Mapping[str, Any], keep: Flags | None) -> None:
        """Add a group's records, those that `keep` marks; None keeps all."""
        size = self.size
        for name, target in self._all.items():
            values = group[name] if keep is None else group[name][keep]
            size = self.size + values.size
            target[self.size : size] = values
        self.size = size


def _dtypes(columns: Sequence[str]) -> dict[str, Any]:
    """The fields that must be gathered for the columns asked for."""
    dtypes: dict[str, Any] = {"offset": np.int64}
    for column in columns:
        if column in ("key", "value"):
            dtypes |= {f"{column}_at": np.int32, f"{column}_length": np.int32}
        elif column == "headers":
            dtypes |= {"headers_at": np.int64, "header_count": np.int64, "end": np.int64}
        else:
            dtypes[column] = np.int8 if column == "timestamp_type" else np.int64
    return dtypes


def decode_batches(
    buffer: Readable,
    *,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    start_offset: int | None = None,
    end_offset: int | None = None,
    include_control: bool = False,
    check_crc: bool = True,
    max_decompressed_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> pa.RecordBatch:
    """Decode batches that stand back to back; a batch cut at the end of `buffer` is ignored.

    Args:
        columns: of `offset`, `timestamp`, `key`, `value`, `headers` and `timestamp_type`; the
            result has these, in this order.
        start_offset: the first offset wanted; None for all.
        end_offset: the first offset no longer wanted; None for all.
        include_control: decode control batches (transaction markers) as records too.
        check_crc: verify the checksum of every batch that is opened.
        max_decompressed_bytes: what all compressed batches may unpack to together.

    Raises:
        CorruptBatch: bytes that are no batches, or batches that contradict themselves.
        RecordTooLarge: compressed batches unpack to more than the limit, or the buffer has
            more than 2 GiB.
        UnsupportedCodec: a codec that Kafka does not define.
        InvalidRecord: a column that there is not.
    """
    view = memoryview(buffer).cast("B")
    decoded = decode_small(
        view,
        _schema(tuple(columns)),
        start_offset=start_offset,
        end_offset=end_offset,
        check_crc=check_crc,
    )
    if decoded is not None:
        return decoded
    return decode_by_column(
        view,
        columns=columns,
        start_offset=start_offset,
        end_offset=end_offset,
        include_control=include_control,
        check_crc=check_crc,
        max_decompressed_bytes=max_decompressed_bytes,
    )


def decode_by_column(
    buffer: Readable,
    *,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    start_offset: int | None = None,
    end_offset: int | None = None,
    include_control: bool = False,
    check_crc: bool = True,
    max_decompressed_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> pa.RecordBatch:
    """As `decode_batches`, by columns however few records there are."""
    schema = _schema(tuple(columns))
    view = memoryview(buffer).cast("B")
    positions, headers = _batches(view)
    chosen = _chosen(headers, start_offset, end_offset, include_control)
    positions, headers = positions[chosen], headers[chosen]
    if check_crc:
        _check_crcs(view, positions, headers)
    sections = _sections(view, positions, headers, max_decompressed_bytes)
    fields = _Fields(int(sections.counts.sum()), columns)
    for group in _groups(sections):
        found = _read_fields(group)
        fields.append(found, _keep(found["offset"], start_offset, end_offset))
    arrays = [_array(name, sections.data, fields) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(name: str, data: Bytes, fields: _Fields) -> Any:
    if name in ("key", "value"):
        return binary_column(data, fields[f"{name}_at"], fields[f"{name}_length"])
    if name == "headers":
        return decode_headers(data, fields["headers_at"], fields["header_count"], fields["end"])
    return pa.array(fields[name])


@lru_cache(maxsize=64)
def _schema(columns: tuple[str, ...]) -> Any:
    fields = []
    for name in columns:
        if name in EXTRA_FIELDS:
            fields.append(EXTRA_FIELDS[name])
        elif name in RECORD_SCHEMA.names:
            fields.append(RECORD_SCHEMA.field(name))
        else:
            known = ", ".join((*RECORD_SCHEMA.names, *EXTRA_FIELDS))
            raise InvalidRecord(f"records have no column {name!r}; they have {known}")
    return pa.schema(fields)


def _batches(view: memoryview) -> tuple[Ints, Any]:
    """Positions and headers of all whole batches.

    Raises:
        CorruptBatch: a header that cannot be, also in a batch that is cut after its header.
    """
    positions: list[int] = []
    position, end = 0, len(view)
    length_at = _INT32.unpack_from
    while end - position >= HEADER_BYTES:
        size_bytes = length_at(view, position + _LENGTH_AT)[0] + LENGTH_OVERHEAD_BYTES
        if size_bytes < HEADER_BYTES or size_bytes > end - position:
            decode_header(view, position)
            break
        positions.append(position)
        position += size_bytes
        if len(positions) > BATCHES_MAX:
            raise CorruptBatch(f"more than {BATCHES_MAX} batches in one buffer")
    left = end - position
    if _MAGIC_AT < left < HEADER_BYTES and view[position + _MAGIC_AT] != MAGIC:
        decode_header(bytes(view[position:]).ljust(HEADER_BYTES, b"\0"))
    at = np.array(positions, np.int64)
    rows = np.frombuffer(view, np.uint8)[at[:, None] + np.arange(HEADER_BYTES)]
    headers = rows.view(_HEADER_DTYPE)[:, 0]
    refused = (
        (headers["magic"] != MAGIC)
        | (headers["base_offset"] < 0)
        | (headers["last_offset_delta"] < 0)
        | (headers["base_offset"] > _OFFSET_MAX - headers["last_offset_delta"].astype(np.int64))
        | (headers["record_count"] < 0)
    )
    for index in np.flatnonzero(refused).tolist():
        decode_header(view, positions[index])
    return at, headers


def _chosen(
    headers: Any, start_offset: int | None, end_offset: int | None, include_control: bool
) -> Flags:
    """Which batches hold records that are wanted."""
    chosen: Flags = headers["record_count"] > 0
    if not include_control:
        chosen &= headers["attributes"] & CONTROL_FLAG == 0
    if start_offset is not None:
        chosen &= headers["base_offset"] + headers["last_offset_delta"] >= start_offset
    if end_offset is not None:
        chosen &= headers["base_offset"] < end_offset
    return chosen


def _check_crcs(view: memoryview, positions: Ints, headers: Any) -> None:
    ends = positions + headers["batch_length"] + LENGTH_OVERHEAD_BYTES
    for position, end, expected in zip(
        positions.tolist(), ends.tolist(), headers["crc"].tolist(), strict=True
    ):
        if crc32c(view[position + CHECKED_FROM : end]) != expected:
            verify_crc(view, decode_header(view, position), position)


def _sections(
    view: memoryview, positions: Ints, headers: Any, max_decompressed_bytes: int
) -> _Sections:
    counts = headers["record_count"].astype(np.int64)
    begins = positions + HEADER_BYTES
    ends = positions + headers["batch_length"] + LENGTH_OVERHEAD_BYTES
    codecs = headers["attributes"] & CODEC_MASK
    whole: Readable = view
    if codecs.any():
        pieces = _unpack(view, begins, ends, codecs, max_decompressed_bytes)
        sizes = np.array([len(piece) for piece in pieces], np.int64)
        ends = np.cumsum(sizes)
        begins = ends - sizes
        whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if len(whole) > _BUFFER_BYTES_MAX:
        raise RecordTooLarge(
            f"records of {len(whole)} bytes in one call; the limit is {_BUFFER_BYTES_MAX}"
        )
    too_many = counts * RECORD_BYTES_MIN > ends - begins
    if too_many.any():
        index = int(too_many.argmax())
        raise CorruptBatch(
            f"batch with base offset {headers['base_offset'][index]} says it has {counts[index]} "
            f"records, in {ends[index] - begins[index]} bytes"
        )
    data = np.frombuffer(whole, np.uint8)
    return _Sections(data=data, begins=begins, ends=ends, counts=counts, headers=headers)


def _unpack(
    view: memoryview, begins: Ints, ends: Ints, codecs: Any, max_decompressed_bytes: int
) -> list[Readable]:
    pieces: list[Readable] = []
    left = max_decompressed_bytes
    for begin, end, codec in zip(begins.tolist(), ends.tolist(), codecs.tolist(), strict=True):
        piece: Readable = view[begin:end]
        if codec:
            limit = min(left, DECOMPRESSED_BATCH_BYTES_MAX)
            piece = decompress(codec, piece, max_bytes=limit)
            left -= len(piece)
        pieces.append(piece)
    return pieces


def _groups(sections: _Sections) -> Iterator[_Sections]:
    """Consecutive batches of about `GROUP_RECORDS`: their temporary arrays stay in the cache.

    Large temporary arrays are fresh memory each time, which costs several times the work on it.
    """
    firsts = np.cumsum(sections.counts)
    low, count = 0, sections.counts.size
    while low < count:
        before = int(firsts[low]) - int(sections.counts[low])
        high = int(np.searchsorted(firsts, before + GROUP_RECORDS, side="right"))
        high = max(high, low + 1)
        yield sections.part(low, high)
        low = high


def _read_fields(group: _Sections) -> dict[str, Any]:
    """Read all fields of a group's records.

    Raises:
        CorruptBatch: a record does not end where it says, a length is below -1, or an offset
            lies outside its batch.
    """
    bodies, ends = record_bodies(group.data, group.begins, group.ends, group.counts)
    fields = read_fields(group.data, bodies, ends)
    return {
        **fields._asdict(),
        "offset": _offsets(group, fields.offset_delta),
        **_timestamps(group, fields.timestamp_delta),
        "end": ends,
    }


def _offsets(group: _Sections, delta: Ints) -> Ints:
    if delta.min() < 0 or (delta > _per_record(group, "last_offset_delta")).any():
        raise CorruptBatch("a record's offset lies outside its batch")
    offsets: Ints = delta + _per_record(group, "base_offset")
    return offsets


def _timestamps(group: _Sections, delta: Ints) -> dict[str, Any]:
    times: Ints = delta + _per_record(group, "base_timestamp")
    appended = _per_record(group, "attributes") & TIMESTAMP_TYPE_FLAG != 0
    if appended.any():
        times = np.where(appended, _per_record(group, "max_timestamp"), times)
    kinds = np.broadcast_to(appended.view(np.int8), times.shape)
    return {"timestamp": times, "timestamp_type": kinds}


def _per_record(group: _Sections, name: str) -> Any:
    """A header's field for each record of its batch (one value if there is one batch)."""
    values = group.headers[name].astype(np.int64)
    return values if values.size == 1 else values.repeat(group.counts)


def _keep(offsets: Ints, start_offset: int | None, end_offset: int | None) -> Flags | None:
    """Which records lie in the range; None when all do."""
    keep = np.ones(offsets.size, np.bool_)
    if start_offset is not None:
        keep &= offsets >= start_offset
    if end_offset is not None:
        keep &= offsets < end_offset
    return None if keep.all() else keep
