"""Whether the records of a batch are what its header says, before it is stored.

A batch with a right checksum and nonsense inside stops every consumer of its partition, so a log
may look inside before it takes one. `scan` finds the records or refuses, `fields` reads them by
column; here it is checked besides that the offset deltas are 0, 1, 2, … and that the headers fill
their records. A batch is right for all readers, or it is refused with the record where
that shows, which is found by halving: only refused batches cost more.

Columns have a fixed cost; the few plain records of a small batch are stepped through instead.
No Arrow: this is loaded into brokers.

Source: Kafka's `LogValidator`, `DefaultRecordBatch.iterator` and `PartialDefaultRecord`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.base.crc import Readable
from penstock.records.columnar.arrays import Bytes, Ints
from penstock.records.columnar.fields import read_fields
from penstock.records.columnar.header_scan import scan_headers
from penstock.records.columnar.scan import RECORD_BYTES_MIN, record_bodies
from penstock.records.columnar.single import Unusual, read_record
from penstock.records.compression import decompress
from penstock.records.errors import CorruptBatch, InvalidRecord
from penstock.records.header import HEADER_BYTES, BatchHeader
from penstock.records.limits import (
    REFUSED_RECORDS_NAMED_MAX,
    STEPPED_BYTES_MAX,
    STEPPED_RECORDS_MAX,
    VALIDATED_BATCH_BYTES_MAX,
    VALIDATED_HEADERS_MAX,
)

GROUP_RECORDS: Final = 16_384
"""Records whose fields are read at a time: their temporary arrays stay in the cache."""


def check_records(
    batch: Readable, header: BatchHeader, *, index: int | None = None, keyed: bool = False
) -> None:
    """Walk the records of the whole batch with this header; a compressed one is opened.

    `index` is the batch's place in its request, for the message. With `keyed` every record must
    have a key. A batch may have no record, as one whose records are all compacted away.

    Raises:
        InvalidRecord: the records are not what the header says, or one has no key.
        RecordTooLarge: it unpacks to more than `VALIDATED_BATCH_BYTES_MAX`.
    """
    count = header.record_count
    where = "" if index is None else f"batch {index}, "
    section: Readable = memoryview(batch)[HEADER_BYTES:]
    try:
        if header.codec and count:
            section = decompress(header.codec, section, max_bytes=VALIDATED_BATCH_BYTES_MAX)
        if not keyed and _is_plain(section, count):
            return
        keyless = _walk(np.frombuffer(section, np.uint8), count, keyed=keyed)
    except CorruptBatch as error:
        if error.record is None:
            raise InvalidRecord(f"{where}{count} records: {error}") from None
        record = max(0, min(error.record, count - 1))
        reason = f"{where}record {record} of {count}: {error}"
        raise InvalidRecord(reason, records=[record]) from None
    if keyless.size:
        named = keyless[:REFUSED_RECORDS_NAMED_MAX].tolist()
        raise InvalidRecord(
            f"{where}record {named[0]} of {count}: a compacted topic takes no record without a key,"
            f" {keyless.size} have none",
            records=named,
        )


def _is_plain(section: Readable, count: int) -> bool:
    """Whether these are a few records without headers and with nothing wrong."""
    if count > STEPPED_RECORDS_MAX or len(section) > STEPPED_BYTES_MAX:
        return False
    data, at = bytes(section), 0
    try:
        for expected in range(count):
            at, offset_delta, *_ = read_record(data, at)
            if offset_delta != expected:
                return False
    except (Unusual, IndexError):
        return False
    return at == len(data)


def _walk(data: Bytes, count: int, *, keyed: bool) -> Ints:
    """Check all records of a batch; the records without a key, if they must have one.

    Raises:
        CorruptBatch: with the record at fault.
    """
    if count * RECORD_BYTES_MIN > data.size:
        raise CorruptBatch(f"{count} records do not fit into {data.size} bytes")
    whole = np.array([0]), np.array([data.size]), np.array([count])
    bodies, ends = record_bodies(data, *whole)
    keyless: list[Ints] = []
    for low in range(0, count, GROUP_RECORDS):
        high = min(low + GROUP_RECORDS, count)
        try:
            missing = _check(data, bodies, ends, low, high)
        except CorruptBatch as error:
            if error.record is not None:
                raise
            raise _first_wrong(data, bodies, ends, low, high) from None
        if keyed:
            keyless.append(missing)
    return np.concatenate(keyless) if keyed else np.empty(0, np.int64)


def _check(data: Bytes, bodies: Ints, ends: Ints, low: int, high: int) -> Ints:
    """Check the records from `low` to `high`; returns which of them have no key."""
    record_ends = ends[low:high]
    fields = read_fields(data, bodies[low:high], record_ends)
    counts = fields.header_count
    if counts.any():
        if counts.sum() > VALIDATED_HEADERS_MAX:
            raise CorruptBatch(f"more than {VALIDATED_HEADERS_MAX} headers", record=high - 1)
        scan_headers(data, fields.headers_at, counts, record_ends)
    expected = np.arange(low, high)
    if not np.array_equal(fields.offset_delta, expected):
        first = int((fields.offset_delta != expected).argmax())
        raise CorruptBatch(
            f"its offset delta is {fields.offset_delta[first]}, {low + first} was expected"
        )
    return np.flatnonzero(fields.key_length < 0) + low


def _first_wrong(data: Bytes, bodies: Ints, ends: Ints, low: int, high: int) -> CorruptBatch:
    """What is wrong with the first record at fault of some among which there is one."""
    while True:
        middle = (low + high + 1) // 2
        try:
            _check(data, bodies, ends, low, middle)
        except CorruptBatch as error:
            if middle == high:
                return CorruptBatch(str(error), record=low)
            high = middle
        else:
            low = middle
