"""Arrow columns to batch bytes, cut into batches and laid out without a step per record.

A record is: length, attributes, timestamp delta, offset delta, key length (together its
*front*), key, value length, value, header count, headers. The varints of all records of some
batches are written by column into one byte array; Arrow's element-wise join then lays fronts,
keys and values together. To join fewer pieces, row `i` is what follows the front of record `i`,
and it ends with the front of record `i + 1`:

    front 0 | key 0, value length 0, value 0, header count 0, front 1 | key 1, … , front 2 | …

Batches of one pass lie in one buffer, back to back, each from before its first front; each is
copied once, behind its header.

Source: Kafka's `DefaultRecord.writeTo`, `DefaultRecordBatch.writeHeader`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.records.columnar.inputs import Column, HeaderColumn, Input, read_input
from penstock.records.columnar.schema import Bytes, Ints
from penstock.records.columnar.varints import sizes, varint_column, write, zigzag
from penstock.records.compression import compress
from penstock.records.crc import crc32c
from penstock.records.errors import InvalidRecord, RecordTooLarge
from penstock.records.header import (
    CHECKED_FROM,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    NO_PRODUCER_ID,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Codec,
    encode_header,
)
from penstock.records.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX

PASS_RECORDS: Final = 16_384
PASS_BYTES: Final = 4 << 20
_FRONT_BYTES_MAX: Final = 38
_INCOMPRESSIBLE_SHARE: Final = 64
"""What is left free for codecs that add a little to bytes that do not shrink."""
_SEQUENCE_MODULUS: Final = 2**31
_NULL_LENGTH: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBatch:
    """A whole batch, header and all, and what its header says."""

    data: bytes
    header: BatchHeader

    @property
    def record_count(self) -> int:
        return self.header.record_count

    @property
    def size_bytes(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What all batches of one call have in common, and where the input is cut."""

    codec: Codec
    level: int | None
    base_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    max_batch_bytes: int


def encode_batches(
    data: Any,
    *,
    now_ms: int,
    codec: int = Codec.NONE,
    level: int | None = None,
    base_offset: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    max_batch_bytes: int = BATCH_BYTES_MAX,
    records_per_batch: int = BATCH_RECORDS_MAX,
    transactional: bool = False,
) -> list[EncodedBatch]:
    """Encode a pyarrow Table or RecordBatch as record batches, in row order.

    Args:
        data: column `value`, and if there `key`, `timestamp` and `headers`; others are ignored.
        now_ms: the timestamp of records that have none.
        base_offset: offset of the first record; each batch goes on where the last one ended.
        base_sequence: idempotent sequence of the first record; likewise, wrapping at 2**31.
        max_batch_bytes: no batch is larger; before compression it is what a batch aims at.
        records_per_batch: no batch has more records.

    Raises:
        RecordTooLarge: one record alone is larger than `max_batch_bytes`.
        InvalidRecord: a column is missing or of a type that cannot be encoded.
        UnsupportedCodec: an unknown codec or level.
    """
    if records_per_batch < 1 or max_batch_bytes <= HEADER_BYTES:
        raise InvalidRecord(
            f"batches of {records_per_batch} records and {max_batch_bytes} bytes cannot be"
        )
    plan = _Plan(
        codec=Codec.of(codec),
        level=level,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        max_batch_bytes=max_batch_bytes,
    )
    rows = read_input(data, now_ms)
    headers = _HeaderBytes.of(rows.headers)
    result: list[EncodedBatch] = []
    for cuts in _passes(_cut(rows, headers, plan, records_per_batch)):
        result += _encode_pass(rows, headers, plan, cuts)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeaderBytes:
    """The header count and the encoded headers of every record."""

    counts: Ints
    bounds: Ints
    data: Bytes

    @property
    def lengths(self) -> Ints:
        return np.diff(self.bounds)

    def column(self, low: int, high: int) -> Any:
        return _slices(self.data, self.bounds[low : high + 1])

    @classmethod
    def of(cls, headers: HeaderColumn | None) -> _HeaderBytes | None:
        if headers is None:
            return None
        keys, values = headers.keys, headers.values
        blobs = _join(
            _varint_array(keys.lengths), keys.array, _varint_array(values.lengths), values.array
        )
        each, blob_bytes = _content(blobs)
        firsts = np.concatenate(([0], np.cumsum(headers.counts)))
        return cls(counts=headers.counts, bounds=each[firsts], data=blob_bytes)


def _cut(
    rows: Input, headers: _HeaderBytes | None, plan: _Plan, records_per_batch: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the first row, the row after the last, and at most how many bytes, of each batch."""
    bound = np.maximum(rows.value.lengths, 0)
    if rows.key is not None:
        bound += np.maximum(rows.key.lengths, 0)
    if headers is not None:
        bound += headers.lengths
    bound += _FRONT_BYTES_MAX
    ends = np.cumsum(bound)
    room = plan.max_batch_bytes - HEADER_BYTES
    if plan.codec != Codec.NONE:
        room -= room // _INCOMPRESSIBLE_SHARE
    low, before = 0, 0
    while low < rows.size:
        high = int(np.searchsorted(ends, before + room, side="right"))
        high = min(max(high, low + 1), low + records_per_batch, rows.size)
        yield low, high, int(ends[high - 1]) - before
        low, before = high, int(ends[high - 1])


def _passes(cuts: Iterator[tuple[int, int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Batches that are encoded together: their temporary arrays stay in the cache."""
    group: list[tuple[int, int]] = []
    group_bytes = 0
    for low, high, size_bytes in cuts:
        full = group_bytes + size_bytes > PASS_BYTES
        if group and (full or high - group[0][0] > PASS_RECORDS):
            yield group
            group, group_bytes = [], 0
        group.append((low, high))
        group_bytes += size_bytes
    if group:
        yield group


def _encode_pass(
    rows: Input, headers: _HeaderBytes | None, plan: _Plan, cuts: list[tuple[int, int]]
) -> Iterator[EncodedBatch]:
    low, high = cuts[0][0], cuts[-1][1]
    firsts = np.array([cut[0] for cut in cuts], np.int64) - low
    counts = np.array([cut[1] - cut[0] for cut in cuts], np.int64)
    timestamps = rows.timestamps[low:high]
    base_timestamps = timestamps[firsts]
    max_timestamps = np.maximum.reduceat(timestamps, firsts)
    first_front, joined, begins = _lay_out(
        key=None if rows.key is None else rows.key.part(low, high),
        value=rows.value.part(low, high),
        headers=None if headers is None else (headers, low, high),
        timestamp_delta=timestamps - base_timestamps.repeat(counts),
        offset_delta=np.arange(high - low) - firsts.repeat(counts),
        firsts=firsts,
    )
    for index, (first, after) in enumerate(cuts):
        records = [joined[begins[index] : begins[index + 1]]]
        if index == 0:
            records.insert(0, memoryview(first_front))
        yield _seal(
            records,
            plan,
            first=first,
            count=after - first,
            base_timestamp=int(base_timestamps[index]),
            max_timestamp=int(max_timestamps[index]),
        )


def _seal(
    records: list[Any],
    plan: _Plan,
    *,
    first: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
) -> EncodedBatch:
    """Put the header before the records of a batch, compressed if so planned."""
    if plan.codec != Codec.NONE:
        records = [compress(plan.codec, b"".join(records), plan.level)]
    size_bytes = HEADER_BYTES + sum(len(piece) for piece in records)
    if size_bytes > plan.max_batch_bytes:
        raise RecordTooLarge(
            f"batch of {size_bytes} bytes from row {first} on, {count} records; the limit is "
            f"{plan.max_batch_bytes} bytes"
        )
    sequence = plan.base_sequence
    header = BatchHeader(
        base_offset=plan.base_offset + first,
        batch_length=size_bytes - LENGTH_OVERHEAD_BYTES,
        partition_leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=plan.codec | (TRANSACTIONAL_FLAG if plan.transactional else 0),
        last_offset_delta=count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=plan.producer_id,
        producer_epoch=plan.producer_epoch,
        base_sequence=sequence if sequence < 0 else (sequence + first) % _SEQUENCE_MODULUS,
        record_count=count,
    )
    checksum = crc32c(encode_header(header)[CHECKED_FROM:])
    for piece in records:
        checksum = crc32c(piece, checksum)
    header = header._replace(crc=checksum)
    return EncodedBatch(data=b"".join((encode_header(header), *records)), header=header)


def _lay_out(
    *,
    key: Column | None,
    value: Column,
    headers: tuple[_HeaderBytes, int, int] | None,
    timestamp_delta: Ints,
    offset_delta: Ints,
    firsts: Ints,
) -> tuple[bytes, memoryview, list[int]]:
    """Return the first front, everything after it, and where in that each batch begins."""
    count = value.lengths.size
    fields = [zigzag(timestamp_delta), zigzag(offset_delta)]
    lengths = [value.lengths] if key is None else [key.lengths, value.lengths]
    body = 1 + (1 if key is None else 0) + np.zeros(count, np.int64)
    for column in lengths:
        fields.append(zigzag(column))
        body += np.maximum(column, 0)
    field_sizes = [sizes(field) for field in fields]
    for size in field_sizes:
        body += size
    tails: list[Any] = []
    if headers is None:
        body += 1
    else:
        whole, low, high = headers
        header_counts, bounds = varint_column(whole.counts[low:high])
        tails = [_slices(header_counts, bounds), whole.column(low, high)]
        body += np.diff(bounds) + whole.lengths[low:high]
    fronts = _fronts(zigzag(body), fields, field_sizes, keyed=key is not None, lead=not tails)
    if key is None:
        joined = _join(value.array, *tails, fronts.follow)
    else:
        value_lengths = _varint_array(value.lengths)
        joined = _join(key.array, value_lengths, value.array, *tails, fronts.follow)
    ends, content = _content(joined)
    begins = [0, *(ends[firsts[1:]] - fronts.sizes[firsts[1:]]).tolist(), int(ends[-1])]
    return fronts.first, content.data, begins


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fronts:
    """The fronts of all records: the first one, what follows each record, and their sizes."""

    first: bytes
    follow: Any
    sizes: Ints


def _fronts(
    length: Ints, fields: list[Ints], field_sizes: list[Ints], *, keyed: bool, lead: bool
) -> _Fronts:
    """Write all fronts; with `lead`, each is led by the zero header count of the record before.

    Fields are written in such an order that the byte too many that `write` may leave behind a
    short varint is overwritten by what belongs there.
    """
    timestamp, offset, last = fields[:3]
    timestamp_size, offset_size, last_size = field_sizes[:3]
    length_size = sizes(length)
    front_size = length_size + timestamp_size + offset_size + last_size
    front_size += 1 if keyed else 2
    bounds = np.zeros(length.size + 1, np.int64)
    np.cumsum(front_size + lead, out=bounds[1:])
    target = np.empty(int(bounds[-1]) + lead + 1, np.uint8)
    length_at = bounds[:-1] + lead
    attributes_at = length_at + length_size
    timestamp_at = attributes_at + 1
    offset_at = timestamp_at + timestamp_size
    key_at = offset_at + offset_size
    if not keyed:
        write(target, key_at + 1, last, last_size)
    write(target, length_at, length, length_size)
    write(target, timestamp_at, timestamp, timestamp_size)
    write(target, offset_at, offset, offset_size)
    if keyed:
        write(target, key_at, last, last_size, exact=True)
    else:
        target[key_at] = _NULL_LENGTH
    target[attributes_at] = 0
    if lead:
        target[bounds] = 0
    follow = np.empty(length.size + 1, np.int64)
    follow[:-1] = bounds[1:]
    follow[-1] = bounds[-1] + lead
    first = target[int(lead) : int(bounds[1])].tobytes()
    return _Fronts(first=first, follow=_slices(target, follow), sizes=front_size)


def _varint_array(values: Ints) -> Any:
    return _slices(*varint_column(values))


def _slices(data: Bytes, bounds: Ints) -> Any:
    """A binary array of the pieces of `data` between consecutive bounds."""
    buffers = [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), bounds.size - 1, buffers)


def _join(*pieces: Any) -> Any:
    """Row by row, the pieces one after the other; a null is nothing."""
    return pc.binary_join_element_wise(*pieces, b"", null_handling="replace")


def _content(array: Any) -> tuple[Ints, Bytes]:
    """The bounds of each element, and the bytes of all of them."""
    _, offsets, values = array.buffers()
    bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(values or b"", np.uint8)
    return bounds.astype(np.int64), data
