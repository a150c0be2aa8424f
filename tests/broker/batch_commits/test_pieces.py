"""Sections read in pieces of whole batches, from any batch on, under any limit."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.batch_commits.commit import Run
from penstock.broker.batch_commits.manifest import CorruptBlob, TopicIdPartition
from penstock.broker.batch_commits.pieces import PIECES_PER_TURN_MAX, PieceReader
from penstock.control.values.topics import SEQUENCES
from penstock.records import InvalidRecord, split_batches, verify_crc
from penstock.storage import LogConfig
from tests.broker.batch_commits.sink_client import Part, encode_blob
from tests.records.nonsense import SPOILED, TIME_MS, sealed

LANE = TopicIdPartition(UUID(int=1), 0)
IDS = {"t": str(UUID(int=1))}


def run_of(entry: dict[str, Any], section: int, skip: int, base_sequence: int) -> Run:
    one = entry["sections"][section]
    return Run(
        blob=str(entry["name"]),
        target=LANE,
        position=one["position"],
        end=one["position"] + one["size_bytes"],
        records=one["records"],
        skip=skip,
        producer_id=77,
        base_sequence=base_sequence,
    )


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    per_batch=st.integers(1, 20),
    skipped=st.integers(0, 3),
    limit=st.integers(100, 5000),
    base=st.sampled_from([0, 5, SEQUENCES - 7]),
    codec=st.sampled_from([0, 3, 4]),
)
def test_pieces_join_to_the_section(
    counts: list[int], per_batch: int, skipped: int, limit: int, base: int, codec: int
) -> None:
    parts = [Part("t", 0, [f"{n}/{i}" for i in range(count)]) for n, count in enumerate(counts)]
    blob, entry = encode_blob("b", parts, IDS, records_per_batch=per_batch, codec=codec)
    skips = [min(skipped * per_batch, count) for count in counts]
    skips = [skip if skip < count else 0 for skip, count in zip(skips, counts, strict=True)]
    runs = [run_of(entry, n, skip, base) for n, skip in enumerate(skips)]
    config = LogConfig(segment_bytes=limit)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "b").write_bytes(blob)
        reader = PieceReader(Path(directory), runs, {LANE: config})
        pieces = []
        while group := reader.read():
            pieces += group
    for run, skip in zip(runs, skips, strict=True):
        own = [piece for piece in pieces if piece.run is run]
        sequence = (base + skip) % SEQUENCES
        records = b""
        for piece in own:
            headers = split_batches(piece.data)
            assert len(piece.data) <= limit or len(headers) == 1
            assert piece.first_sequence == headers[0].base_sequence
            assert piece.records == sum(header.record_count for header in headers)
            at = 0
            for header in headers:
                verify_crc(piece.data, header, at)
                assert (header.producer_id, header.producer_epoch) == (77, 0)
                assert header.base_sequence == sequence
                sequence = (sequence + header.record_count) % SEQUENCES
                records += piece.data[at + 61 : at + header.size_bytes]
                at += header.size_bytes
        assert sequence == (base + run.records) % SEQUENCES
        section = blob[run.position : run.end]
        expected, at, seen = b"", 0, 0
        for header in split_batches(section):
            if seen >= skip:
                expected += section[at + 61 : at + header.size_bytes]
            seen += header.record_count
            at += header.size_bytes
        assert records == expected


def test_skipping_into_a_batch_is_a_fault(tmp_path: Path) -> None:
    blob, entry = encode_blob("b", [Part("t", 0, ["x"] * 30)], IDS, records_per_batch=10)
    (tmp_path / "b").write_bytes(blob)
    reader = PieceReader(tmp_path, [run_of(entry, 0, 15, 0)], {LANE: LogConfig()})
    with pytest.raises(CorruptBlob, match="no batch ends there"):
        reader.read()


@pytest.mark.parametrize("producer", [0, 5])
def test_a_batch_with_a_producer_of_its_own_is_refused(tmp_path: Path, producer: int) -> None:
    import pyarrow as pa

    from penstock.records.columnar import encode_batches

    table = pa.table({"value": pa.array([b"x"], pa.binary())})
    (batch,) = encode_batches(
        table, now_ms=1, producer_id=producer, producer_epoch=0, base_sequence=0
    )
    data = bytes(batch.data)
    (tmp_path / "b").write_bytes(data)
    entry: dict[str, Any] = {
        "name": "b",
        "sections": [{"position": 0, "size_bytes": len(data), "records": 1}],
    }
    reader = PieceReader(tmp_path, [run_of(entry, 0, 0, 0)], {LANE: LogConfig()})
    with pytest.raises(CorruptBlob, match=f"has producer {producer}"):
        reader.verify(1)


@pytest.mark.parametrize(
    "setting", [{"record_validation": "chain"}, {"cleanup_policy": ("compact",)}]
)
def test_staged_records_are_looked_at_as_those_of_producers(
    tmp_path: Path, setting: dict[str, Any]
) -> None:
    section, count, _, reason = SPOILED["trailing bytes"]
    data = sealed(section, count)
    (tmp_path / "b").write_bytes(data)
    entry: dict[str, Any] = {
        "name": "b",
        "sections": [{"position": 0, "size_bytes": len(data), "records": count}],
    }
    runs = [run_of(entry, 0, 0, 0)]
    trusting = LogConfig(record_validation="headers")
    assert PieceReader(tmp_path, runs, {LANE: trusting}).verify(TIME_MS) == []
    with pytest.raises(InvalidRecord, match=reason):
        PieceReader(tmp_path, runs, {LANE: LogConfig(**setting)}).verify(TIME_MS)


def test_every_truncation_is_found(tmp_path: Path) -> None:
    blob, entry = encode_blob("b", [Part("t", 0, ["x"] * 4)], IDS, records_per_batch=2)
    for size in range(len(blob)):
        (tmp_path / "b").write_bytes(blob[:size])
        reader = PieceReader(tmp_path, [run_of(entry, 0, 0, 0)], {LANE: LogConfig()})
        with pytest.raises(CorruptBlob):
            reader.verify(1_700_000_000_000)


def test_a_turn_has_a_bound(tmp_path: Path) -> None:
    parts = [Part("t", 0, ["x"])] * 200
    blob, entry = encode_blob("b", parts, IDS, records_per_batch=1)
    (tmp_path / "b").write_bytes(blob)
    runs = [run_of(entry, n, 0, n) for n in range(200)]
    reader = PieceReader(tmp_path, runs, {LANE: LogConfig()})
    sizes = []
    while group := reader.read():
        sizes.append(len(group))
    most = PIECES_PER_TURN_MAX
    assert sizes == [most, most, most, 200 - 3 * most]
