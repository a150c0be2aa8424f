"""Extents and objects for the tests of reading."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack
from uuid import UUID

from penstock.records.extents import Extent
from tests.broker.wire_client import batch

TOPIC = UUID(int=7)
KEY = (TOPIC, 0)


def extent(
    base_offset: int,
    batches: Sequence[tuple[int, int]],
    *,
    key: str = "o1",
    byte_offset: int = 32,
    max_timestamp: int = 1000,
    append_time_ms: int = -1,
) -> Extent:
    """An extent of batches as (bytes, offsets)."""
    return Extent(
        object_id=1,
        key=key,
        kind="wal",
        byte_offset=byte_offset,
        size_bytes=sum(size for size, _ in batches),
        base_offset=base_offset,
        next_offset=base_offset + sum(count for _, count in batches),
        max_timestamp=max_timestamp,
        append_time_ms=append_time_ms,
        layout=b"".join(pack("<ii", *item) for item in batches),
    )


def stored(
    base_offset: int,
    values: Sequence[Sequence[bytes]],
    *,
    key: str = "o1",
    byte_offset: int = 32,
    append_time_ms: int = -1,
    timestamp_ms: int = 1_700_000_000_000,
) -> tuple[Extent, bytes]:
    """An extent and its bytes: one batch per list of values."""
    batches = [batch(*items, timestamp_ms=timestamp_ms) for items in values]
    shape = [(len(data), len(items)) for data, items in zip(batches, values, strict=True)]
    return (
        extent(
            base_offset,
            shape,
            key=key,
            byte_offset=byte_offset,
            append_time_ms=append_time_ms,
            max_timestamp=timestamp_ms,
        ),
        b"".join(batches),
    )
