"""Validation of a batch's records against its header, before it is stored.

A batch with a right checksum and invalid records stops every consumer of its partition. Its records
are read by the kernels (`kernels.records`) without keeping them; the offset deltas must be 0, 1, 2,
… and the headers fill their records. A batch is valid for all readers, or rejected with the first
wrong record. This module is loaded into brokers without Arrow, the kernels at first use.

Source: Kafka's `LogValidator`, `DefaultRecordBatch.iterator` and `PartialDefaultRecord`.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.base.crc import Readable
from penstock.records.allowance import Allowance
from penstock.records.compression import decompress_portable
from penstock.records.errors import CorruptBatch, InvalidRecord
from penstock.records.framing import check_frame
from penstock.records.header import HEADER_BYTES, RECORD_BYTES_MIN, BatchHeader

VALIDATED_BATCH_BYTES_MAX: Final = 64 << 20
"""Most decompressed bytes of a batch that a broker validates."""
REFUSED_RECORDS_NAMED_MAX: Final = 100
"""Records of a rejected batch that its response names."""

CHAIN_RECORDS_MAX: Final = 4
"""Most records of an uncompressed batch that are walked without the kernel: a call of it costs some
5 µs, the first one half a second to load it."""
_LONG_BITS: Final = 63
_INT_BITS: Final = 28


def check_records(
    batch: Readable,
    header: BatchHeader,
    *,
    index: int | None = None,
    keyed: bool = False,
    allowance: Allowance | None = None,
) -> None:
    """Walk the records of the whole batch with this header; a compressed one is opened.

    `index` is the batch's index in its request, for the message. With `keyed` every record must
    have a key. A batch may be empty after compaction. `allowance` limits the request's decompressed
    bytes.

    Raises:
        InvalidRecord: the records do not match the header, or one has no key.
        RecordTooLarge: it unpacks to more than `VALIDATED_BATCH_BYTES_MAX`, or the allowance.
    """
    count = header.record_count
    where = "" if index is None else f"batch {index}, "
    section: Readable = memoryview(batch)[HEADER_BYTES:]
    try:
        if header.codec and count:
            section = (allowance or Allowance()).unpacked(
                decompress_portable, header.codec, section, max_bytes=VALIDATED_BATCH_BYTES_MAX
            )
        keyless = _walk(section, count, keyed=keyed)
    except CorruptBatch as error:
        if error.record is None:
            raise InvalidRecord(f"{where}{count} records: {error}") from None
        record = max(0, min(error.record, count - 1))
        reason = f"{where}record {record} of {count}: {error}"
        raise InvalidRecord(reason, records=[record]) from None
    if len(keyless):
        named = keyless[:REFUSED_RECORDS_NAMED_MAX].tolist()
        raise InvalidRecord(
            f"{where}record {named[0]} of {count}: a compacted topic rejects records without a key,"
            f" {len(keyless)} have none",
            records=named,
        )


def check_chain(batch: Readable, header: BatchHeader, *, index: int | None = None) -> None:
    """Check a batch without decompressing it: its records, or the frame of its codec.

    Raises:
        InvalidRecord: the records do not match the header, or a client cannot open the frame.
    """
    section = memoryview(batch)[HEADER_BYTES:]
    if header.codec == 0:
        count = header.record_count
        if count > CHAIN_RECORDS_MAX or not is_chain(section, count):
            check_records(batch, header, index=index)
        return
    try:
        check_frame(header.codec, section)
    except CorruptBatch as error:
        where = "" if index is None else f"batch {index}, "
        raise InvalidRecord(f"{where}{header.record_count} records: {error}") from None


def _walk(section: Readable, count: int, *, keyed: bool) -> Any:
    """Check all records of a batch; return the records without a key, if they must have one.

    Raises:
        CorruptBatch: with the record at fault.
    """
    if count * RECORD_BYTES_MIN > len(section):
        raise CorruptBatch(f"{count} records do not fit into {len(section)} bytes")
    from penstock.records.columnar.walk import walk

    return walk(section, count, keyed=keyed)


def is_chain(data: Readable, count: int) -> bool:
    """Return whether `data` is `count` records with the offset deltas 0, 1, 2, … and nothing else.

    It accepts no batch that the kernel rejects; the kernel decides about others.
    """
    at = 0
    try:
        for number in range(count):
            length, at = _varint(data, at, _INT_BITS)
            end = at + length
            _, at = _varint(data, at + 1, _LONG_BITS)
            delta, at = _varint(data, at, _INT_BITS)
            key, at = _varint(data, at, _INT_BITS)
            value, at = _varint(data, at + max(key, 0), _INT_BITS)
            headers, at = _varint(data, at + max(value, 0), _INT_BITS)
            if delta != number or min(key, value) < -1 or headers < 0:
                return False
            if headers:
                at = _headers_end(data, at, end, headers)
            if at != end:
                return False
    except (IndexError, ValueError):
        return False
    return at == len(data)


def _headers_end(data: Readable, at: int, end: int, count: int) -> int:
    """Return where the headers of a record end; ValueError if a header does not fit."""
    for _ in range(count):
        key, at = _varint(data, at, _INT_BITS)
        value, at = _varint(data, at + key, _INT_BITS)
        at += max(value, 0)
        if key < 0 or value < -1 or at > end:
            raise ValueError("a header that is none")
    return at


def _varint(data: Readable, at: int, bits: int) -> tuple[int, int]:
    """Return the zigzag varint at an offset, and the offset behind it.

    Raises:
        IndexError: it is cut.
        ValueError: its last byte would begin above `bits`, which the kernel checks more closely.
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
            raise ValueError("a varint that may be too long")
    if bits == _INT_BITS and raw >> 32:
        raise ValueError("a varint with too many bits")
    return raw >> 1 ^ -(raw & 1), at + 1
