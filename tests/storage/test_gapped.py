"""Logs whose leader was compacted: offsets without a batch, batches with fewer records, or none."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.base.crc import crc32c
from penstock.records import empty_batch, split_batches
from penstock.storage import LogConfig, ReplicaOverlap
from penstock.storage.files.index import SparseIndex
from penstock.storage.inspection.directories import BatchVerifier
from penstock.storage.inspection.stores import verify_store
from penstock.storage.log.tiering import SegmentCopy
from tests.records.reference import Batch, Record, encode
from tests.storage.batches import Harness, offsets, read_all, stamped

FAR = 5 * 2**31
ROLLING = LogConfig(segment_bytes=400, index_interval_bytes=60, retention_ms=-1)


def replicate(harness: Harness, *batches: memoryview | bytes) -> int:
    """Append as a replica and commit; returns the new end."""
    end = harness.log().replica.append(memoryview(b"".join(batches)), now_ms=harness.clock.ms)
    assert harness.commit() is None
    return end


def write(harness: Harness) -> None:
    harness.log().state.write_segments()


def stay(harness: Harness) -> None:
    return


WAYS: list[Callable[[Harness], None]] = [stay, write, Harness.crash, Harness.reopen]
HOLED: list[memoryview | bytes] = [
    stamped(2, 3, 1, fill=1),
    stamped(4, 5, 1, fill=2, kept=1),
    stamped(1, 20, 1, fill=3),
    empty_batch(21, 30, 1),
    stamped(3, 41, 4, fill=4),
    stamped(1, 44, 4, fill=5),
    stamped(2, 100, 4, fill=6, size=200),
    stamped(1, 300, 9, fill=7),
]
ENDS = [(3, 5), (5, 9), (20, 21), (21, 30), (41, 44), (44, 45), (100, 102), (300, 301)]


def verified(harness: Harness) -> BatchVerifier:
    harness.store.close()
    verifier = BatchVerifier(deep=False)
    verify_store(str(harness.directory), lambda where: True, verifier)
    return verifier


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("config", [LogConfig(retention_ms=-1), ROLLING])
def test_every_offset_leads_to_the_next_batch(
    tmp_path: Path, way: Callable[[Harness], None], at_once: bool, config: LogConfig
) -> None:
    harness = Harness(tmp_path, config=config)
    if at_once:
        assert replicate(harness, *HOLED) == 301
    else:
        assert [replicate(harness, batches) for batches in HOLED] == [end for _, end in ENDS]
    way(harness)
    log = harness.log()
    log.load()
    assert (log.log_start_offset, log.log_end_offset, log.durable_offset) == (0, 301, 301)
    for offset in range(301):
        following = next(place for place, (_, end) in enumerate(ENDS) if end > offset)
        for max_bytes in (1, 1 << 20):
            read = log.read(offset, max_bytes=max_bytes, end_offset=2**62)
            base, end = offsets(b"".join(read.buffers))[0]
            assert (base, end) == ENDS[following]
            assert read.next_offset >= end
        assert log.replica.boundary(offset) == min(offset, ENDS[following][0]) or offset in range(
            21, 30
        )
    assert read_all(log, max_bytes=300) == b"".join(HOLED)
    for start, end in ((0, 301), (10, 20), (9, 41), (50, 250)):
        found = log.extents(start, end)
        held = [span for span in ENDS if span[1] > start and span[0] < end]
        data = b"".join(
            Path(extent.key).read_bytes()[
                extent.byte_offset : extent.byte_offset + extent.size_bytes
            ]
            for extent in found
        )
        assert offsets(data) == held, (start, end)
    assert log.state.has_holes
    verifier = verified(harness)
    assert (verifier.findings, verifier.batches) == ([], len(HOLED))
    assert {note.kind for note in verifier.notes} == {"offsets"}


@pytest.mark.parametrize("way", WAYS)
def test_no_segment_spans_more_offsets_than_its_index_can_hold(
    tmp_path: Path, way: Callable[[Harness], None]
) -> None:
    harness = Harness(tmp_path, config=LogConfig(index_interval_bytes=1, retention_ms=-1))
    batches = [stamped(1, FAR * n + low, 1) for n in range(1, 4) for low in (0, 7, 2**31)]
    assert replicate(harness, *batches) == 3 * FAR + 2**31 + 1
    way(harness)
    log = harness.log()
    assert read_all(log) == b"".join([empty_batch(0, 1, 1), *batches])
    assert offsets(b"".join(log.read(2 * FAR - 1, max_bytes=1, end_offset=2**62).buffers)) == [
        (2 * FAR, 2 * FAR + 1)
    ]
    begun = [
        segment.base_offset
        for segment in log.state.segments
        if segment.written_bytes or segment.end_position
    ]
    assert begun == [0, *[FAR * n + low for n in range(1, 4) for low in (0, 2**31)]]
    assert len(log.extents(0, 2**62)) == 7
    assert log.replica.truncate(2 * FAR - 5, floor=0) == 2 * FAR - 5
    assert harness.commit() is None
    assert replicate(harness, stamped(1, 2 * FAR - 5, 2)) == 2 * FAR - 4
    way(harness)
    left = [batch for batch in split_batches(read_all(harness.log())) if not batch.is_filler]
    assert [segment.base_offset for segment in left[-2:]] == [FAR + 2**31, 2 * FAR - 5]
    assert verified(harness).findings == []


@pytest.mark.parametrize("way", WAYS)
def test_epochs_begin_at_the_offsets_of_the_leaders_chain(
    tmp_path: Path, way: Callable[[Harness], None]
) -> None:
    harness = Harness(tmp_path)
    log = harness.log()
    chain = ((1, 0), (2, 10), (4, 40), (6, 200), (9, 200))
    log.replica.append(memoryview(b"".join(HOLED)), now_ms=1, epochs=chain)
    assert harness.commit() is None
    way(harness)
    if way is Harness.crash:  # what is left of them says it
        assert harness.log().end_offset_for_epoch(1) == (1, 41)
        return
    log = harness.log()
    log.load()
    assert log.state.epochs.entries == [(1, 0), (2, 30), (4, 40), (9, 200)]
    assert log.end_offset_for_epoch(4) == (4, 200)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cut", [3, 4, 5, 7, 9, 15, 20, 21, 25, 30, 35, 42, 45, 60, 101, 102, 250])
def test_a_log_cut_within_a_gap_is_readable_to_its_end(
    tmp_path: Path, way: Callable[[Harness], None], cut: int
) -> None:
    harness = Harness(tmp_path, config=ROLLING)
    replicate(harness, *HOLED)
    way(harness)
    within = next((base for base, end in ENDS if base < cut < end and base != 21), cut)
    assert harness.log().replica.truncate(cut, floor=0) == within
    assert harness.commit() is None
    left = [span for span in ENDS if span[1] <= within]
    for _ in range(2):
        log = harness.log()
        log.load()
        assert log.log_end_offset == log.durable_offset == within
        read = offsets(read_all(log))
        end = max([end for _, end in left], default=0)
        assert read == left + ([(end, within)] if end < within else [])
        way(harness)
    harness.log().load()
    epoch = harness.log().state.epochs.latest
    assert replicate(harness, stamped(2, within + 4, epoch + 1)) == within + 6
    way(harness)
    there = [
        batch for batch in split_batches(read_all(harness.log())) if not batch.is_filler or left
    ]
    assert there[-1].base_offset == within + 4
    ends = [(segment.base_offset, segment.next_offset) for segment in there[:-1]]
    assert [span for span in ends if span in ENDS] == left
    assert verified(harness).findings == []


def test_a_cut_takes_back_queued_appends(tmp_path: Path) -> None:
    for cut, end in ((301, 301), (150, 102), (102, 102), (60, 45), (44, 44), (0, 0)):
        harness = Harness(tmp_path / str(cut))
        harness.log().replica.append(memoryview(b"".join(HOLED)), now_ms=1)
        assert harness.log().replica.truncate(cut, floor=0) == end
        assert harness.commit() is None
        assert offsets(read_all(harness.log())) == [span for span in ENDS if span[1] <= end]
        assert replicate(harness, stamped(1, 400, 9)) == 401
        harness.crash()
        assert harness.log().log_end_offset == 401
        harness.store.close()


def test_an_empty_batch_below_the_end_is_shortened(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    replicate(harness, stamped(5, 0, 1))
    assert replicate(harness, empty_batch(3, 9, 1), stamped(1, 12, 1)) == 13
    assert offsets(read_all(harness.log())) == [(0, 5), (5, 9), (12, 13)]
    for data in (
        empty_batch(9, 13, 1),
        stamped(5, 10, 1),
        stamped(5, 10, 1, kept=0, producer_id=3),
    ):
        with pytest.raises(ReplicaOverlap):
            harness.log().replica.append(memoryview(data), now_ms=1)
    harness.store.close()


@pytest.mark.parametrize("way", WAYS)
def test_sequences_continue_after_a_compaction(
    tmp_path: Path, way: Callable[[Harness], None]
) -> None:
    harness = Harness(tmp_path)
    replicate(
        harness,
        stamped(5, 10, 1, producer_id=7, epoch=0, sequence=0, kept=2),
        stamped(5, 40, 1, producer_id=7, epoch=0, sequence=30, kept=0),
    )
    way(harness)
    [producer] = harness.log().producers()
    assert (producer.last_sequence, harness.log().log_end_offset) == (34, 45)
    following = stamped(1, 0, -1, producer_id=7, epoch=0, sequence=35)
    assert harness.put(following) == 45
    harness.store.close()


def test_times_lead_to_records_that_are_left(tmp_path: Path) -> None:
    harness = Harness(tmp_path, config=ROLLING)
    sent = [
        encode(Batch(base_offset=5, records=(Record(6, 100, b"a", b"b"),), leader_epoch=1)),
        encode(
            Batch(
                base_offset=20,
                records=(Record(22, 300, b"b", b"b"), Record(29, 200, b"c", b"c" * 200)),
                last_offset_delta=12,
                leader_epoch=1,
            )
        ),
        encode(Batch(base_offset=50, records=(), append_time=900, leader_epoch=1)),
        encode(Batch(base_offset=51, records=(Record(51, 250, b"e", b"f"),), leader_epoch=1)),
    ]
    replicate(harness, *sent)
    for _ in range(2):
        log = harness.log()
        for time, offset in ((0, 6), (100, 6), (101, 22), (300, 22), (301, None)):
            found = log.offset_for_timestamp(time)
            assert (None if found is None else found.offset) == offset, time
        newest = log.offset_of_max_timestamp()
        assert newest is not None
        assert (newest.offset, newest.timestamp) == (22, 300)
        harness.reopen()
    harness.store.close()


def test_offsets_of_a_log_that_was_never_compacted_are_lost(tmp_path: Path) -> None:
    harness = Harness(tmp_path, config=ROLLING)
    for number in range(12):
        harness.put(stamped(1, 0, 0, size=120, fill=number))
    bases = [segment.base_offset for segment in harness.log().state.segments]
    assert not harness.log().state.has_holes
    harness.store.close()
    for file in tmp_path.rglob(f"{bases[1]:020}.*"):
        file.unlink()
    verifier = BatchVerifier(deep=False)
    verify_store(str(tmp_path), lambda where: True, verifier)
    assert [(finding.base_offset, finding.last_offset) for finding in verifier.findings] == [
        (bases[1], bases[2] - 1)
    ]
    assert "never compacted" in verifier.findings[0].reason


def test_an_append_behind_a_gap_keeps_its_offsets(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    replicate(harness, *HOLED)
    assert harness.log().replica.truncate(250, floor=0) == 250
    assert harness.commit() is None
    harness.log().set_leader_epoch(12)
    assert [harness.put(stamped(3, 0, 0, fill=n)) for n in range(2)] == [250, 253]
    harness.crash()
    data = read_all(harness.log(), start=60)
    assert offsets(data) == [(100, 102), (250, 253), (253, 256)]
    assert [batch.partition_leader_epoch for batch in split_batches(data)] == [4, 12, 12]
    harness.store.close()


def test_archived_segments_have_every_offset(tmp_path: Path) -> None:
    harness = Harness(tmp_path, config=ROLLING)
    replicate(harness, *HOLED)
    log = harness.log()
    log.state.write_segments()
    closed = log.tiering.closed_segments(0)
    assert [(segment.base_offset, segment.next_offset) for segment in closed] == [
        (0, 41),
        (41, 300),
    ]
    for segment in closed:
        copy = SegmentCopy(
            log.tiering.files,
            segment.path,
            position=0,
            end=segment.size_bytes,
            base_offset=segment.base_offset,
            next_offset=segment.next_offset,
            interval_bytes=60,
        )
        data = b"".join(iter(copy.piece, None))
        copy.close()
        there = offsets(data)
        assert (there[0][0], there[-1][1], copy.next_offset) == (
            segment.base_offset, segment.next_offset, segment.next_offset
        )  # fmt: skip
        assert all(left[1] == right[0] for left, right in pairwise(there))
        assert (len(data), crc32c(data)) == (copy.size_bytes, copy.checksum)
        (index, _) = copy.indexes()
        assert SparseIndex(segment.base_offset, index).doubt(len(data)) is None
    harness.store.close()
