"""Data of loads: incompressible bytes, tables of values, one record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS

if TYPE_CHECKING:
    from penstock.client.producer_partitions import Pieces

CHUNK_RECORDS: Final = 1_000


def noise(size_bytes: int) -> bytes:
    """Return incompressible bytes."""
    return SYSTEM_RANDOMNESS.bits(8 * size_bytes).to_bytes(size_bytes, "big")


def values(value_bytes: int, size_bytes: int) -> Any:
    """Return a table of about so many bytes; its chunks share memory."""
    import pyarrow as pa

    content = noise(CHUNK_RECORDS * value_bytes)
    ends = range(value_bytes, len(content) + 1, value_bytes)
    chunk = pa.array([content[end - value_bytes : end] for end in ends], pa.binary())
    count = max(1, size_bytes // len(content))
    return pa.table({"value": pa.chunked_array([chunk] * count)})


def one_record(value_bytes: int) -> Pieces:
    """Return a batch of one record whose value has so many bytes."""
    import pyarrow as pa

    from penstock.client.producer_partitions import Pieces
    from penstock.records.columnar import encode_batches

    table = pa.table({"value": pa.array([noise(value_bytes)], pa.binary())})
    (batch,) = encode_batches(table, now_ms=SYSTEM_CLOCK.now_ms())
    return Pieces(batch.data, batch.record_count)
