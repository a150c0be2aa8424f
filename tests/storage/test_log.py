"""Append, read, roll, look up, retain: one log at a time."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import cast
from uuid import UUID

import pyarrow as pa
import pytest

from penstock.base.ids import TopicPartition
from penstock.base.settings import load
from penstock.records import (
    CorruptBatch,
    InvalidRecord,
    OffsetOutOfRange,
    RecordTooLarge,
    decode_header,
    verify_crc,
)
from penstock.records.columnar import encode_batches
from penstock.storage import (
    BatchesTooLarge,
    InvalidTimestamp,
    LogConfig,
    LogDeleted,
    OutOfOrderSequence,
    StorageError,
    StoreLocked,
    TopicIdMismatch,
)
from penstock.storage.log.state import jitter_ms
from tests.storage.batches import (
    TOPIC_ID,
    WHERE,
    FakeClock,
    Harness,
    Owner,
    batch,
    offsets,
    read_all,
)


def test_append_and_read(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    log = harness.log()
    data = batch(3, fill=1)
    result = log.append(data, now_ms=5)
    assert (result.base_offset, log.log_end_offset) == (0, 3)
    assert decode_header(data).partition_leader_epoch == 0
    assert (log.log_end_offset, log.durable_offset) == (3, 0)
    assert log.read(0, max_bytes=100, end_offset=9).buffers == []
    assert harness.commit() is None
    assert log.durable_offset == 3
    assert harness.put(batch(2, fill=2)) == 3
    everything = read_all(log)
    assert offsets(everything) == [(0, 3), (3, 5)]
    verify_crc(everything, decode_header(everything), 0)
    harness.reopen()
    log = harness.log()
    assert (log.log_end_offset, log.durable_offset, log.state.loaded) == (5, 5, False)
    assert read_all(log) == everything
    assert harness.put(batch()) == 5
    harness.store.close()


@pytest.mark.parametrize("written", [False, True])
def test_reads_return_whole_batches_within_their_bounds(tmp_path: Path, written: bool) -> None:
    harness = Harness(tmp_path, config=LogConfig(index_interval_bytes=300))
    log = harness.log()
    for number in range(40):
        harness.put(batch(2, fill=number))
    if written:
        harness.reopen()
        log = harness.log()
    size = len(batch(2))
    for offset in range(80):
        for max_bytes in (0, size - 1, size, 5 * size, 5 * size + 3, 1000 * size):
            for end in (80, 41, 40, offset + 1):
                read = log.read(offset, max_bytes=max_bytes, end_offset=end)
                got = offsets(b"".join(bytes(buffer) for buffer in read.buffers))
                first = offset // 2
                count = max(1, max_bytes // size)
                wanted = [(2 * n, 2 * n + 2) for n in range(first, first + count)]
                wanted = [row for row in wanted if row[1] <= min(end, 80)]
                assert got == wanted, (offset, max_bytes, end)
                assert read.next_offset == (got[-1][1] if got else offset)
    none = log.read(3, max_bytes=size - 1, end_offset=80, at_least_one=False)
    assert (none.buffers, none.size_bytes) == ([], 0)
    harness.store.close()


def test_reads_outside_of_the_log_report_its_range(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    log = harness.log()
    harness.put(batch(5))
    assert log.read(5, max_bytes=1, end_offset=99).buffers == []
    for offset in (-1, 6):
        with pytest.raises(OffsetOutOfRange) as caught:
            log.read(offset, max_bytes=1, end_offset=99)
        assert (caught.value.log_start_offset, caught.value.log_end_offset) == (0, 5)
    harness.store.close()


def test_refused_appends_leave_no_trace(tmp_path: Path) -> None:
    config = LogConfig(
        max_message_bytes=200, segment_bytes=400, message_timestamp_before_max_ms=1000
    )
    harness = Harness(tmp_path, config=config)
    log = harness.log()
    damaged = batch()
    damaged[70] ^= 1
    now = harness.clock.ms
    good = batch(timestamp=now)
    cases: list[tuple[memoryview, type[Exception]]] = [
        (memoryview(bytearray()), InvalidRecord),
        (damaged, CorruptBatch),
        (good[:-1], CorruptBatch),
        (batch(size=150, timestamp=now), RecordTooLarge),
        (memoryview(bytearray(b"".join([good] * 4))), BatchesTooLarge),
        (batch(timestamp=now + 3_600_001), InvalidTimestamp),
        (batch(timestamp=now - 1001), InvalidTimestamp),
        (memoryview(bytearray(bytes(good) + bytes(damaged))), CorruptBatch),
    ]
    for data, error in cases:
        with pytest.raises(error):
            log.append(data, now_ms=now)
    assert log.log_end_offset == 0
    assert harness.put(good) == 0
    assert read_all(log)[17:] == bytes(good)[17:]
    harness.store.close()


def test_idempotent_producers(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    log = harness.log()

    def send(sequence: int, count: int = 1) -> tuple[int, bool]:
        data = batch(count, producer_id=9, epoch=0, sequence=sequence)
        result = log.append(data, now_ms=harness.clock.ms)
        return result.base_offset, result.duplicate

    assert send(0, 2) == (0, False)
    assert send(0, 2) == (0, True)
    assert send(2) == (2, False)
    with pytest.raises(OutOfOrderSequence):
        send(4)
    assert harness.commit() is None
    harness.put(batch())
    for way in (harness.crash, harness.reopen, harness.crash):
        way()
        log = harness.log()
        assert send(0, 2) == (0, True)
        assert send(2) == (2, True)
        with pytest.raises(OutOfOrderSequence):
            send(4)
        (entry,) = log.producers()
        assert (entry.producer_id, entry.last_sequence) == (9, 2)
    assert send(3) == (4, False)
    harness.store.close()


def test_log_append_time(tmp_path: Path) -> None:
    harness = Harness(tmp_path, config=LogConfig(message_timestamp_type="LogAppendTime"))
    data = batch(2, timestamp=5)
    result = harness.log().append(data, now_ms=777)
    assert result.log_append_time_ms == 777
    header = decode_header(data)
    assert (header.max_timestamp, header.timestamp_type) == (777, 1)
    verify_crc(data, header)
    harness.store.close()


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_a_topics_codec_replaces_the_producers(tmp_path: Path, codec: str) -> None:
    from penstock.records import Codec, decompress

    harness = Harness(tmp_path, config=LogConfig(compression_type=codec))
    harness.put(batch(2, size=400, fill=3))
    stored = read_all(harness.log())
    header = decode_header(stored)
    verify_crc(stored, header)
    assert header.codec == (0 if codec == "uncompressed" else Codec.parse(codec))
    if header.codec:
        body = decompress(Codec(header.codec), stored[61:], max_bytes=1000)
        assert bytes(body) == bytes(batch(2, size=400, fill=3))[61:]
    harness.store.close()


@pytest.mark.parametrize(
    ("codec", "low", "high"), [("gzip", 1, 9), ("lz4", 1, 17), ("zstd", -50, 19)]
)
def test_a_topics_level_is_that_of_the_brokers_compression(
    tmp_path: Path, codec: str, low: int, high: int
) -> None:
    from penstock.records import Codec, compress, decompress

    plain = encode_batches(
        pa.table({"value": [f"reading {n * n % 977} of sensor {n % 13}" for n in range(2000)]}),
        now_ms=1000,
    )[0].data
    sizes = []
    for level in (low, high):
        config = load(LogConfig, {"compression.type": codec, f"compression.{codec}.level": level})
        harness = Harness(tmp_path / str(level), config=config)
        harness.put(memoryview(bytearray(plain)))
        stored = read_all(harness.log())
        assert bytes(stored[61:]) == compress(Codec.parse(codec), plain[61:], level)
        assert bytes(decompress(Codec.parse(codec), stored[61:], max_bytes=1 << 20)) == plain[61:]
        sizes.append(len(stored))
        harness.store.close()
    assert sizes[1] < sizes[0]


def test_segments_roll_by_size_time_index_and_epoch(tmp_path: Path) -> None:
    size = len(batch())
    by_size = Harness(tmp_path / "size", config=LogConfig(segment_bytes=3 * size))
    for _ in range(7):
        by_size.put(batch())
    log = by_size.log()
    assert [segment.base_offset for segment in log.state.segments] == [0, 3, 6]
    assert offsets(read_all(log)) == [(n, n + 1) for n in range(7)]
    by_size.store.close()

    by_time = Harness(tmp_path / "time", config=LogConfig(segment_ms=100))
    for timestamp in (1000, 1100, 1101, 1150, 1202):
        by_time.put(batch(timestamp=timestamp))
    assert [segment.base_offset for segment in by_time.log().state.segments] == [0, 2, 4]
    by_time.store.close()

    config = LogConfig(segment_index_bytes=16, index_interval_bytes=1)
    by_index = Harness(tmp_path / "index", config=config)
    for _ in range(7):
        by_index.put(batch())
        by_index.log().state.write_segments()
    assert [segment.base_offset for segment in by_index.log().state.segments] == [0, 3, 6]
    by_index.store.close()

    by_epoch = Harness(tmp_path / "epoch")
    log = by_epoch.log()
    log.set_leader_epoch(1)
    by_epoch.put(batch())
    log.set_leader_epoch(4)
    log.set_leader_epoch(4)
    by_epoch.put(batch())
    by_epoch.put(batch())
    assert [segment.base_offset for segment in log.state.segments] == [0, 1]
    for way in (by_epoch.crash, by_epoch.reopen):
        assert log.end_offset_for_epoch(1) == (1, 1)
        assert log.end_offset_for_epoch(4) == (4, 3)
        assert [log.latest_epoch_at(offset) for offset in (0, 1, 2)] == [1, 4, 4]
        assert log.leader_epoch == 4
        way()
        log = by_epoch.log()
    by_epoch.store.close()


def test_delete_records(tmp_path: Path) -> None:
    harness = Harness(tmp_path, config=LogConfig(segment_bytes=300, retention_ms=-1))
    for _ in range(10):
        harness.put(batch(2))
    log = harness.log()
    assert log.delete_records(5) == 5
    with pytest.raises(OffsetOutOfRange):
        log.read(4, max_bytes=1, end_offset=99)
    assert offsets(read_all(log))[0] == (4, 6)
    assert log.delete_records(3) == 5
    with pytest.raises(OffsetOutOfRange):
        log.delete_records(21)
    harness.crash()
    log = harness.log()
    assert log.log_start_offset == 5
    assert log.delete_records(-1) == 20
    harness.reopen()
    log = harness.log()
    assert (log.log_start_offset, log.durable_offset) == (20, 20)
    assert harness.put(batch()) == 20
    harness.store.close()


def test_retention_removes_whole_segments(tmp_path: Path) -> None:
    clock = FakeClock()
    config = LogConfig(segment_bytes=300, retention_ms=1000, file_delete_delay_ms=50)
    harness = Harness(tmp_path, config=config, clock=clock, log_retention_check_interval_ms=10)
    for number in range(9):
        harness.put(batch(timestamp=clock.ms + number * 100))
    log = harness.log()
    assert log.segment_count == 5
    harness.store.checkpoint()
    clock.ms += 1350
    harness.store.housekeeping(clock.ms)
    assert (log.log_start_offset, log.segment_count) == (4, 3)
    directory = tmp_path / "orders-0"
    assert sorted(path.name for path in directory.glob("*.log.deleted")) == [
        "00000000000000000000.log.deleted",
        "00000000000000000002.log.deleted",
    ]
    clock.ms += 51
    harness.store.housekeeping(clock.ms)
    assert not list(directory.glob("*.deleted"))
    clock.ms += 10_000
    for _ in range(3):
        harness.store.housekeeping(clock.ms)
        clock.ms += 11
    assert (log.log_start_offset, log.log_end_offset, log.segment_count) == (9, 9, 1)
    harness.crash()
    log = harness.log()
    assert (log.log_start_offset, log.log_end_offset) == (9, 9)
    assert harness.put(batch(timestamp=clock.ms)) == 9
    harness.store.close()


def test_retention_by_size(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=300, retention_ms=-1, retention_bytes=450)
    harness = Harness(tmp_path, config=config, log_retention_check_interval_ms=10)
    for _ in range(9):
        harness.put(batch())
    harness.store.checkpoint()
    harness.clock.ms += 20
    harness.store.housekeeping(harness.clock.ms)
    log = harness.log()
    assert log.size_bytes >= 450
    assert log.size_bytes - 202 < 450
    assert log.log_start_offset == 4
    harness.store.close()


def test_extents_hold_what_reads_return(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=1000, index_interval_bytes=200)
    harness = Harness(tmp_path, config=config)
    for number in range(30):
        harness.put(batch(2, fill=number))
    log = harness.log()
    for start in (0, 1, 17, 30, 59):
        for end in (start + 1, start + 2, 31, 60, 99):
            if end <= start:
                continue
            found = log.extents(start, end)
            data = b""
            for extent in found:
                with Path(extent.key).open("rb") as file:
                    file.seek(extent.byte_offset)
                    part = file.read(extent.size_bytes)
                bounds = offsets(part)
                assert (extent.base_offset, extent.next_offset) == (bounds[0][0], bounds[-1][1])
                data += part
            end = min(end, 60)
            wanted = [(n, n + 2) for n in range(start - start % 2, end, 2)]
            assert offsets(data) == wanted
    assert log.extents(60, 60) == []
    harness.store.close()


def test_create_and_delete(tmp_path: Path) -> None:
    harness = Harness(tmp_path, config=LogConfig(file_delete_delay_ms=100))
    store = harness.store
    log = harness.log()
    assert store.create(WHERE, topic_id=TOPIC_ID, leader_epoch=0) is log
    with pytest.raises(TopicIdMismatch):
        store.create(WHERE, topic_id=UUID(int=8), leader_epoch=0)
    harness.put(batch())
    harness.append(batch())
    store.delete(WHERE)
    assert WHERE not in store.partitions
    with pytest.raises(LogDeleted):
        log.append(batch(), now_ms=1)
    with pytest.raises(LogDeleted):
        log.read(0, max_bytes=1, end_offset=1)
    assert harness.commit() is None
    again = store.create(WHERE, topic_id=UUID(int=8), leader_epoch=0)
    assert again.log_end_offset == 0
    assert harness.put(batch(2)) == 0
    (gone,) = tmp_path.glob("*-delete")
    store.housekeeping(harness.clock.ms + 99)
    assert gone.exists()
    store.housekeeping(harness.clock.ms + 100)
    assert not gone.exists()
    harness.crash()
    assert harness.store.partitions[WHERE].topic_id == UUID(int=8)
    assert harness.log().durable_offset == 2
    harness.store.close()


def test_a_topics_older_life_is_not_replayed_into_the_new_one(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.put(batch(5))
    harness.store.delete(WHERE)
    harness.store.create(WHERE, topic_id=UUID(int=8), leader_epoch=0)
    harness.crash()
    log = harness.store.partitions[WHERE]
    assert (log.topic_id, log.log_end_offset) == (UUID(int=8), 0)
    harness.store.close()


def test_a_second_process_is_locked_out(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    with pytest.raises(StoreLocked):
        Harness(tmp_path)
    harness.store.close()
    Harness(tmp_path).store.close()


def test_an_owner_is_notified_of_a_new_start_and_epoch(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.put(batch(4))
    seen: list[object] = []
    log = harness.log()
    log.state.owner = Owner(seen)
    log.delete_records(2)
    log.set_leader_epoch(log.leader_epoch)
    log.set_leader_epoch(log.leader_epoch + 1)
    assert seen == ["moved", "moved"]
    harness.store.close()


def test_commits_call_back_in_order_and_report_advanced_owners(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    seen: list[object] = []
    harness.append(batch(), 0)
    harness.append(batch(), 1)
    harness.append(batch(), 0)
    owners = [Owner(seen), Owner(seen)]
    for partition, owner in enumerate(owners):
        harness.log(partition).state.owner = owner
    harness.store.on_advance = lambda risen: seen.append(
        [owners.index(cast("Owner", owner)) for owner in risen]
    )
    for name in "ab":

        def answer(error: StorageError | None, name: str = name) -> None:
            seen.append((name, error, harness.log(0).durable_offset))

        harness.store.flush(answer)
    harness.store.commit_pending()
    assert seen == [1, 1, 2, ("a", None, 2), ("b", None, 2), [0, 1]]
    harness.store.close()


def test_the_tail_is_bounded(tmp_path: Path) -> None:
    harness = Harness(tmp_path, tail_cache_bytes=1 << 16)
    for number in range(400):
        harness.put(batch(size=300, fill=number), number % 3)
    assert harness.store._parts.tails.size_bytes <= 1 << 16
    for partition in range(3):
        data = read_all(harness.log(partition))
        assert len(offsets(data)) == harness.log(partition).durable_offset
    harness.store.close()


def test_open_files_are_bounded(tmp_path: Path) -> None:
    harness = Harness(tmp_path, open_files_max=16)
    for partition in range(60):
        harness.put(batch(), partition)
    harness.store.checkpoint()
    for partition in range(60):
        assert len(offsets(read_all(harness.log(partition)))) == 1
    assert len(harness.store._parts.segment_files.descriptors) <= 16
    harness.reopen()
    for partition in range(60):
        assert len(offsets(read_all(harness.log(partition)))) == 1
    assert len(harness.store._parts.segment_files.descriptors) <= 16
    harness.store.close()


class CountingLease:
    """A lease that counts, and spoils the memory when it is given back."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.count = 1

    def retain(self) -> None:
        self.count += 1

    def release(self) -> None:
        self.count -= 1
        if self.count == 0:
            self.view[:] = bytes(len(self.view))


def test_leased_memory_comes_back_and_never_leaks_into_reads(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    log = harness.log()
    harness.put(batch())
    data = batch(size=50_000, fill=9)
    expected = bytes(data)[17:]
    lease = CountingLease(data)
    log.append(data, now_ms=1, lease=lease)
    assert lease.count == 2
    lease.release()
    assert harness.commit() is None
    assert lease.count == 0
    assert harness.put(batch()) == 2
    got = log.read(1, max_bytes=60_000, end_offset=9)
    assert bytes(got.buffers[0])[17 : len(expected) + 17] == expected
    assert offsets(read_all(log)) == [(0, 1), (1, 2), (2, 3)]
    harness.store.close()


def test_metrics_are_numbers(tmp_path: Path) -> None:
    from penstock.base.metrics import render

    harness = Harness(tmp_path)
    harness.put(batch())
    text = render(harness.store.samples()).decode()
    assert "penstock_storage_partitions 1.0" in text
    assert "penstock_storage_groups_total 1.0" in text
    harness.store.close()


def test_partitions_of_many_topics(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    one = harness.store.create(TopicPartition("a", 1), topic_id=UUID(int=1), leader_epoch=3)
    harness.reopen()
    again = harness.store.partitions[TopicPartition("a", 1)]
    assert (again.topic_id, again.leader_epoch) == (one.topic_id, 3)
    assert again.append(batch(), now_ms=1).base_offset == 0
    harness.store.close()


@pytest.mark.parametrize("index_bytes", [10 << 20, 24])
def test_appends_written_alone_are_indexed_like_groups(tmp_path: Path, index_bytes: int) -> None:
    config = LogConfig(
        index_interval_bytes=250, segment_index_bytes=index_bytes, segment_bytes=2_000
    )
    found = []
    for policy in ("group", "os"):
        harness = Harness(tmp_path / policy, config=config, log_flush_policy=policy)
        state = harness.log().state
        for number in range(60):
            harness.put(batch(1 + number % 3, fill=number, timestamp=1000 + number * 7 % 40))
            state.write_segments()
        segments = [
            (
                segment.base_offset, segment.written_bytes, segment.max_timestamp,
                segment.max_timestamp_offset, segment.bytes_since_entry,
                segment.index and (bytes(segment.index.offsets), bytes(segment.index.times)),
            )
            for segment in state.segments
        ]  # fmt: skip
        assert len(segments) > 2
        assert (state.unwritten_bytes, state.queue.unwritten_bytes) == (0, 0)
        assert state.tail.written == len(state.tail)
        assert state.parts.changes.of(state) >= {state.segments[-1]}
        found.append((segments, state.parts.counters.written_bytes))
        harness.store.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("jitter", [0, 300, 5_000])
def test_jitter_lowers_the_age_at_which_a_segment_closes(tmp_path: Path, jitter: int) -> None:
    config = LogConfig(segment_ms=1_000, segment_jitter_ms=jitter)
    harness = Harness(tmp_path, config=config)
    log = harness.log()
    harness.put(batch(timestamp=10))
    limit = 1_000 - jitter_ms(log.state.segments[0], config)
    assert jitter == 0 or 0 <= limit < 1_000
    harness.put(batch(timestamp=10 + limit))
    assert log.segment_count == 1
    harness.put(batch(timestamp=10 + limit + 1))
    assert log.segment_count == 2
    harness.store.close()


def test_an_append_and_its_commit_take_few_calls(tmp_path: Path) -> None:
    """Count the calls of Python functions, because they take most of the time."""
    harness = Harness(tmp_path, config=LogConfig(retention_ms=-1, record_validation="headers"))
    for _ in range(10):
        harness.put(batch())
    log, data, answers = harness.log(), memoryview(bytearray(batch())), list[object]()
    calls = 0

    def trace(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(trace)
    try:
        log.append(data, now_ms=harness.clock.ms, config=harness.config)
        harness.store.flush(answers.append)
        harness.store.commit_pending()
    finally:
        sys.setprofile(None)
    assert answers == [None]
    assert calls <= 41
    harness.store.close()
