"""Decoder of batch bytes to Arrow columns, any number of batches at once.

1. Find the batches with requested records, and check their checksums; those of aborted
   transactions are masked out.
2. Decompress batches; uncompressed ones are read in place.
3. Read all records in one pass (`kernels.records`). Values are copied into a buffer as large as
   all batches.
4. Copy keys and headers, whose sizes are known now; or return keys and values as views, whose array
   keeps the given buffer.

Source: Kafka's `DefaultRecord`; KIP-82 (headers).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from penstock.base.crc import Readable
from penstock.records.aborted import AbortedRange
from penstock.records.columnar.schema import EXTRA_FIELDS, RECORD_SCHEMA
from penstock.records.errors import InvalidRecord
from penstock.records.limits import DECOMPRESSED_BYTES_MAX

DEFAULT_COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers")
_OFFSET_MAX: Final = 2**63 - 1


def decode_batches(
    buffer: Readable,
    *,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    start_offset: int | None = None,
    end_offset: int | None = None,
    aborted: Sequence[AbortedRange] = (),
    include_control: bool = False,
    check_crc: bool = True,
    max_decompressed_bytes: int = DECOMPRESSED_BYTES_MAX,
    views: bool = False,
) -> pa.RecordBatch:
    """Decode contiguous batches; a batch cut at the end of `buffer` is ignored.

    Args:
        columns: of `offset`, `timestamp`, `key`, `value`, `headers` and `timestamp_type`; the
            result has these, in this order.
        start_offset: the first offset to return; None for all.
        end_offset: the offset after the last to return; None for all.
        aborted: ranges of aborted transactions; their batches are not opened.
        include_control: decode control batches (transaction markers) as records too.
        check_crc: verify the checksum of every batch that is opened.
        max_decompressed_bytes: limit for all compressed batches together.
        views: return keys and values as `binary_view` elements of `buffer`, which they keep and
            which must not change any more.

    Raises:
        CorruptBatch: invalid or contradictory batches.
        RecordTooLarge: compressed batches unpack to more than the limit, or the buffer has
            more than 2 GiB.
        UnsupportedCodec: a codec that Kafka does not define.
        InvalidRecord: an unknown column.
    """
    # Imported here because kernels take 0.3 s to load, which not every client needs.
    from penstock.records.columnar.batches import (
        aborted_batches,
        check_crcs,
        find_batches,
        open_batches,
    )
    from penstock.records.columnar.rows import Rows

    schema = _schema(tuple(columns), views)
    view = memoryview(buffer).cast("B")
    start = max(0, 0 if start_offset is None else start_offset)
    end = _OFFSET_MAX if end_offset is None else end_offset
    table = find_batches(view, start, end, include_control)
    if aborted:
        table = table[~aborted_batches(view, table, aborted)]
    if check_crc:
        check_crcs(view, table)
    rows = Rows(open_batches(view, table, max_decompressed_bytes), table)
    rows.read(columns, start, end, views=views)
    return pa.RecordBatch.from_arrays([rows.array(name) for name in columns], schema=schema)


@lru_cache(maxsize=64)
def _schema(columns: tuple[str, ...], views: bool) -> Any:
    fields = []
    for name in columns:
        if name in EXTRA_FIELDS:
            fields.append(EXTRA_FIELDS[name])
        elif name not in RECORD_SCHEMA.names:
            known = ", ".join((*RECORD_SCHEMA.names, *EXTRA_FIELDS))
            raise InvalidRecord(f"records have no column {name!r}; they have {known}")
        elif views and name in ("key", "value"):
            fields.append(pa.field(name, pa.binary_view()))
        else:
            fields.append(RECORD_SCHEMA.field(name))
    return pa.schema(fields)
