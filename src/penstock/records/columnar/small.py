"""A handful of records, read one by one: what a tailing reader fetches.

The column decoder takes about as long for one record as for hundreds, because each of its steps
costs a few microseconds however little there is to do. Below `SMALL_RECORDS_MAX` a plain loop is
faster. It reads what is plain (whole, uncompressed data batches without headers) and nothing
else: whatever it does not know, or finds wrong, it leaves to the column decoder, which knows
better and raises the errors.

Source: as in `decode`.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import pyarrow as pa

from penstock.base.crc import crc32c
from penstock.records.columnar.schema import EXTRA_FIELDS, HEADERS_TYPE
from penstock.records.columnar.single import Unusual, read_record
from penstock.records.header import (
    CHECKED_FROM,
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    TIMESTAMP_TYPE_FLAG,
)

SMALL_RECORDS_MAX: Final = 64
SMALL_BYTES_MAX: Final = 64 << 10
_HEADER: Final = Struct(">qiibIhiqqqhii")
_LONG_MAX: Final = 2**63 - 1
_TYPES: Final = {
    "offset": pa.int64(),
    "timestamp": pa.int64(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS_TYPE,
    **{name: field.type for name, field in EXTRA_FIELDS.items()},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    start: int
    end: int
    check_crc: bool


def decode_small(
    view: memoryview,
    schema: Any,
    *,
    start_offset: int | None,
    end_offset: int | None,
    check_crc: bool,
) -> Any | None:
    """The records as a RecordBatch of this schema, or None for the column decoder to do it."""
    if not HEADER_BYTES < len(view) <= SMALL_BYTES_MAX:
        return None
    wanted = _Range(
        start=0 if start_offset is None else start_offset,
        end=_LONG_MAX if end_offset is None else end_offset,
        check_crc=check_crc,
    )
    rows: list[tuple[Any, ...]] = []
    data, position, left = bytes(view), 0, SMALL_RECORDS_MAX
    try:
        while position < len(data):
            position, left = _read_batch(data, position, left, wanted, rows)
    except (Unusual, IndexError):
        return None
    columns = dict(zip(_TYPES, zip(*rows, strict=True), strict=True)) if rows else {}
    arrays = [pa.array(columns.get(name, ()), _TYPES[name]) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _read_batch(
    data: bytes, position: int, left: int, wanted: _Range, rows: list[tuple[Any, ...]]
) -> tuple[int, int]:
    """Read one batch; returns where the next begins and how many records may follow."""
    if len(data) - position < HEADER_BYTES:
        raise Unusual
    (
        base_offset, length, _, magic, crc, attributes, last_delta, base_timestamp,
        max_timestamp, _, _, _, count,
    ) = _HEADER.unpack_from(data, position)  # fmt: skip
    end = position + length + LENGTH_OVERHEAD_BYTES
    if (
        magic != MAGIC
        or not position + HEADER_BYTES <= end <= len(data)
        or attributes & (CODEC_MASK | CONTROL_FLAG)
        or not 0 < count <= left
        or base_offset < wanted.start - last_delta
        or not 0 <= base_offset < wanted.end
        or not 0 <= last_delta < _LONG_MAX - base_offset
    ):
        raise Unusual
    if wanted.check_crc and crc32c(memoryview(data)[position + CHECKED_FROM : end]) != crc:
        raise Unusual
    kind = 1 if attributes & TIMESTAMP_TYPE_FLAG else 0
    at = position + HEADER_BYTES
    for _ in range(count):
        at, offset_delta, timestamp_delta, key, value = read_record(data, at)
        offset, timestamp = base_offset + offset_delta, base_timestamp + timestamp_delta
        if not 0 <= offset_delta <= last_delta or not -_LONG_MAX <= timestamp <= _LONG_MAX:
            raise Unusual
        if wanted.start <= offset < wanted.end:
            rows.append((offset, max_timestamp if kind else timestamp, key, value, (), kind))
    if at != end:
        raise Unusual
    return end, left - count
