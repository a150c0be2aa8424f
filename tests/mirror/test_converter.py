"""Conversion of stored batches: gaps, origins that pass through, and damaged batches."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from penstock.client.fetch import ReadPosition, Run
from penstock.client.producers import ProducerIdentity
from penstock.mirror.batches import ORIGIN, Converter, Origin
from penstock.records import columnar
from penstock.records.columnar.schema import HEADERS_TYPE
from penstock.records.errors import CorruptBatch
from penstock.records.header import decode_header, seal, stamp_append_time, verify_crc

HOME, SOURCE = "cluster-b", "cluster-a"


def stored(values: Sequence[str], base_offset: int, **options: Any) -> bytearray:
    """Return a batch whose records have the origin that their value names, if any."""
    headers = [
        [{"key": ORIGIN, "value": value.encode()}] if "cluster" in value else [] for value in values
    ]
    table = pa.table({
        "value": [value.encode() for value in values],
        "headers": pa.array(headers, HEADERS_TYPE),
        "timestamp": pa.array(range(1_000, 1_000 + len(values)), pa.timestamp("ms", "UTC")),
    })  # fmt: skip
    (batch,) = columnar.encode_batches(table, now_ms=0, base_offset=base_offset, **options)
    return bytearray(batch.data)


def converted(data: bytes | bytearray, start: int = 0) -> list[dict[str, Any]]:
    identity = ProducerIdentity(7, 3, "mirror")
    run = Run(
        partition=2, data=memoryview(data), start_offset=start, end_offset=None,
        behind=ReadPosition(0, 1_000),
    )  # fmt: skip
    found: list[dict[str, Any]] = []
    sequence = 0
    for batch in Converter(Origin(SOURCE, HOME)).batches("orders", run, identity, "orders", {}):
        header = decode_header(batch.data)
        verify_crc(batch.data, header)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, sequence)
        assert header.is_transactional
        assert header.last_offset_delta == header.record_count - 1 == batch.record_count - 1
        sequence += header.record_count
        found += columnar.decode_batches(batch.data).to_pylist()
    return found


def test_records_that_come_from_the_target_are_skipped() -> None:
    data = stored(["mine", HOME, "cluster-c", "mine too"], 0)
    found = converted(data)
    assert [row["value"] for row in found] == [b"mine", b"cluster-c", b"mine too"]
    assert [row["headers"] for row in found] == [
        [{"key": ORIGIN, "value": name}] for name in (b"cluster-a", b"cluster-c", b"cluster-a")
    ]


@pytest.mark.parametrize("codec", range(5))
def test_gaps_disappear_and_codecs_stay(codec: int) -> None:
    first, second = stored(["a", "b"], 0, codec=codec), stored(["c"], 90, codec=codec)
    struct.pack_into(">i", first, 23, 40)  # compaction removed the last records of the batch
    seal(first)
    identity = ProducerIdentity(7, 3, "mirror")
    run = Run(
        partition=0, data=memoryview(first + second), start_offset=0, end_offset=None,
        behind=ReadPosition(0, 91),
    )  # fmt: skip
    (batch,) = Converter(None).batches("orders", run, identity, "orders", {})
    assert decode_header(batch.data).codec == codec
    found = columnar.decode_batches(batch.data).to_pylist()
    assert [(row["offset"], row["value"]) for row in found] == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_append_time_is_kept_and_earlier_records_are_skipped() -> None:
    data = stored(["a", "b", "c"], 10)
    stamp_append_time(memoryview(data), 0, 5_000)
    found = converted(data, start=11)
    assert [row["value"] for row in found] == [b"b", b"c"]
    assert {row["timestamp"] for row in found} == {5_000}


def test_large_records_have_their_own_batches() -> None:
    values = ["x" * 600_000, "y" * 1_500_000, "z" * 600_000]
    assert [row["value"].decode() for row in converted(stored(values, 0, max_batch_bytes=1 << 23))
            ] == values  # fmt: skip


def test_a_damaged_batch_is_named() -> None:
    data = stored(["a", "b"], 0)
    data[-1] ^= 1
    with pytest.raises(CorruptBatch, match="orders-2: offsets from 0 to 1000"):
        converted(data)
    struct.pack_into(">B", data, 61, 0x7E)  # the first record's length
    seal(data)
    with pytest.raises(CorruptBatch, match="orders-2"):
        converted(data)
