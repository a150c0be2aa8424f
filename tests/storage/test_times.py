"""Offsets by timestamp, record by record, against a plain search."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.records import Codec
from penstock.records.columnar import encode_batches
from penstock.storage import LogConfig
from tests.storage.batches import Harness


def encoded(times: list[int], codec: Codec) -> memoryview:
    table = pa.table(
        {
            "timestamp": pa.array(times, pa.int64()),
            "value": pa.array([b"v%d" % n for n in range(len(times))], pa.binary()),
        }
    )
    (one,) = encode_batches(table, codec=codec, now_ms=0)
    return memoryview(bytearray(one.data))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_first_record_at_or_after_a_time(tmp_path: Path, codec: Codec) -> None:
    dice = random.Random(int(codec))
    harness = Harness(
        tmp_path, config=LogConfig(segment_bytes=2000, index_interval_bytes=200, retention_ms=-1)
    )
    times: list[int] = []
    for number in range(60):
        batch_times = [1000 + number * 10 + dice.randint(-40, 40) for _ in range(5)]
        harness.put(encoded(batch_times, codec))
        times += batch_times
    start = 0
    for _ in range(3):
        log = harness.log()
        assert log.segment_count > 3
        for wanted in range(950, 1650, 7):
            matches = [n for n, time in enumerate(times) if n >= start and time >= wanted]
            found = log.offset_for_timestamp(wanted)
            if not matches:
                assert found is None
                continue
            assert found is not None
            assert (found.offset, found.timestamp) == (matches[0], times[matches[0]])
            assert found.leader_epoch == 0
        newest = log.offset_of_max_timestamp()
        assert newest is not None
        highest = max(times[start:])
        assert (newest.offset, newest.timestamp) == (
            next(n for n in range(start, len(times)) if times[n] == highest), highest,
        )  # fmt: skip
        start = log.delete_records(start + 33)
        harness.reopen()
    harness.store.close()


def test_an_empty_log_has_no_times(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    assert harness.log().offset_for_timestamp(0) is None
    assert harness.log().offset_of_max_timestamp() is None
    harness.store.close()
