"""Appends of one batch to each of many logs: the same as single appends, or left to them."""

from __future__ import annotations

import errno
import gc
import sys
from itertools import combinations, product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.base.errors import PenstockError
from penstock.base.extras import MissingExtra
from penstock.base.ids import TopicPartition
from penstock.records import BatchHeader, compress, decode_header, encode_header, seal
from penstock.records.appends import AppendResult
from penstock.records.header import HEADER
from penstock.storage import DiskFull, LogConfig, PartitionLog
from penstock.storage.files.appended import Appended
from penstock.storage.log.validation import _plain
from penstock.storage.log.wide import _are_plain, _join
from tests.faulty_files import FaultyFiles
from tests.storage.batches import Harness, batch, read_all


def changed(data: memoryview, **fields: Any) -> memoryview:
    """A batch with other fields in its header, and a checksum that fits."""
    header = decode_header(data)
    whole = bytearray(encode_header(header._replace(**fields)) + bytes(data[61:]))
    seal(whole)
    return memoryview(whole)


def packed(data: memoryview) -> memoryview:
    records = bytes(compress(3, bytes(data[61:])))
    whole = bytes(data[:61]) + records
    return changed(memoryview(whole), batch_length=len(whole) - 12, attributes=3)


def flipped(data: memoryview, place: int) -> memoryview:
    whole = bytearray(data)
    whole[place] ^= 1
    return memoryview(whole)


PLAIN = [
    batch(), batch(3, fill=7), batch(200, size=3000), packed(batch(9, size=600)),
    batch(2, producer_id=5, epoch=0, sequence=0), batch(size=16_000, fill=1),
]  # fmt: skip
NOT_WIDE = [
    flipped(batch(), -1),
    flipped(packed(batch(9, size=600)), 65),
    changed(batch(), base_offset=1),
    changed(batch(), magic=1),
    changed(batch(3), record_count=2),
    changed(batch(3), last_offset_delta=3, record_count=4),
    changed(batch(), base_timestamp=5000),
    changed(batch(), base_timestamp=1 << 60, max_timestamp=1 << 60),
    changed(batch(), batch_length=48),
    changed(batch(), attributes=16, producer_id=3, producer_epoch=0, base_sequence=0),
    changed(batch(), producer_id=-2),
    batch(producer_id=5, epoch=-1),
    batch(size=17 << 10, fill=1),
    memoryview(b"short"),
]


def test_wide_appends_equal_single_ones(tmp_path: Path) -> None:
    one, each = Harness(tmp_path / "one"), Harness(tmp_path / "each")
    count = len(PLAIN)
    logs = [each.log(number) for number in range(count)]
    for log in logs:
        log.load()
    for turn in range(30):
        data = [PLAIN[(turn + number) % count] for number in range(count)]
        if turn:
            data = [batch(fill=turn) if item is PLAIN[4] else item for item in data]
        expected = [one.append(item, number) for number, item in enumerate(data)]
        results = each.store.append_each(
            logs, [memoryview(bytes(item)) for item in data], config=each.config,
            now_ms=each.clock.ms,
        )  # fmt: skip
        assert results == [AppendResult(base, -1, 0) for base in expected]
        if turn % 3 == 0:
            assert one.commit() is each.commit() is None
        if turn == 10:
            each.store.checkpoint()
    assert one.commit() is each.commit() is None
    whole = [read_all(one.log(number)) for number in range(count)]
    assert [read_all(log) for log in logs] == whole
    each.crash()
    assert [read_all(each.log(number)) for number in range(count)] == whole
    again = memoryview(bytes(PLAIN[4]))
    duplicate = each.log(4).append(memoryview(bytearray(again)), now_ms=each.clock.ms)
    assert (duplicate.base_offset, duplicate.duplicate) == (0, True)
    assert (
        each.store.append_each(
            [each.log(3)] * 2, [batch()] * 2, config=each.config, now_ms=each.clock.ms
        )
        == [None] * 2
    )
    assert each.store.append_each(
        [each.log(4)], [again], config=each.config, now_ms=each.clock.ms
    ) == [None]
    one.store.close()
    each.store.close()


def test_batches_that_are_not_plain_are_left_to_single_appends(tmp_path: Path) -> None:
    """The others of the call are appended."""
    harness = Harness(tmp_path, config=LogConfig(retention_ms=-1, message_timestamp_after_max_ms=9))
    harness.log(1).append(batch(2, producer_id=5, epoch=0, sequence=0), now_ms=harness.clock.ms)
    data = [item for bad in NOT_WIDE for item in (batch(), bad)]
    logs = [harness.log(number) for number in range(len(data))]
    for log in logs:
        log.load()
    results = harness.store.append_each(logs, data, config=harness.config, now_ms=harness.clock.ms)
    assert [result is None for result in results] == [False, True] * len(NOT_WIDE)
    assert harness.commit() is None
    assert [log.durable_offset for log in logs[::2]] == [1] * len(NOT_WIDE)
    assert [log.log_end_offset for log in logs[3::2]] == [0] * (len(NOT_WIDE) - 1)
    for log, bad in zip(logs[1::2], NOT_WIDE, strict=True):
        if len(bad) < 16 << 10:
            with pytest.raises(PenstockError):
                log.append(memoryview(bytearray(bad)), now_ms=harness.clock.ms, single=True)
    harness.store.close()


@pytest.mark.parametrize("config", [
    LogConfig(), LogConfig(max_message_bytes=200),
    LogConfig(message_timestamp_before_max_ms=1, message_timestamp_after_max_ms=1),
])  # fmt: skip
def test_arrays_and_single_headers_obey_the_same_rules(config: LogConfig) -> None:
    """Compare both for edge values of every pair of header fields."""
    bits = {"q": 64, "i": 32, "I": 32, "h": 16, "b": 8}
    whole, now_ms = batch(3), 1001
    edges = {}
    for name, code in zip(BatchHeader._fields, HEADER.format[1:], strict=True):
        high = 1 << bits[code] - 1
        values = [-high, -2, -1, 0, 1, 2, 4, 5, 16, 1000, 1002, high - 1, len(whole) - 12]
        edges[name] = [value for value in values if -high <= value < high and name != "crc"]
    found = [flipped(whole, 17), whole]
    found += [
        changed(whole, **{one: value, other: second})
        for one, other in combinations(edges, 2)
        for value, second in product(edges[one], edges[other])
    ]
    expected = [_plain(data, config, now_ms) is not None for data in found]
    assert len(found) > 5000
    assert sum(expected) > 100
    assert _are_plain(_join(found), config, now_ms).tolist() == expected


@pytest.mark.parametrize("settings", [
    {"cleanup_policy": "compact"}, {"record_validation": "full"}, {"compression_type": "zstd"},
    {"message_timestamp_type": "LogAppendTime"},
    {"schema_validation_value": True}, {"segment_index_bytes": 64}, {"segment_jitter_ms": 5},
])  # fmt: skip
def test_topics_with_other_checks_are_left_to_single_appends(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    harness = Harness(tmp_path, config=LogConfig(retention_ms=-1, **settings))
    harness.log().load()
    found = harness.store.append_each(
        [harness.log()], [batch()], config=harness.config, now_ms=harness.clock.ms
    )
    assert found == [None]
    harness.store.close()


class Lacking(ModuleType):
    """A module that cannot be loaded without an extra."""

    def __getattr__(self, name: str) -> Any:
        raise MissingExtra("numba", "compile")


def test_without_kernels_batches_are_left_to_single_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "penstock.kernels.records", Lacking("records"))
    harness = Harness(tmp_path)
    harness.log().load()
    found = harness.store.append_each(
        [harness.log()], [batch()], config=harness.config, now_ms=harness.clock.ms
    )
    assert found == [None]
    assert harness.put(batch()) == 0
    harness.store.close()


def test_logs_that_reject_appends_get_none(tmp_path: Path) -> None:
    harness = Harness(tmp_path, config=LogConfig(retention_ms=-1, segment_ms=10, segment_bytes=250))
    logs = [harness.log(number) for number in range(5)]
    for _ in range(2):
        harness.put(batch(timestamp=2000), 4)
    for number, log in enumerate(logs[:3]):
        harness.put(batch(timestamp=1000), number)
        log.load()
    logs[0].state.fence = PenstockError("moving")
    logs[1].set_leader_epoch(4)  # its next append begins a segment
    data = [batch(timestamp=2000)] * 5
    found = harness.store.append_each(logs, data, config=harness.config, now_ms=harness.clock.ms)
    # The third's segment is too old, the fourth is not loaded, the fifth's segment is full.
    assert found == [None] * 5
    harness.store.close()


def test_a_full_disk_undoes_a_wide_append(tmp_path: Path) -> None:
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    logs = [harness.log(number) for number in range(20)]
    for number in range(20):
        harness.put(batch(2, producer_id=5, epoch=0, sequence=0), number)
    for _ in range(2):
        harness.append(batch(size=300), 3)
        found = harness.store.append_each(
            logs, [batch(2, size=900, producer_id=5, epoch=0, sequence=2)] * 20,
            config=harness.config, now_ms=harness.clock.ms,
        )  # fmt: skip
        assert None not in found
        files.fail = lambda name, path: errno.ENOSPC if name == "write_at" else None
        assert isinstance(harness.commit(), DiskFull)
        assert [(log.log_end_offset, log.durable_offset) for log in logs] == [(2, 2)] * 20
        files.fail = lambda name, path: None
    assert harness.put(batch(2, producer_id=5, epoch=0, sequence=2), 7) == 2
    harness.store.close()


def test_a_log_is_deleted_while_a_wide_append_waits(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    logs = [harness.log(number) for number in range(5)]
    for log in logs:
        log.load()
    found = harness.store.append_each(
        logs, [batch(3)] * 5, config=harness.config, now_ms=harness.clock.ms
    )
    assert None not in found
    harness.store.delete(TopicPartition("orders", 2))
    assert harness.commit() is None
    assert [log.durable_offset for log in logs] == [3, 3, 0, 3, 3]
    harness.crash()
    assert [harness.log(number).durable_offset for number in (0, 1, 3, 4)] == [3] * 4
    assert harness.log(2).log_end_offset == 0
    harness.store.close()


def wide_append(harness: Harness, logs: list[PartitionLog], turn: int) -> None:
    data = [batch(2, size=100, fill=turn)] * len(logs)
    found = harness.store.append_each(logs, data, config=harness.config, now_ms=harness.clock.ms)
    assert None not in found


def loaded(harness: Harness, count: int) -> list[PartitionLog]:
    logs = [harness.log(number) for number in range(count)]
    for log in logs:
        log.load()
    return logs


def test_rows_of_a_wide_append_are_created_after_its_acknowledgement(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    logs = loaded(harness, 40)

    def count() -> int:
        return sum(isinstance(found, Appended) for found in gc.get_objects())

    gc.collect()
    before = count()
    wide_append(harness, logs, 1)
    acknowledged: list[int] = []
    harness.store.flush(lambda error: acknowledged.append(count()))
    harness.store.commit_pending()
    assert acknowledged == [before]
    assert count() == before + 40
    assert len(read_all(logs[7])) > 100
    logs[7].state.write_segments()
    assert logs[7].state.tail.at(0) is logs[7].state.tail.at(0)
    assert count() == before + 40
    harness.store.close()


def test_wide_appends_are_evicted_from_memory_together(tmp_path: Path) -> None:
    """Reads find the same batches after single appends, a deletion and evictions between them."""
    limit = 1 << 16
    harness, one = Harness(tmp_path / "each", tail_cache_bytes=limit), Harness(tmp_path / "one")
    logs = loaded(harness, 20)
    for turn in range(120):
        wide_append(harness, logs, turn)
        for number in range(len(logs)):
            one.append(batch(2, size=100, fill=turn), number)
        if turn % 3 == 0:
            for either in (one, harness):
                either.append(batch(2, size=100, fill=turn), turn % 5)
        assert one.commit() is harness.commit() is None
        assert logs[0].state.parts.tails.size_bytes <= limit
        for number in (0, turn % 19):
            start = max(0, logs[number].log_end_offset - 16)
            recent = read_all(one.log(number), start=start)
            assert read_all(logs[number], start=start) == recent
        if turn == 60:
            harness.store.delete(logs.pop().topic_partition)
    whole = [read_all(one.log(number)) for number in range(19)]
    assert [read_all(log) for log in logs] == whole
    assert logs[0].state.parts.counters.tail_reads > 0
    harness.crash()
    assert [read_all(harness.log(number)) for number in range(19)] == whole
    harness.store.close()
    one.store.close()


def test_a_row_of_a_wide_append_is_dropped_alone(tmp_path: Path) -> None:
    """Truncated and dropped rows are not read; memory is released with the last row."""
    harness = Harness(tmp_path)
    logs = loaded(harness, 3)
    tails = logs[0].state.parts.tails
    wide_append(harness, logs, 1)
    assert harness.commit() is None
    wide_append(harness, logs, 2)
    logs[1].replica.truncate(2, floor=0)
    assert harness.commit() is None
    assert [log.log_end_offset for log in logs] == [4, 2, 4]
    assert [log.durable_offset for log in logs] == [4, 2, 4]
    whole = [read_all(log) for log in logs]
    for log in logs:
        log.state.write_segments()
        while log.state.tail.first_offset is not None:
            tails.drop(log.state.tail.pop_oldest())
    assert tails.size_bytes == 0
    assert [read_all(log) for log in logs] == whole
    harness.store.close()
