"""Arrow columns to batch bytes, cut into batches and laid out without a step per record.

A record is: length, attributes, timestamp delta, offset delta, key length (together its
*front*), key, value length, value, header count, headers. Fronts and lengths of all records of
some batches are computed by column (`fronts`); one gather then copies them, the keys and the
values, each from where it lies, into the order of the records. Without headers, the header
count 0 of a record is the first byte of the next record's front, to have a piece less.

The front of a batch's first record has room for the batch's header before it. So batches of one
pass lie in one buffer, back to back, and are complete as soon as their headers are filled in.

Source: Kafka's `DefaultRecord.writeTo`, `DefaultRecordBatch.writeHeader`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from penstock.base.crc import crc32c
from penstock.records.columnar.arrays import Ints
from penstock.records.columnar.fronts import constant, packed, pieces
from penstock.records.columnar.gather import Piece, gather
from penstock.records.columnar.inputs import Input, read_input
from penstock.records.columnar.varints import sizes, zigzag
from penstock.records.compression import compress
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
_NULL: Final = b"\x01"
_NO_HEADERS: Final = b"\0"
_ATTRIBUTES: Final = b"\0"
_INT_BYTES_MAX: Final = 5
_LONG_BYTES_MAX: Final = 10
_INCOMPRESSIBLE_SHARE: Final = 64
"""What is left free for codecs that add a little to bytes that do not shrink."""
_SEQUENCE_MODULUS: Final = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBatch:
    """A whole batch, header and all, and what its header says."""

    data: memoryview
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
            Or what `read_input` made of such a table.
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
    rows = data if isinstance(data, Input) else read_input(data, now_ms)
    result: list[EncodedBatch] = []
    for cuts in _passes(_cut(rows, plan, records_per_batch)):
        result += _encode_pass(rows, plan, cuts)
    return result


def _cut(rows: Input, plan: _Plan, records_per_batch: int) -> Iterator[tuple[int, int, int]]:
    """Yield the first row, the row after the last, and at most how many bytes, of each batch."""
    if rows.size == 0:
        return
    bound = np.maximum(rows.value.lengths, 0)
    if rows.key is not None:
        bound += np.maximum(rows.key.lengths, 0)
    if rows.headers is not None:
        bound += rows.headers.sizes
    bound += _overhead_bytes_max(rows)
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


def _overhead_bytes_max(rows: Input) -> int:
    """The most that a record takes beside its key, its value and its headers' bytes."""
    columns = [rows.value.lengths, np.array([rows.size])]
    if rows.key is not None:
        columns.append(rows.key.lengths)
    if rows.headers is not None:
        columns.append(rows.headers.counts)
    fields = sum(int(sizes(zigzag(column.max(keepdims=True)))[0]) for column in columns)
    steady = int(rows.timestamps.min()) == int(rows.timestamps.max())
    return _INT_BYTES_MAX + fields + (1 if steady else _LONG_BYTES_MAX) + 3


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


def _encode_pass(rows: Input, plan: _Plan, cuts: list[tuple[int, int]]) -> Iterator[EncodedBatch]:
    low, high = cuts[0][0], cuts[-1][1]
    firsts = np.array([cut[0] for cut in cuts], np.int64) - low
    counts = np.array([cut[1] - cut[0] for cut in cuts], np.int64)
    part = rows.select(slice(low, high))
    base_timestamps = part.timestamps[firsts]
    max_timestamps = np.maximum.reduceat(part.timestamps, firsts)
    content, bounds = _lay_out(
        part,
        timestamp_delta=part.timestamps - base_timestamps.repeat(counts),
        offset_delta=np.arange(high - low) - firsts.repeat(counts),
        firsts=firsts,
    )
    for index, (first, after) in enumerate(cuts):
        yield _seal(
            content[bounds[index] : bounds[index + 1]],
            plan,
            first=first,
            count=after - first,
            base_timestamp=int(base_timestamps[index]),
            max_timestamp=int(max_timestamps[index]),
        )


def _seal(
    data: memoryview,
    plan: _Plan,
    *,
    first: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
) -> EncodedBatch:
    """Fill in the header before the records of a batch, which are compressed if so planned."""
    if plan.codec != Codec.NONE:
        records = compress(plan.codec, data[HEADER_BYTES:], plan.level)
        data = memoryview(bytearray().join((bytes(HEADER_BYTES), records)))
    if len(data) > plan.max_batch_bytes:
        raise RecordTooLarge(
            f"batch of {len(data)} bytes from row {first} on, {count} records; the limit is "
            f"{plan.max_batch_bytes} bytes"
        )
    sequence = plan.base_sequence
    header = BatchHeader(
        base_offset=plan.base_offset + first,
        batch_length=len(data) - LENGTH_OVERHEAD_BYTES,
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
    data[:HEADER_BYTES] = encode_header(header)
    header = header._replace(crc=crc32c(data[CHECKED_FROM:]))
    data[:HEADER_BYTES] = encode_header(header)
    return EncodedBatch(data=data.toreadonly(), header=header)


def _lay_out(
    rows: Input, *, timestamp_delta: Ints, offset_delta: Ints, firsts: Ints
) -> tuple[memoryview, list[int]]:
    """Lay out all records with room for a header before each batch; return the batches' bounds."""
    value_length = packed(rows.value.lengths)
    fields = [packed(timestamp_delta), packed(offset_delta)]
    values = [rows.value.piece]
    if rows.key is None:
        fields += [constant(_NULL), value_length]
    else:
        fields.append(packed(rows.key.lengths))
        values = [rows.key.piece, *pieces([value_length], rows.size), *values]
    if rows.headers is None:
        end = constant(_NO_HEADERS)
    else:
        end = constant(b"")
        header_counts = packed(rows.headers.counts)
        values += [*pieces([header_counts], rows.size), rows.headers.piece]
    # The length counts what follows it: attributes and fields, all values, and header count 0.
    length = np.full(rows.size, len(_ATTRIBUTES) + int(rows.headers is None), np.int64)
    for field in fields:
        length += field.size.astype(np.int64)
    for piece in values:
        length += piece.size
    fronts = pieces([end, packed(length), constant(_ATTRIBUTES), *fields], rows.size)
    heads = _heads(fronts[0], firsts, end.size_max)
    lead = end.size_max
    gathered = gather([*fronts, *values], firsts, heads, _tail(lead))
    bounds = (gathered.begins[firsts] + lead).tolist()
    return gathered.content, [*bounds, len(gathered.content)]


def _heads(front: Piece, firsts: Ints, lead: int) -> Piece:
    """The fronts of the batches' first records, with room for a header after the lead."""
    ats, front_sizes = front.at[firsts], np.broadcast_to(front.size, front.at.shape)[firsts]
    memory = np.zeros((firsts.size, HEADER_BYTES + int(front_sizes.max())), np.uint8)
    source = front.owner.view(np.uint8).reshape(-1)
    begins = (ats - front.owner.ctypes.data).tolist()
    for index, (begin, size) in enumerate(zip(begins, front_sizes.tolist(), strict=True)):
        content = source[begin + lead : begin + size]
        memory[index, HEADER_BYTES + lead : HEADER_BYTES + size] = content
    at = np.arange(firsts.size) * memory.strides[0] + memory.ctypes.data
    return Piece(memory, at, front_sizes + HEADER_BYTES)


def _tail(size_bytes: int) -> Piece:
    """The header count of the very last record, if it has no headers."""
    memory = np.zeros(1, np.uint8)
    return Piece(memory, np.array([memory.ctypes.data]), np.int64(size_bytes))
