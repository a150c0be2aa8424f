"""Encoder of Arrow columns to record batches.

A kernel (`kernels.record_writing`) cuts the rows into batches and writes several batches at a time
into one buffer. Each batch is complete when its header is filled in. Keys, values and headers are
copied only once.

Source: Kafka's `DefaultRecordBatch.writeHeader`.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack_into
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from penstock.base.crc import crc32c
from penstock.records.columnar.arrays import Bytes, Ints
from penstock.records.columnar.schema import HEADERS_TYPE
from penstock.records.compression import compress
from penstock.records.errors import InvalidRecord, RecordTooLarge
from penstock.records.header import (
    CHECKED_FROM,
    CRC_AT,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    NO_PRODUCER_ID,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Codec,
    encode_header,
)

# Input columns of the encoder, converted to a few types.
#
# Keys and values may be any binary or text type. Timestamps are whole milliseconds, or Arrow
# timestamps of any unit, which are rounded down to milliseconds. Headers are a list of key-value
# structs or a map. Other types are rejected and not cast: for a struct with other field names,
# Arrow's cast would return nulls.


Bounds = npt.NDArray[np.int32]

_NO_BYTES: Final = np.empty(0, np.uint8)
_NO_BOUNDS: Final = np.empty(0, np.int32)
_IN_ORDER: Final = np.empty(0, np.int64)
_LENGTH_BYTES_MAX: Final = 5
_PER_MILLISECOND: Final = {"us": 1_000, "ns": 1_000_000}
_LISTS: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_TEXTS: Final = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary,
    pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary,
    pa.types.is_null,
)  # fmt: skip
_NUMBERS_BYTES_MAX: Final = 31
"""Upper bound of a record's bytes for length, attributes, timestamp, offset and counts."""


class Column(NamedTuple):
    """Column of byte strings in one buffer, as `kernels.record_writing` describes it."""

    data: Bytes = _NO_BYTES
    starts: Bounds = _NO_BOUNDS
    ends: Bounds = _NO_BOUNDS
    valid: Bytes = _NO_BYTES
    shift: int = 0

    def bytes_max(self) -> int:
        """Return an upper bound of the bytes of all elements, including their length fields."""
        taken = int(self.ends[-1]) - int(self.starts[0]) if self.starts.size else 0
        return taken + self.starts.size * _LENGTH_BYTES_MAX


_NULLS: Final = Column()


class Headers(NamedTuple):
    """Headers of all rows: keys and values, and at which of them each row begins."""

    bounds: Bounds = _NO_BOUNDS
    keys: Column = _NULLS
    values: Column = _NULLS


_NO_HEADERS: Final = Headers()


class Input(Struct, frozen=True, kw_only=True):
    """Columns of the records to encode; `order` has the indexes of selected rows, None for all."""

    value: Column
    timestamps: Ints
    key: Column = _NULLS
    headers: Headers = _NO_HEADERS
    order: Ints | None = None

    @property
    def size(self) -> int:
        return self.timestamps.size if self.order is None else self.order.size

    def bytes_max(self) -> int:
        """Return an upper bound of all records' bytes, if each row is selected at most once."""
        columns = (self.key, self.value, self.headers.keys, self.headers.values)
        return self.size * _NUMBERS_BYTES_MAX + sum(column.bytes_max() for column in columns)

    def select(self, rows: slice | Ints) -> Input:
        """Return some of the rows, by a slice or by indexes in any order; values are not copied."""
        order = np.arange(self.timestamps.size) if self.order is None else self.order
        return replace(self, order=order[rows])

    def columns(self) -> tuple[Any, ...]:
        bounds, keys, values = self.headers
        order = _IN_ORDER if self.order is None else self.order
        return (
            order, tuple(self.key), tuple(self.value), self.timestamps, bounds, tuple(keys),
            tuple(values),
        )  # fmt: skip


def read_input(data: Any, now_ms: int) -> Input:
    """Convert the columns `value`, `key`, `timestamp` and `headers` of a table or record batch.

    `now_ms` is the timestamp of rows that have none.

    Raises:
        InvalidRecord: there is no column `value`, a column has an unsupported type, a timestamp
            does not fit into 64 bits, or a header or its key is null.
    """
    names = data.schema.names
    if "value" not in names:
        raise InvalidRecord(
            f"the column 'value' is missing. The columns are {', '.join(names) or 'none'}"
        )
    return Input(
        key=_binary("key", _whole(data, "key")) if "key" in names else _NULLS,
        value=_binary("value", _whole(data, "value")),
        timestamps=_timestamps(data, now_ms),
        headers=_headers(_whole(data, "headers")) if "headers" in names else _NO_HEADERS,
    )


def _whole(data: Any, name: str) -> Any:
    column = data.column(name)
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            return column.chunk(0)
        return column.combine_chunks()
    return column


def plain(array: Any) -> Any:
    """Return an array without dictionary or run-end encoding."""
    if pa.types.is_dictionary(array.type):
        return plain(array.cast(array.type.value_type))
    if pa.types.is_run_end_encoded(array.type):
        return plain(pc.run_end_decode(array))
    return array


def as_bytes(name: str, array: Any) -> Any:
    """Return an array of any text or binary type as `binary` or `string`.

    Raises:
        InvalidRecord: the array has another type, or more bytes than 32-bit offsets can address.
    """
    if array.type in (pa.binary(), pa.string()):
        return array
    array = plain(array)
    if not _is_text(array.type):
        raise InvalidRecord(
            f"column {name!r} has type {array.type}, but keys and values must be bytes or text."
            " Cast or serialise it first"
        )
    try:
        return _cast(array, pa.binary())
    except pa.ArrowInvalid as error:
        raise InvalidRecord(f"column {name!r}, {array.type}: {error}") from error


def _cast(array: Any, kind: Any) -> Any:
    """Cast an array; if a slice exceeds 32-bit offsets, copy it first."""
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        if not array.offset:
            raise
        return pa.concat_arrays([array, array.slice(0, 0)]).cast(kind)


def _binary(name: str, array: Any) -> Column:
    array = as_bytes(name, array)
    if array.null_count == len(array):
        return _NULLS
    valid, offsets, content = array.buffers()
    bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return Column(
        data=_NO_BYTES if content is None else np.frombuffer(content, np.uint8),
        starts=bounds[:-1],
        ends=bounds[1:],
        valid=np.frombuffer(valid, np.uint8) if array.null_count else _NO_BYTES,
        shift=array.offset,
    )


def _timestamps(data: Any, now_ms: int) -> Ints:
    if "timestamp" not in data.schema.names:
        return np.full(data.num_rows, now_ms, np.int64)
    array = as_milliseconds("timestamp", _whole(data, "timestamp"))
    if array.null_count:
        array = array.fill_null(now_ms)
    result: Ints = array.to_numpy()
    return result


def as_milliseconds(name: str, array: Any) -> Any:
    """Return timestamps as whole milliseconds, rounded down even before 1970.

    Raises:
        InvalidRecord: the array has another type, or a value does not fit into 64 bits.
    """
    array = plain(array)
    if pa.types.is_timestamp(array.type):
        array = _milliseconds(name, array)
    if not (pa.types.is_integer(array.type) or pa.types.is_null(array.type)):
        raise InvalidRecord(
            f"column {name!r} has type {array.type}, but must be whole milliseconds or a timestamp"
        )
    try:
        return array.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise InvalidRecord(
            f"column {name!r} has milliseconds that do not fit into 64 bits: {error}"
        ) from error


def _milliseconds(name: str, array: Any) -> Any:
    unit, numbers = array.type.unit, array.cast(pa.int64())
    if unit == "s":
        try:
            return pc.multiply_checked(numbers, 1000)
        except pa.ArrowInvalid as error:
            raise InvalidRecord(
                f"column {name!r} has seconds whose milliseconds do not fit into 64 bits: {error}"
            ) from error
    if unit == "ms":
        return numbers
    made = numbers.fill_null(0).to_numpy() // _PER_MILLISECOND[unit]
    return pa.array(made, mask=array.is_null().to_numpy(zero_copy_only=False))


def as_headers(name: str, array: Any) -> Any:
    """Return headers as an array of `HEADERS_TYPE`.

    Raises:
        InvalidRecord: the array has another type, or a key is not UTF-8.
    """
    if array.null_count == len(array):
        return pa.nulls(len(array), HEADERS_TYPE)
    if not _pairs_texts(array.type):
        raise InvalidRecord(
            f"column {name!r} has type {array.type}, but must be a list of structs with the fields"
            " key and value (text or bytes), or a map of text or bytes"
        )
    try:
        return _cast(array, HEADERS_TYPE)
    except pa.ArrowInvalid as error:
        raise InvalidRecord(f"column {name!r}, {array.type}: {error}") from error


def _headers(array: Any) -> Headers:
    array = as_headers("headers", array)
    if array.null_count == len(array):
        return _NO_HEADERS
    pairs = array.flatten()
    if len(pairs) == 0:
        return _NO_HEADERS
    if pairs.null_count:
        raise InvalidRecord("column 'headers' has a null header. Drop it from the list")
    keys, values = pairs.flatten()
    if keys.null_count:
        raise InvalidRecord("column 'headers' has a header with a null key. Set a key, or drop it")
    counts = pc.list_value_length(array)
    if array.null_count:
        counts = counts.fill_null(0)
    bounds = np.zeros(len(array) + 1, np.int32)
    np.cumsum(counts.to_numpy(), out=bounds[1:])
    return Headers(bounds, _binary("headers", keys), _binary("headers", values))


def _pairs_texts(kind: Any) -> bool:
    if pa.types.is_map(kind):
        parts = [kind.key_type, kind.item_type]
    elif any(listed(kind) for listed in _LISTS) and pa.types.is_struct(kind.value_type):
        if sorted(part.name for part in kind.value_type) != ["key", "value"]:
            return False
        parts = [part.type for part in kind.value_type]
    else:
        return False
    parts = [part.value_type if pa.types.is_dictionary(part) else part for part in parts]
    return all(_is_text(part) for part in parts)


def _is_text(kind: Any) -> bool:
    return any(test(kind) for test in _TEXTS)


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
_SEQUENCE_MODULUS: Final = 2**31


class EncodedBatch(Struct, frozen=True, kw_only=True):
    """Whole encoded batch: its bytes, and its header."""

    data: memoryview
    header: BatchHeader

    @property
    def record_count(self) -> int:
        return self.header.record_count

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
    rows = data if isinstance(data, Input) else read_input(data, now_ms)
    return list(_encode(rows, plan, records_per_batch)) if rows.size else []


def _encode(rows: Input, plan: _Plan, records_per_batch: int) -> Iterator[EncodedBatch]:
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
    low, size_bytes = 0, min(largest, HEADER_BYTES + rows.bytes_max())
    while low < rows.size:
        target: Any = np.empty(size_bytes, np.uint8)
        count = kernels.write_records(
            columns, low, room, records_per_batch, PASS_BYTES, target, table
        )
        cuts = table[: max(count, 1)].tolist()
        for first, after, size, *_ in cuts:
            if size > records_bytes_max:
                raise _too_large(size + HEADER_BYTES, first, after - first, plan)
        if count == 0:
            size_bytes = max(largest, HEADER_BYTES + cuts[0][kernels.RECORDS_BYTES])
            continue
        total = sum(cut[kernels.RECORDS_BYTES] for cut in cuts) + count * HEADER_BYTES
        if total < target.size // 2:
            target.resize(total, refcheck=False)
        view, at = memoryview(target), 0
        for first, after, size, base_timestamp, max_timestamp in cuts:
            end = at + HEADER_BYTES + size
            yield _seal(
                view[at:end],
                plan,
                first=first,
                count=after - first,
                base_timestamp=base_timestamp,
                max_timestamp=max_timestamp,
            )
            at = end
        low = cuts[-1][kernels.AFTER]


def _too_large(size_bytes: int, first: int, count: int, plan: _Plan) -> RecordTooLarge:
    return RecordTooLarge(
        f"the batch of {count} records from row {first} on has {size_bytes} bytes, but the limit "
        f"is {plan.max_batch_bytes} bytes"
    )


def _compressed(data: memoryview, codec: Codec, level: int | None) -> memoryview:
    records = compress(codec, data[HEADER_BYTES:], level)
    return memoryview(bytearray().join((bytes(HEADER_BYTES), records)))


def _seal(
    data: memoryview,
    plan: _Plan,
    *,
    first: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
) -> EncodedBatch:
    """Compress a batch's records as planned, and fill in its header."""
    codec, written = plan.codec, data
    if codec != Codec.NONE:
        written = _compressed(data, codec, plan.level)
    if len(written) > plan.max_batch_bytes and plan.compress_large:
        codec, written = Codec.ZSTD, _compressed(data, Codec.ZSTD, None)
    if len(written) > plan.max_batch_bytes:
        raise _too_large(len(written), first, count, plan)
    data = written
    sequence = plan.base_sequence
    header = BatchHeader(
        base_offset=plan.base_offset + first,
        batch_length=len(data) - LENGTH_OVERHEAD_BYTES,
        partition_leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=codec | (TRANSACTIONAL_FLAG if plan.transactional else 0),
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
    pack_into(">I", data, CRC_AT, header.crc)
    return EncodedBatch(data=data.toreadonly(), header=header)
