"""Compaction passes over one log: the batches and records that stay."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest

from penstock.records import split_batches
from penstock.records.errors import InvalidRecord
from penstock.records.header import DELETE_HORIZON_FLAG
from penstock.storage import LogConfig
from penstock.storage.compaction import keys
from tests.storage.compaction.keyed import COMPACTED, Keyed, Pair, batches_of

CODECS = range(5)


def pairs(start: int, count: int, keys: int = 5) -> list[Pair]:
    return [(b"key%d" % (n % keys), b"value%d" % n) for n in range(start, start + count)]


@pytest.mark.parametrize("codec", CODECS)
def test_of_each_key_the_newest_record_stays(tmp_path: Path, codec: int) -> None:
    place = Keyed(tmp_path)
    for number in range(40):
        place.send(pairs(3 * number, 3), codec=codec)
    before, segments = place.log.size_bytes, place.log.segment_count
    place.compact()
    records = place.check()
    assert place.log.size_bytes < before / 3
    assert len(records) == 5
    assert [record.offset for record in records] == list(range(115, 120))
    place.send(pairs(0, 2), codec=codec)
    for again in (place.harness.crash, place.harness.reopen):
        again()
        assert len(place.check()) == 7
    place.compact()
    assert len(place.check()) == 5
    assert place.log.segment_count < segments  # as small ones become one
    place.harness.store.close()


def test_a_batch_keeps_its_offsets_its_producer_and_its_sequence(tmp_path: Path) -> None:
    place = Keyed(tmp_path)
    for number in range(30):
        place.send([*pairs(number, 4), (b"once%d" % number, b"")], producer_id=3)
    whole = {batch.base_offset: batch for batch in batches_of(place.log)}
    place.compact()
    place.check()
    found = batches_of(place.log)
    assert any(0 < header.record_count < 5 for header in found)
    for header in found:
        was = whole[header.base_offset]
        kept = attrgetter("last_offset", "producer_id", "producer_epoch", "base_sequence")
        assert kept(header) == kept(was)
        assert header.partition_leader_epoch == was.partition_leader_epoch


def test_a_tombstone_stays_until_its_horizon(tmp_path: Path) -> None:
    place = Keyed(tmp_path)
    place.send(pairs(0, 5))
    place.send([(b"key1", None), (b"key2", b"new")])
    place.compact()
    assert [record.offset for record in place.check()] == [0, 3, 4, 5, 6]
    (dated,) = [batch for batch in batches_of(place.log) if batch.attributes & DELETE_HORIZON_FLAG]
    assert dated.delete_horizon_ms == place.now_ms + 1000
    place.harness.clock.ms += 999
    place.send(pairs(0, 1))
    place.compact()
    assert [record.offset for record in place.check()] == [3, 4, 5, 6, 7]
    place.harness.clock.ms += 1
    place.send(pairs(3, 1))
    place.compact()
    assert [record.offset for record in place.check()] == [4, 6, 7, 8]


def test_records_below_a_start_within_a_batch_stay_deleted(tmp_path: Path) -> None:
    place = Keyed(tmp_path)
    place.send([(b"first", b""), (b"gone", b"value"), (b"gone", None), (b"key", b"value")])
    place.log.delete_records(1)
    place.compact()
    assert [record.offset for record in place.read()] == [2, 3]
    place.harness.clock.ms += 1000
    place.send(pairs(0, 1))
    place.compact()
    assert [record.offset for record in place.read()] == [3, 4]


def test_records_without_a_key_are_refused_and_dropped(tmp_path: Path) -> None:
    place = Keyed(tmp_path, config=LogConfig(retention_ms=-1))
    place.send([(None, b"no key"), (b"key", b"value")])
    place.configure(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0)
    with pytest.raises(InvalidRecord, match="without a key"):
        place.harness.log().append(
            memoryview(bytearray(encoded_without_key())), now_ms=place.now_ms
        )
    place.compact()
    assert [record.key for record in place.read()] == [b"key"]


def encoded_without_key() -> bytes:
    import pyarrow as pa

    from penstock.records.columnar import encode_batches

    table = pa.table({"value": pa.array([b"value"], pa.binary())})
    return bytes(encode_batches(table, now_ms=1_700_000_000_000)[0].data)


def test_transactions_go_in_their_order(tmp_path: Path) -> None:
    place = Keyed(tmp_path)
    place.send(pairs(0, 2))
    place.send([(b"key0", b"aborted")], producer_id=1, transactional=True)
    place.send([(b"key1", b"committed")], producer_id=2, transactional=True)
    place.end(1, commits=False)
    place.end(2, commits=True)
    place.send([(b"key1", b"later")])
    place.compact()
    assert [record.offset for record in place.check()] == [0, 6]
    # Batches of live producers stay without records, and with them their markers.
    assert [batch.base_offset for batch in batches_of(place.log)] == [0, 2, 3, 4, 5, 6]
    place.harness.crash()
    place.check()
    place.harness.store._maintenance.kept_producers = set()
    place.harness.clock.ms += place.harness.settings.producer_id_expiration_ms + 1
    place.harness.store.housekeeping(place.now_ms)
    for _ in range(4):
        place.harness.clock.ms += 2000
        place.send([(b"key1", b"later")])
        place.compact()
        place.check()
    assert all(not batch.is_control for batch in batches_of(place.log)[:-1])
    place.harness.crash()
    assert place.log.producers() == []
    place.check()


def test_an_open_transaction_bounds_a_pass(tmp_path: Path) -> None:
    place = Keyed(tmp_path)
    for number in range(10):
        place.send(pairs(number, 5))
    place.send([(b"key0", b"open")], producer_id=1, transactional=True)
    for number in range(10):
        place.send(pairs(number, 5))
    place.compact()
    offsets = [batch.base_offset for batch in batches_of(place.log)]
    assert offsets[-10:] == list(range(51, 101, 5))
    place.end(1, commits=False)
    place.compact()
    assert len(place.check()) == 5


def test_times_stay_as_they_were(tmp_path: Path) -> None:
    place = Keyed(tmp_path)
    base = place.now_ms
    for number in range(12):
        times = [base + 100 * number + 7 * n - 300 * (n == 2) for n in range(3)]
        records: list[Pair] = [
            (b"k%d" % (number % 4), b"x"), (b"k%d" % number, None), (b"kk%d" % number, b"y" * 90),
        ]  # fmt: skip
        place.send(records, timestamps=times, codec=number % 5)
    for _ in range(3):
        place.compact()
        records_now = place.check()
        for record in records_now:
            found = place.log.offset_for_timestamp(record.timestamp)
            assert found is not None
            first = next(later for later in records_now if later.timestamp >= record.timestamp)
            assert (found.offset, found.timestamp) == (first.offset, first.timestamp)
        newest = max(item.timestamp for item in records_now)
        latest = place.log.offset_of_max_timestamp()
        assert latest is not None
        assert latest.timestamp == newest
        place.harness.clock.ms += 600
        place.send([(b"k1", b"again")])


def test_a_small_map_takes_several_passes(tmp_path: Path) -> None:
    place = Keyed(tmp_path, config=COMPACTED, log_cleaner_dedupe_buffer_size=1 << 20)
    place.configure(segment_bytes=1 << 20)
    count = 90_000
    for start in range(0, count, 1500):
        place.send([(b"key%d" % n, b"v") for n in range(start, start + 1500)])
    place.send([(b"key%d" % n, b"w") for n in range(1500)])
    place.settle()
    passes = 0
    while place.passes == passes or passes == 0:
        passes = place.passes
        place.harness.store.housekeeping(place.now_ms)
        if passes and place.passes == passes:
            break
        passes = place.passes
    assert passes > 2
    assert len(place.check()) == count


def test_young_records_are_not_compacted(tmp_path: Path) -> None:
    place = Keyed(tmp_path)
    place.configure(min_compaction_lag_ms=5000)
    for number in range(20):
        place.send(pairs(number, 5))
    place.compact()
    assert place.passes == 0
    place.harness.clock.ms += 5000
    place.compact()
    assert len(place.check()) == 5


def test_overdue_records_are_compacted_however_few(tmp_path: Path) -> None:
    place = Keyed(tmp_path)
    place.configure(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=10_000)
    for number in range(3):
        place.send(pairs(number, 5))
    place.harness.store.checkpoint()
    place.harness.store.housekeeping(place.now_ms)
    assert place.passes == 0
    place.harness.clock.ms += 10_001
    for _ in range(3):
        place.harness.store.housekeeping(place.now_ms)
        place.harness.store.checkpoint()
    place.harness.store.housekeeping(place.now_ms)
    assert place.passes == 1
    assert len(place.check()) == 5


def test_compacted_logs_are_retained_too(tmp_path: Path) -> None:
    place = Keyed(tmp_path)
    place.configure(cleanup_policy=("compact", "delete"), retention_ms=100_000)
    for number in range(20):
        place.send(pairs(number, 5))
    place.compact()
    assert len(place.check()) == 5
    place.harness.clock.ms += 100_001
    place.send([(b"new", b"value")])
    place.settle()
    for _ in range(5):
        place.harness.clock.ms += 10
        place.harness.store.housekeeping(place.now_ms)
    assert [record.key for record in place.read()] == [b"new"]


def test_batches_without_records_do_not_come_alone(tmp_path: Path) -> None:
    place = Keyed(tmp_path)
    for number in range(60):
        place.send(pairs(number, 3, keys=3), producer_id=5)
    place.compact()
    emptied = [batch for batch in batches_of(place.log) if not batch.record_count]
    assert len(emptied) > 5
    for offset in range(place.log.log_end_offset):
        read = place.log.read(offset, max_bytes=1, end_offset=1 << 62)
        headers = split_batches(b"".join(bytes(buffer) for buffer in read.buffers))
        assert headers[-1].record_count
        assert read.next_offset == headers[-1].next_offset > offset


def test_nothing_is_rewritten_that_stays_as_it_is(tmp_path: Path) -> None:
    place = Keyed(tmp_path)
    for number in range(20):
        place.send([(b"key%d" % n, b"v" * 60) for n in range(5 * number, 5 * number + 5)])
    inodes = {path.name: path.stat().st_ino for path in (tmp_path / "orders-0").glob("*.log")}
    place.compact()
    assert place.passes == 1
    assert len(place.check()) == 100
    assert {
        path.name: path.stat().st_ino
        for path in (tmp_path / "orders-0").glob("*.log")
        if path.name in inodes
    } == inodes


@pytest.mark.parametrize("most", [1 << 16, 5])
def test_batches_without_a_newest_record_are_read_once(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that may note few batches reads all of them twice."""
    monkeypatch.setattr(keys, "NOTED_BATCHES_MAX", most)
    config = replace(COMPACTED, segment_bytes=20_000)
    place = Keyed(tmp_path, config=config, log_cleaner_io_buffer_size=1 << 14)
    for turn in range(120):
        value = None if turn == 118 else b"%03d" % turn * 60
        place.send([(b"key %d" % number, value) for number in range(turn % 3, 3)])
    place.settle()
    size = sum(segment.end_position for segment in place.log.state.segments[:-1])
    place.compact()
    place.check()
    read = place.harness.store._parts.counters.compaction_read_bytes
    assert (read < 1.3 * size) == (most > 5)
    place.harness.store.close()


def test_a_swap_that_a_checkpoint_delays_follows_it(tmp_path: Path) -> None:
    place = Keyed(tmp_path)
    for number in range(40):
        place.send(pairs(3 * number, 3))
    place.settle()
    checkpointer = place.harness.store._checkpointer
    checkpointer._running = True
    place.harness.store.housekeeping(place.now_ms)
    assert place.passes == 0
    checkpointer._running = False
    checkpointer._save_behind()
    assert place.passes == 1
    assert len(place.check()) == 5
    place.harness.store.close()


@pytest.mark.parametrize(("backoff_ms", "seconds"), [(0, 0.1), (250, 0.25), (15_000, 1.0)])
def test_housekeeping_is_as_frequent_as_the_search_for_dirty_logs(
    tmp_path: Path, backoff_ms: int, seconds: float
) -> None:
    place = Keyed(tmp_path, log_cleaner_backoff_ms=backoff_ms)
    assert place.harness.store.housekeeping_seconds == seconds
    place.harness.store.close()
