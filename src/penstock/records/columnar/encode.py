"""Encoder of columns to record batches.

A kernel (`kernels.record_writing`) cuts the rows into batches and writes several batches at a time
into one buffer. Each batch is complete when its header is filled in. Keys, values and headers are
copied only once.

Source: Kafka's `DefaultRecordBatch.writeHeader`.
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import Any, Final

import numpy as np
from msgspec import Struct

from penstock.base.crc import crc32c
from penstock.records.columnar.arrays import Bytes, Input, Ints
from penstock.records.compression import compress
from penstock.records.errors import InvalidRecord, RecordTooLarge
from penstock.records.header import (
    CHECKED_FROM,
    CRC_AT,
    HEADER_BYTES,
    NO_PRODUCER_ID,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Codec,
    decode_header,
)

BATCH_BYTES_MAX: Final = 1 << 20
"""Largest encoded batch by default (Kafka's `message.max.bytes` is 1 MiB + 12)."""
BATCH_RECORDS_MAX: Final = 20_000
"""Most records in an encoded batch."""

PASS_BYTES: Final = 1 << 20
"""Bytes of the batches that share one buffer. A batch that stays in memory keeps all of them."""
PASS_BATCHES: Final = 4_096
_INCOMPRESSIBLE_SHARE: Final = 64
"""Part (1/64) of a batch kept free, because codecs enlarge incompressible bytes a little."""
_RECORDS_BYTES_MAX: Final = 2**31 - 1 - HEADER_BYTES
_CHECKSUM: Final = Layout(">I")

_Cuts = list[list[int]]
"""First row, row after the last one, and bytes of the records of each batch."""


class EncodedBatch(Struct, frozen=True, kw_only=True):
    """Whole encoded batch: its bytes, and its number of records."""

    data: memoryview
    record_count: int

    @property
    def header(self) -> BatchHeader:
        return decode_header(self.data)

    @property
    def size_bytes(self) -> int:
        return len(self.data)


class _Plan(Struct, frozen=True, kw_only=True):
    """Values that all batches of one call have in common, and limits of each batch."""

    codec: Codec
    level: int | None
    base_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    max_batch_bytes: int
    aim_bytes: int
    compress_large: bool


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
    aim_bytes: int | None = None,
    compress_large: bool = False,
) -> list[EncodedBatch]:
    """Encode the rows of a pyarrow Table or RecordBatch as record batches, in row order.

    Args:
        data: table with a column `value`, and optionally `key`, `timestamp` and `headers` (other
            columns are ignored), or the result of `read_input` for such a table.
        now_ms: timestamp for records that have none.
        base_offset: offset of the first record.
        base_sequence: idempotent sequence of the first record; it continues with 0 after 2**31 - 1.
        max_batch_bytes: most bytes of a batch, with its header.
        records_per_batch: most records of a batch.
        aim_bytes: size before compression at which a batch is closed, by default `max_batch_bytes`;
            a larger record gets its own batch.
        compress_large: whether a batch that exceeds `max_batch_bytes` is compressed with zstd,
            after which it may fit.

    Raises:
        RecordTooLarge: a single record exceeds `max_batch_bytes`.
        InvalidRecord: a column is missing or has a type that cannot be encoded.
        UnsupportedCodec: the codec or level is unknown.
    """
    if records_per_batch < 1 or max_batch_bytes <= HEADER_BYTES:
        raise InvalidRecord(
            f"records_per_batch = {records_per_batch} must be at least 1, and max_batch_bytes ="
            f" {max_batch_bytes} must be above {HEADER_BYTES}"
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
        aim_bytes=min(aim_bytes or max_batch_bytes, max_batch_bytes),
        compress_large=compress_large,
    )
    rows = data if isinstance(data, Input) else _read_input(data, now_ms)
    return _encode(rows, plan, records_per_batch) if rows.size else []


def _read_input(data: Any, now_ms: int) -> Input:
    # Imported here because brokers and host agents encode without PyArrow.
    from penstock.records.columnar.inputs import read_input

    return read_input(data, now_ms)


def _encode(rows: Input, plan: _Plan, records_per_batch: int) -> list[EncodedBatch]:
    # Imported here because the kernels take 0.3 s to load, and not every client needs them.
    from penstock.kernels import record_writing as kernels

    room = max(1, plan.aim_bytes - HEADER_BYTES)
    records_bytes_max = plan.max_batch_bytes - HEADER_BYTES
    if plan.codec != Codec.NONE or plan.compress_large:
        records_bytes_max = _RECORDS_BYTES_MAX
    if plan.codec != Codec.NONE:
        room -= room // _INCOMPRESSIBLE_SHARE
    columns = rows.columns()
    table = np.empty((min(rows.size, PASS_BATCHES), kernels.CUT_FIELDS), np.int64)
    largest = PASS_BYTES + plan.max_batch_bytes
    batches: list[EncodedBatch] = []
    low, size_bytes = 0, min(largest, HEADER_BYTES + rows.bytes_max())
    while low < rows.size:
        target: Any = np.empty(size_bytes, np.uint8)
        count = kernels.write_records(
            columns, low, room, records_per_batch, PASS_BYTES, target, table
        )
        cuts = table[: max(count, 1), : kernels.RECORDS_BYTES + 1].tolist()
        total = 0
        for first, after, size in cuts:
            if size > records_bytes_max:
                raise _too_large(size + HEADER_BYTES, first, after - first, plan)
            total += HEADER_BYTES + size
        if count == 0:
            size_bytes = max(largest, HEADER_BYTES + cuts[0][kernels.RECORDS_BYTES])
            continue
        if total < target.size // 2:
            target.resize(total, refcheck=False)
        encode = _sealed if plan.codec == Codec.NONE and not plan.compress_large else _compressed
        batches += encode(target, table[:count], cuts, plan)
        low = cuts[-1][kernels.AFTER]
    return batches


def _too_large(size_bytes: int, first: int, count: int, plan: _Plan) -> RecordTooLarge:
    return RecordTooLarge(
        f"the batch of {count} records from row {first} on has {size_bytes} bytes, but the limit "
        f"is {plan.max_batch_bytes} bytes"
    )


def _compressed(target: Any, table: Ints, cuts: _Cuts, plan: _Plan) -> list[EncodedBatch]:
    """Compress the batches in a buffer as planned, and fill in their headers."""
    batches: list[EncodedBatch] = []
    at = 0
    for number, (first, after, size) in enumerate(cuts):
        end = at + HEADER_BYTES + size
        codec, plain = plan.codec, target[at:end]
        written = plain if codec == Codec.NONE else _with_records(plain, codec, plan.level)
        if len(written) > plan.max_batch_bytes and plan.compress_large:
            codec, written = Codec.ZSTD, _with_records(plain, Codec.ZSTD, None)
        if len(written) > plan.max_batch_bytes:
            raise _too_large(len(written), first, after - first, plan)
        cut = [first, after, len(written) - HEADER_BYTES]
        table[number, : len(cut)] = cut
        batches += _sealed(written, table[number : number + 1], [cut], plan, codec)
        at = end
    return batches


def _with_records(data: Any, codec: Codec, level: int | None) -> Bytes:
    records = compress(codec, memoryview(data)[HEADER_BYTES:], level)
    return np.frombuffer(bytearray().join((bytes(HEADER_BYTES), records)), np.uint8)


def _sealed(
    target: Any, table: Ints, cuts: _Cuts, plan: _Plan, codec: Codec = Codec.NONE
) -> list[EncodedBatch]:
    """Fill in the headers of the batches in a buffer.

    Args:
        table: rows of the kernel, one for each of `cuts`.
    """
    from penstock.kernels import record_writing as kernels

    attributes = codec | (TRANSACTIONAL_FLAG if plan.transactional else 0)
    view, at = memoryview(target), 0
    readonly = view.toreadonly()
    kernels.write_batch_headers(
        target, table, plan.base_offset, attributes, plan.producer_id, plan.producer_epoch,
        plan.base_sequence,
    )  # fmt: skip
    batches: list[EncodedBatch] = []
    for first, after, size in cuts:
        end = at + HEADER_BYTES + size
        _CHECKSUM.pack_into(view, at + CRC_AT, crc32c(view[at + CHECKED_FROM : end]))
        batches.append(EncodedBatch(data=readonly[at:end], record_count=after - first))
        at = end
    return batches
