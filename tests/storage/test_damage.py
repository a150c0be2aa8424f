"""Bytes that rot, and files that are cut, while a store is open and before it is opened: what was
written is read or refused, range by range, and never something else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records import HEADER_BYTES, Codec, split_batches, stamp_identity
from penstock.records.columnar import encode_batches
from penstock.records.transactions import UNGUARDED, Marker
from penstock.storage import CorruptLog, LogConfig, PartitionLog
from tests.storage.batches import Harness, read_all

CONFIG = LogConfig(retention_ms=-1, segment_bytes=2_000, index_interval_bytes=300)
PRODUCER = 7
SECONDS_MS = 1_000


class Truth(NamedTuple):
    """Written content: batches by base offset, aborted transactions, epochs, the end."""

    batches: dict[int, bytes]
    aborted: list[tuple[int, int, int]]
    epochs: list[tuple[int, int]]
    end: int

    def after(self, offset: int) -> int:
        """The offset behind the batch that holds one."""
        base = max(base for base in self.batches if base <= offset)
        return split_batches(self.batches[base])[0].next_offset


def truth_of(log: PartitionLog) -> Truth:
    data, batches, at = read_all(log), {}, 0
    for header in split_batches(data):
        batches[header.base_offset] = data[at : at + header.size_bytes]
        at += header.size_bytes
    end = log.durable_offset
    aborted = [
        (txn.producer_id, txn.first_offset, txn.last_offset)
        for txn in log.transactions.aborted(0, end)
    ]
    return Truth(batches, aborted, list(log.state.epochs.entries), end)


def records(count: int, number: int) -> memoryview:
    """A batch of real records, later than those of lower numbers."""
    times = [1_000 + number * SECONDS_MS + place for place in range(count)]
    values = [b"%d-%d" % (number, place) * (8 + number) for place in range(count)]
    table = pa.table({"timestamp": pa.array(times, pa.int64()), "value": pa.array(values)})
    (one,) = encode_batches(table, codec=Codec.NONE, now_ms=0)
    return memoryview(bytearray(one.data))


def write(directory: Path) -> tuple[Harness, Truth]:
    """Several segments and epochs, a producer, transactions: all in files, nothing in memory."""
    harness = Harness(directory, config=CONFIG, tail_cache_bytes=1)
    log, sequence = harness.log(), 0
    for number in range(36):
        if number % 12 == 11:
            log.set_leader_epoch(log.leader_epoch + 1)
        if number % 6 == 2:
            plain = records(2, number)
            head = stamp_identity(
                plain, split_batches(plain)[0], producer_id=PRODUCER, epoch=0,
                base_sequence=sequence, transactional=True,
            )  # fmt: skip
            data = memoryview(bytearray(head + plain[HEADER_BYTES:]))
            log.append(data, now_ms=1, guard=UNGUARDED)
            sequence += 2
        elif number % 6 == 4:
            commits = number % 12 == 4
            log.transactions.append_marker(
                Marker(PRODUCER, 0, 1, commits), now_ms=1_000 + number * SECONDS_MS
            )
        else:
            log.append(records(1 + number % 3, number), now_ms=1)
        assert harness.commit() is None
        if number == 20:
            harness.store.checkpoint()
    harness.store.checkpoint()
    return harness, truth_of(log)


def check(log: PartitionLog, truth: Truth) -> set[int]:
    """Check that every readable batch is as written; return the unreadable offsets, which are
    whole batches."""
    refused: set[int] = set()
    for offset in range(log.log_start_offset, truth.end):
        for max_bytes in (1, 700, 1 << 20):
            try:
                read = log.read(offset, max_bytes=max_bytes, end_offset=truth.end)
            except CorruptLog:
                refused.add(offset)
                continue
            data = b"".join(bytes(buffer) for buffer in read.buffers)
            found = split_batches(data)
            assert found, f"nothing is read at offset {offset}"
            assert found[0].base_offset <= offset < found[0].next_offset
            assert found[-1].next_offset == read.next_offset
            expected, at = found[0].base_offset, 0
            for header in found:
                assert header.base_offset == expected
                assert data[at : at + header.size_bytes] == truth.batches[expected]
                at, expected = at + header.size_bytes, header.next_offset
            assert offset not in refused
    for base in truth.batches:
        of_batch = set(range(base, truth.after(base)))
        assert of_batch <= refused or not of_batch & refused
    return refused


class Stored:
    """The files of a store that was closed, by their names, and what is in them."""

    def __init__(self, files: dict[str, bytes], truth: Truth) -> None:
        self.files = files
        self.truth = truth


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    root = tmp_path_factory.mktemp("written")
    harness, truth = write(root)
    harness.store.close()
    assert len(truth.aborted) == 3
    assert len([path for path in (root / "orders-0").iterdir() if path.suffix == ".log"]) > 4
    files = {str(file.relative_to(root)): file.read_bytes() for file in files_of(root)}
    return Stored(files, truth)


def files_of(root: Path) -> Iterator[Path]:
    return (path for path in sorted(root.rglob("*")) if path.is_file())


def put(files: dict[str, bytes], root: Path) -> None:
    for path in list(files_of(root)):
        path.unlink()
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


class Blow(NamedTuple):
    """Damage to a file: a changed byte, a truncation, or its removal."""

    kind: str
    where: float
    bits: int

    def strike(self, path: Path) -> int:
        """Returns the byte."""
        size = path.stat().st_size
        at = min(int(self.where * size), max(0, size - 1))
        if self.kind == "flip" and size:
            with path.open("r+b") as file:
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ self.bits]))
        elif self.kind == "cut":
            with path.open("r+b") as file:
                file.truncate(at)
        elif self.kind == "gone":
            path.unlink()
        elif self.kind == "zeros":
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes(min(512, size - at)))
        return at


def blows(*kinds: str) -> st.SearchStrategy[Blow]:
    return st.builds(
        Blow, st.sampled_from(kinds), st.floats(0, 1, exclude_max=True), st.integers(1, 255)
    )


ALL_KINDS = ("flip", "flip", "cut", "gone", "zeros")
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".batches")
SMALL_FILES = ("leader-epoch-checkpoint", "partition.metadata")


def choose(root: Path, suffix: str, dice: random.Random) -> Path:
    found = [path for path in files_of(root) if path.name.endswith(suffix)]
    return dice.choice(found)


def others_hold(log: PartitionLog, truth: Truth) -> None:
    """Check data derived from records: aborted transactions, epochs, timestamps, the producer."""
    for offset in range(truth.end):
        epoch = max(epoch for epoch, start in truth.epochs if start <= offset)
        assert log.latest_epoch_at(offset) == epoch
    for start in range(0, truth.end, 3):
        aborted = log.transactions.aborted(start, truth.end)
        found = {(txn.producer_id, txn.first_offset, txn.last_offset) for txn in aborted}
        assert found == {txn for txn in truth.aborted if txn[2] >= start}
    for data in truth.batches.values():
        header = split_batches(data)[0]
        position = log.offset_for_timestamp(header.base_timestamp)
        assert position is not None
        assert position.offset == header.base_offset
    (producer,) = log.producers()
    assert (producer.producer_id, producer.last_sequence) == (PRODUCER, 11)


def damaged_at_a_start(root: Path, stored: Stored, suffix: str, blow: Blow, seed: int) -> None:
    files, truth = stored.files, stored.truth
    put(files, root)
    path = choose(root, suffix, random.Random(seed))
    blow.strike(path)
    harness = Harness(root, config=CONFIG, tail_cache_bytes=1)
    try:
        log = harness.log()
        refused = check(log, truth)
        if suffix == ".log":
            struck = path.read_bytes() if path.exists() else None
            lost = 0 if struck == files[str(path.relative_to(root))] else 1
            assert len(refused) >= lost
            counters = harness.store._parts.counters
            assert bool(counters.damaged_ranges or counters.corruptions) == bool(refused)
        else:
            assert not refused
            others_hold(log, truth)
        end = harness.put(records(2, 99))
        assert end == truth.end
        harness.reopen()
        log = harness.log()
        assert check(log, truth) == refused
        last = log.read(end, max_bytes=1, end_offset=1 << 60)
        assert (last.next_offset, log.durable_offset) == (end + 2, end + 2)
    finally:
        harness.store.close()


def damaged_while_open(root: Path, suffix: str, blow: Blow, seed: int) -> None:
    put({}, root)
    harness, truth = write(root)
    dice = random.Random(seed)
    try:
        log = harness.log()
        if dice.random() < 0.5:
            harness.store._parts.segment_files.descriptors.close()
        struck = choose(root, suffix, dice)
        newest = struck.name == Path(log.state.segments[-1].path).name
        blow.strike(struck)
        refused = check(log, truth)
        if suffix != ".log":
            assert not refused
            others_hold(log, truth)
        assert harness.put(records(2, 99)) == truth.end
        harness.store.checkpoint()
        before, refused = refused, check(log, truth)
        # A write behind a cut leaves a hole of zeros; where zeros were cut, that mends it.
        assert refused == before or (blow.kind == "cut" and refused < before)
        lost = newest and not struck.exists()  # and with it what was written to it since
        harness.crash()
        log = harness.log()
        assert check(log, truth) >= refused
        if lost:
            with pytest.raises(CorruptLog, match="is missing"):
                log.read(truth.end, max_bytes=1, end_offset=1 << 60)
            assert harness.put(records(1, 100)) == truth.end + 2
            truth = truth._replace(end=truth.end + 2)
        assert log.read(truth.end, max_bytes=1, end_offset=1 << 60).next_offset > truth.end
    finally:
        harness.store.close()


BLOWS, SEEDS = blows(*ALL_KINDS), st.integers(0, 1 << 16)
Factory = pytest.TempPathFactory


@pytest.mark.parametrize("suffix", [*SUFFIXES, *SMALL_FILES])
@given(blow=BLOWS, seed=SEEDS)
@settings(max_examples=15)
def test_damage_at_a_start(
    tmp_path_factory: Factory, written: Stored, suffix: str, blow: Blow, seed: int
) -> None:
    root = tmp_path_factory.getbasetemp() / "at-a-start"
    damaged_at_a_start(root, written, suffix, blow, seed)


def test_a_base_offset_behind_damage_that_is_none(tmp_path: Path) -> None:
    """Zeros end within a batch's base offset, which has no checksum: it would be read elsewhere."""
    damaged_while_open(tmp_path, ".log", Blow("zeros", 0.0234375, 1), 1)


def test_a_base_offset_beyond_the_range_of_the_index(tmp_path: Path, written: Stored) -> None:
    damaged_at_a_start(tmp_path, written, ".log", Blow("flip", 0.404296875, 1), 1)


def test_an_epoch_above_the_newest_known_one(tmp_path: Path, written: Stored) -> None:
    """A segment of one batch, whose header alone would not be believed."""
    blow = Blow("flip", 0.8125, 4)
    damaged_at_a_start(tmp_path, written, "leader-epoch-checkpoint", blow, 0)


def test_a_file_that_goes_while_it_is_written_to(tmp_path: Path) -> None:
    damaged_while_open(tmp_path, ".log", Blow("gone", 0, 1), 1685)


def test_a_cut_of_zeros_is_mended_by_the_next_write(tmp_path: Path) -> None:
    damaged_while_open(tmp_path, ".log", Blow("cut", 0.9999999999999998, 1), 8811)


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("suffix", [*SUFFIXES, *SMALL_FILES])
@given(blow=BLOWS, seed=SEEDS)
@settings(max_examples=400)
def test_much_damage_at_a_start(
    tmp_path_factory: Factory, written: Stored, suffix: str, blow: Blow, seed: int
) -> None:
    root = tmp_path_factory.getbasetemp() / "much-at-a-start"
    damaged_at_a_start(root, written, suffix, blow, seed)


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(blow=BLOWS, seed=SEEDS)
@settings(max_examples=8)
def test_damage_while_it_is_open(
    tmp_path_factory: Factory, suffix: str, blow: Blow, seed: int
) -> None:
    damaged_while_open(tmp_path_factory.getbasetemp() / "while-open", suffix, blow, seed)


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("suffix", SUFFIXES)
@given(blow=BLOWS, seed=SEEDS)
@settings(max_examples=200)
def test_much_damage_while_it_is_open(
    tmp_path_factory: Factory, suffix: str, blow: Blow, seed: int
) -> None:
    damaged_while_open(tmp_path_factory.getbasetemp() / "much-while-open", suffix, blow, seed)
