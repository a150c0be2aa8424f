"""Decoder of batch bytes to Arrow columns, for any number of batches at once.

1. Find the batches with requested records, drop those of aborted transactions, and verify
   checksums.
2. Decompress batches; uncompressed batches are read in place.
3. Read all records in one pass (`kernels.records`). Values are copied into one buffer, which is as
   large as all batches.
4. Copy keys and headers, whose sizes are now known. If views are requested, keys and values are
   returned as views of the given buffer instead.

Source: Kafka's `DefaultRecord`; KIP-82 (headers).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from penstock.base.crc import Readable
from penstock.records.columnar.schema import EXTRA_FIELDS, RECORD_SCHEMA
from penstock.records.errors import InvalidRecord
from penstock.records.header import DECOMPRESSED_BYTES_MAX
from penstock.records.transactions import AbortedRange

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
    """Decode adjacent batches; a batch that is cut at the end of `buffer` is ignored.

    Args:
        buffer: bytes of the batches.
        columns: columns of the result, in its order: `offset`, `timestamp`, `key`, `value`,
            `headers`, `timestamp_type`.
        start_offset: first offset to return; None for all.
        end_offset: offset after the last one to return; None for all.
        aborted: ranges of aborted transactions, whose batches are skipped.
        include_control: whether control batches (transaction markers) are decoded like records.
        check_crc: whether the checksums of the decoded batches are verified.
        max_decompressed_bytes: limit for all compressed batches together.
        views: whether keys and values are `binary_view` elements of `buffer`. The result then keeps
            `buffer` in memory, and the buffer must not change.

    Raises:
        CorruptBatch: a batch is invalid.
        RecordTooLarge: the decompressed records exceed the limit, or 2 GiB.
        UnsupportedCodec: Kafka does not define the codec of a batch.
        InvalidRecord: a column does not exist.
    """
    # Imported here because the kernels take 0.3 s to load, and not every client needs them.
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
            raise InvalidRecord(f"records have no column {name!r}. Their columns are {known}")
        elif views and name in ("key", "value"):
            fields.append(pa.field(name, pa.binary_view()))
        else:
            fields.append(RECORD_SCHEMA.field(name))
    return pa.schema(fields)
