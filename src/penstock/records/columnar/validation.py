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
from penstock.records.chain import CHAIN_RECORDS_MAX, is_chain
from penstock.records.compression import decompress_portable
from penstock.records.errors import CorruptBatch, InvalidRecord
from penstock.records.framing import check_frame
from penstock.records.header import HEADER_BYTES, RECORD_BYTES_MIN, BatchHeader

VALIDATED_BATCH_BYTES_MAX: Final = 64 << 20
"""Most decompressed bytes of a batch that a broker validates."""
REFUSED_RECORDS_NAMED_MAX: Final = 100
"""Records of a rejected batch that its response names."""


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
