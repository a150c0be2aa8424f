"""Appends that the policy `os` writes at once, compared with the same appends in groups."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.storage import LogConfig, StorageError
from tests.faulty_files import FaultyFiles
from tests.storage.batches import Harness, batch, offsets, read_all
from tests.storage.test_log import CountingLease

SMALL = LogConfig(
    retention_ms=-1, segment_bytes=60_000, index_interval_bytes=300, segment_index_bytes=64
)


class Pair:
    """Two stores that receive the same appends: one with `through`, one without."""

    def __init__(self, directory: Path, config: LogConfig) -> None:
        self.both = [
            Harness(directory / name, config=config, log_flush_policy="os")
            for name in ("through", "queued")
        ]
        self.sequence = 0

    def append(self, data: memoryview, partition: int, *, lease: bool, commit: bool) -> None:
        results = []
        for through, harness in zip((True, False), self.both, strict=True):
            own = memoryview(bytearray(data))
            held = CountingLease(own) if lease else None
            log = harness.log(partition)
            results.append(
                log.append(own, now_ms=harness.clock.ms, lease=held, single=True, through=through)
            )
            if held is not None:
                held.release()
            if commit:
                assert harness.commit() is None
                assert held is None or held.count == 0
        assert results[0] == results[1]

    def check(self) -> None:
        states = []
        for harness in self.both:
            assert harness.commit() is None
            logs = [harness.log(partition) for partition in range(2)]
            states.append([
                (log.log_end_offset, log.durable_offset, read_all(log), log.producers())
                for log in logs
            ])  # fmt: skip
            assert harness.store._parts.queue.unwritten_bytes == 0
        assert states[0] == states[1]

    def reopen(self, *, crash: bool) -> None:
        for harness in self.both:
            assert harness.commit() is None
            if crash:
                harness.crash()
            else:
                harness.reopen()

    def files(self) -> list[dict[str, bytes]]:
        return [
            {
                str(path.relative_to(harness.directory)): path.read_bytes()
                for path in sorted(harness.directory.glob("*/*"))
                if path.suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
            }
            for harness in self.both
        ]


append = st.tuples(
    st.just("append"), st.integers(1, 30), st.sampled_from([40, 200, 5_000, 17_000, 30_000]),
    st.integers(0, 1), st.sampled_from(["none", "next", "again"]), st.booleans(), st.booleans(),
)  # fmt: skip
step = st.one_of(
    append, append, append, append, st.tuples(st.just("reopen")), st.tuples(st.just("crash"))
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(step, max_size=25))
def test_appends_written_at_once_equal_those_of_groups(
    steps: list[tuple[object, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    pair = Pair(tmp_path_factory.mktemp("logs"), SMALL)
    sequences: dict[int, tuple[int, memoryview | None]] = {}
    for name, *values in steps:
        if name != "append":
            pair.reopen(crash=name == "crash")
            pair.check()
            continue
        count, size, partition, producer, lease, commit = values
        assert isinstance(count, int)
        assert isinstance(size, int)
        assert isinstance(partition, int)
        sequence, last = sequences.get(partition, (0, None))
        if producer == "none":
            data = batch(count, size=size, fill=count)
        elif producer == "next" or last is None:
            data = batch(count, size=size, fill=count, producer_id=7, epoch=0, sequence=sequence)
            sequences[partition] = sequence + count, data
        else:
            data = last
        pair.append(data, partition, lease=bool(lease), commit=bool(commit))
        if commit:
            pair.check()
    pair.check()
    for harness in pair.both:
        harness.store.close()
    first, second = pair.files()
    assert first == second


def test_an_append_is_durable_and_readable_at_return(tmp_path: Path) -> None:
    harness = Harness(tmp_path, log_flush_policy="os")
    harness.put(batch(2))
    log = harness.log()
    result = log.append(batch(3), now_ms=harness.clock.ms, through=True)
    assert (result.base_offset, log.durable_offset) == (2, 5)
    assert offsets(read_all(log)) == [(0, 2), (2, 5)]
    harness.crash()
    assert offsets(read_all(harness.log())) == [(0, 2), (2, 5)]
    harness.store.close()


def test_an_append_that_is_written_at_once_takes_few_calls(tmp_path: Path) -> None:
    """Count the calls of Python functions, because they take most of the time."""
    harness = Harness(tmp_path, log_flush_policy="os")
    harness.put(batch(2))
    log, data, calls = harness.log(), memoryview(bytearray(batch())), 0

    def trace(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(trace)
    try:
        log.append(data, now_ms=harness.clock.ms, config=harness.config, through=True)
    finally:
        sys.setprofile(None)
    assert log.durable_offset == 3
    assert calls <= 24
    harness.store.close()


@pytest.mark.parametrize(
    ("policy", "config"),
    [
        ("group", LogConfig()),
        ("interval", LogConfig()),
        ("os", LogConfig(flush_messages=100)),
        ("os", LogConfig(flush_ms=1000)),
        ("os", LogConfig(message_timestamp_type="LogAppendTime")),
    ],
)
def test_an_append_that_needs_more_than_a_write_waits_for_its_group(
    tmp_path: Path, policy: str, config: LogConfig
) -> None:
    harness = Harness(tmp_path, config=config, log_flush_policy=policy)
    harness.put(batch(2, timestamp=harness.clock.ms))
    log = harness.log()
    log.append(batch(3, timestamp=harness.clock.ms), now_ms=harness.clock.ms, through=True)
    assert (log.log_end_offset, log.durable_offset) == (5, 2)
    assert harness.commit() is None
    assert log.durable_offset == 5
    harness.store.close()


def test_an_append_waits_behind_earlier_ones(tmp_path: Path) -> None:
    harness = Harness(tmp_path, log_flush_policy="os")
    harness.put(batch(2))
    harness.put(batch(2), partition=1)
    harness.append(batch(1), partition=1)
    log = harness.log()
    log.append(batch(3), now_ms=harness.clock.ms, through=True)
    assert log.durable_offset == 2
    assert harness.commit() is None
    assert (log.durable_offset, harness.log(1).durable_offset) == (5, 3)
    harness.store.close()


@pytest.mark.parametrize("room", [0, 1, 100])
def test_an_append_that_the_disk_refuses_fails_in_its_group(tmp_path: Path, room: int) -> None:
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files, log_flush_policy="os")
    harness.put(batch(2, producer_id=5, epoch=0, sequence=0))
    log, before = harness.log(), harness.log().producers()
    files.room = room
    again = batch(3, size=200, producer_id=5, epoch=0, sequence=2)
    for _ in range(2):
        log.append(memoryview(bytearray(again)), now_ms=harness.clock.ms, through=True)
        assert log.durable_offset == 2
        error: StorageError | None = harness.commit()
        assert error is not None
        assert error.code == "kafka_storage_error"
        assert (log.log_end_offset, log.durable_offset, log.producers()) == (2, 2, before)
    files.room = None
    log.append(memoryview(bytearray(again)), now_ms=harness.clock.ms, through=True)
    assert log.durable_offset == 5
    files.fail = lambda name, path: errno.EIO if name == "write_at" else None
    log.append(batch(1), now_ms=harness.clock.ms, through=True)
    assert harness.commit() is not None
    files.fail = lambda name, path: None
    expected = read_all(log)
    harness.crash()
    assert read_all(harness.log()) == expected
    harness.store.close()
