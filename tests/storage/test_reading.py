"""Reads of segment files in order: where one ended, the next begins, without the index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.storage import LogConfig
from tests.faulty_files import FaultyFiles
from tests.storage.batches import Harness, batch, read_all, stamped

READ_BYTES = 10_000


def written(directory: Path, files: FaultyFiles) -> tuple[Harness, bytes]:
    """A log whose batches are in four segments, and none in memory; and its bytes."""
    config = LogConfig(retention_ms=-1, segment_bytes=60_000, index_interval_bytes=500)
    harness = Harness(directory, config=config, files=files)
    for number in range(200):
        harness.append(batch(1 + number % 3, size=200 + 37 * (number % 31), fill=number))
    assert harness.commit() is None
    expected = read_all(harness.log())
    harness.reopen()
    harness.log().load()
    return harness, expected


def test_a_read_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    files = FaultyFiles()
    harness, expected = written(tmp_path, files)
    files.calls.clear()
    assert read_all(harness.log(), max_bytes=READ_BYTES) == expected
    reads = -(-len(expected) // (READ_BYTES - 1500)) + harness.log().segment_count
    assert files.calls.count("read_at") <= reads + harness.log().segment_count
    harness.store.close()


def test_offsets_without_a_batch_do_not_cause_second_reads(tmp_path: Path) -> None:
    sizes: list[int] = []

    def record(_number: int, name: str, _arguments: tuple[Any, ...], result: Any) -> None:
        if name == "read_at":
            sizes.append(len(result))

    config = LogConfig(retention_ms=-1, index_interval_bytes=500)
    harness = Harness(tmp_path, config=config, files=FaultyFiles(after=record))
    for number in range(300):
        data = stamped(1, 10 * number, 1, fill=number, size=1000)
        harness.log().replica.append(data, now_ms=harness.clock.ms)
    assert harness.commit() is None
    harness.reopen()
    harness.log().load()
    sizes.clear()
    expected = read_all(harness.log(), max_bytes=100_000)
    assert sum(sizes) < 1.3 * len(expected)
    harness.store.close()


def test_several_readers_and_other_sizes_read_the_same(tmp_path: Path) -> None:
    harness, expected = written(tmp_path, FaultyFiles())
    log, end = harness.log(), harness.log().durable_offset
    found, at = [b"", b"", b""], [0, 0, 0]
    sizes = [READ_BYTES, 1, 3000]
    while min(at) < end:
        for reader, size in enumerate(sizes):
            if at[reader] < end:
                read = log.read(at[reader], max_bytes=size, end_offset=end)
                assert read.size_bytes <= max(size, 1500)
                found[reader] += b"".join(map(bytes, read.buffers))
                at[reader] = read.next_offset
    assert found == [expected] * 3
    harness.store.close()


def test_a_cut_log_is_read_by_its_index_again(tmp_path: Path) -> None:
    """The next batches lie elsewhere than the ones that were cut."""
    harness, _ = written(tmp_path, FaultyFiles())
    log = harness.log()
    read_all(log, max_bytes=READ_BYTES)
    end = log.replica.truncate(log.durable_offset - 40, floor=0)
    assert harness.commit() is None
    kept = read_all(log, max_bytes=READ_BYTES)
    more = [batch(1 + number % 2, size=90 + 11 * number, fill=number) for number in range(60)]
    for data in more:
        harness.append(data)
    assert harness.commit() is None
    harness.reopen()
    whole = read_all(harness.log(), max_bytes=READ_BYTES)
    assert whole.startswith(kept)
    assert len(whole) == len(kept) + sum(map(len, more))
    assert harness.log().log_end_offset == end + sum(1 + number % 2 for number in range(60))
    harness.store.close()


def test_damage_behind_the_last_read_is_found(tmp_path: Path) -> None:
    harness, expected = written(tmp_path, FaultyFiles())
    log = harness.log()
    first = log.read(0, max_bytes=READ_BYTES, end_offset=1 << 40)
    path = Path(log.state.segments[0].path)
    data = bytearray(path.read_bytes())
    data[first.size_bytes + 70] ^= 1
    path.write_bytes(data)
    damage = log.damage_in(first.next_offset, log.durable_offset)
    assert damage is not None
    assert damage.first_offset == first.next_offset
    behind = log.read(damage.next_offset, max_bytes=READ_BYTES, end_offset=1 << 40)
    start = expected.index(bytes(behind.buffers[0]))
    assert start == damage.end_position
    harness.store.close()
