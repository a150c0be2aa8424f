"""Validation of a batch's records against its header, before the batch is stored.

A batch with a correct checksum but invalid records would stop every consumer of its partition. The
kernels (`kernels.records`) read its records without keeping them. The offset deltas must be 0, 1,
2, …, and headers must fill their records exactly. The batch is then valid for all readers;
otherwise it is rejected, and the error names the first invalid record. Brokers load this module
without Arrow, and the kernels when they are first used.

Source: Kafka's `LogValidator`, `DefaultRecordBatch.iterator` and `PartialDefaultRecord`.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from penstock.base.crc import Readable
from penstock.records.compression import Allowance, check_frame, decompress_portable
from penstock.records.errors import CorruptBatch, InvalidRecord
from penstock.records.header import HEADER_BYTES, RECORD_BYTES_MIN, BatchHeader

if TYPE_CHECKING:
    from penstock.records.appends import IdReader

VALIDATED_BATCH_BYTES_MAX: Final = 64 << 20
"""Most decompressed bytes of a batch; a broker rejects a larger batch."""
REFUSED_RECORDS_NAMED_MAX: Final = 100
"""Most invalid records of a batch that its error names."""

CHAIN_RECORDS_MAX: Final = 4
"""Most records of an uncompressed batch that Python checks if the kernel needs Numba.

A call of `walk` costs about 5 µs, and loading it half a second.
"""
_LONG_BITS: Final = 63
_INT_BITS: Final = 28


def check_records(
    batch: Readable,
    header: BatchHeader,
    *,
    index: int | None = None,
    keyed: bool = False,
    allowance: Allowance | None = None,
    ids: IdReader | None = None,
) -> None:
    """Check the records of a whole batch against its header; a compressed batch is decompressed.

    A batch may have no records, as after compaction.

    Args:
        batch: the batch with its header.
        header: the decoded header.
        index: the batch's index in its request, for messages.
        keyed: whether every record must have a key.
        allowance: budget of decompressed bytes for the whole request.
        ids: reader of the records' schema ids.

    Raises:
        InvalidRecord: the records do not match the header, or a record lacks its key.
        RecordTooLarge: the decompressed records exceed `VALIDATED_BATCH_BYTES_MAX` or the budget.
    """
    count = header.record_count
    where = "" if index is None else f"batch {index}, "
    section: Readable = memoryview(batch)[HEADER_BYTES:]
    try:
        if header.codec and count:
            section = (allowance or Allowance()).unpacked(
                decompress_portable, header.codec, section, max_bytes=VALIDATED_BATCH_BYTES_MAX
            )
        keyless = _walk(section, count, keyed=keyed, ids=ids)
    except CorruptBatch as error:
        if error.record is None:
            raise InvalidRecord(f"{where}{count} records: {error}") from None
        record = max(0, min(error.record, count - 1))
        reason = f"{where}record {record} of {count}: {error}"
        raise InvalidRecord(reason, records=[record]) from None
    if len(keyless):
        named = keyless[:REFUSED_RECORDS_NAMED_MAX].tolist()
        raise InvalidRecord(
            f"{where}record {named[0]} of {count}: a compacted topic rejects records without a key;"
            f" {len(keyless)} of the batch's records have none",
            records=named,
        )


def check_chain(batch: Readable, header: BatchHeader, *, index: int | None = None) -> None:
    """Check a batch as far as possible without decompressing it.

    Check the records of an uncompressed batch; of a compressed one, only the codec's frame.

    Raises:
        InvalidRecord: the records do not match the header, or some client cannot read the frame.
    """
    if header.codec == 0:
        if not _are_consecutive(batch, header.record_count):
            check_records(batch, header, index=index)
        return
    try:
        check_frame(header.codec, memoryview(batch)[HEADER_BYTES:])
    except CorruptBatch as error:
        where = "" if index is None else f"batch {index}, "
        raise InvalidRecord(f"{where}{header.record_count} records: {error}") from None


def _are_consecutive(batch: Readable, count: int) -> bool:
    """Return whether the records of a batch are certainly valid; if not, `check_records` decides.

    Machine code needs no NumPy here, which would add its memory to a broker.
    """
    native = _native()
    if native is not None:
        return bool(native.records_is_chain(batch, HEADER_BYTES, len(batch), count))
    return count <= CHAIN_RECORDS_MAX and is_chain(memoryview(batch)[HEADER_BYTES:], count)


@lru_cache(maxsize=1)
def _native() -> ModuleType | None:
    from penstock.kernels.sources import NATIVE

    return NATIVE


def _walk(section: Readable, count: int, *, keyed: bool, ids: IdReader | None) -> Any:
    """Check all records of a batch; with `keyed`, return the indexes of records without a key.

    `ids` reads the schema ids, and checks the records by itself.

    Raises:
        CorruptBatch: a record is invalid; the error has its index.
    """
    if count * RECORD_BYTES_MIN > len(section):
        raise CorruptBatch(f"{count} records do not fit into {len(section)} bytes")
    if ids is not None:
        ids.read(section, count)
        if not keyed:
            return ()
    from penstock.records.columnar.walk import walk

    return walk(section, count, keyed=keyed)


def is_chain(data: Readable, count: int) -> bool:
    """Return whether `data` is exactly `count` records with the offset deltas 0, 1, 2, ….

    This is a fast check of at most `CHAIN_RECORDS_MAX` records without loading the kernel. It never
    accepts records that the kernel rejects. If it returns False, the kernel must decide.
    """
    at = 0
    try:
        for number in range(count):
            length, at = _varint(data, at, _INT_BITS)
            end = at + length
            at += 1
            if data[at] < 0x80 and data[at + 1] == number << 1 and data[at + 2] == 1:
                key, at = -1, at + 3  # the usual case: small deltas and no key
            else:
                _, at = _varint(data, at, _LONG_BITS)
                delta, at = _varint(data, at, _INT_BITS)
                key, at = _varint(data, at, _INT_BITS)
                if delta != number or key < -1:
                    return False
                at += max(key, 0)
            value, at = _varint(data, at, _INT_BITS)
            if value < -1:
                return False
            at += max(value, 0)
            if at + 1 != end or data[at]:
                headers, at = _varint(data, at, _INT_BITS)
                if headers < 0 or _headers_end(data, at, end, headers) != end:
                    return False
            at = end
    except (IndexError, ValueError):
        return False
    return at == len(data)


def _headers_end(data: Readable, at: int, end: int, count: int) -> int:
    """Return the offset at which a record's headers end.

    Raises:
        ValueError: a header does not fit into the record.
    """
    for _ in range(count):
        key, at = _varint(data, at, _INT_BITS)
        value, at = _varint(data, at + key, _INT_BITS)
        at += max(value, 0)
        if key < 0 or value < -1 or at > end:
            raise ValueError("a header does not fit into its record")
    return at


def _varint(data: Readable, at: int, bits: int) -> tuple[int, int]:
    """Return the zigzag varint at an offset, and the offset after it.

    Raises:
        IndexError: the varint is cut.
        ValueError: the varint may have too many bits; the kernel then checks it exactly.
    """
    byte = data[at]
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), at + 1
    raw, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > bits:
            raise ValueError("a varint may have too many bytes")
    if bits == _INT_BITS and raw >> 32:
        raise ValueError("a varint has too many bits")
    return raw >> 1 ^ -(raw & 1), at + 1
