"""Faults planted in a log's files are found, distinguished from a crash, and repaired."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.records import seal, split_batches
from penstock.records.transactions import UNGUARDED, Marker
from penstock.storage import LogConfig, StoreLocked
from penstock.storage.files.epochs import encode_epochs
from penstock.storage.files.producers import decode_snapshot, encode_snapshot
from penstock.storage.inspection.directories import BatchVerifier, partitions_of
from penstock.storage.inspection.dumping import rows_of
from penstock.storage.inspection.repair import NotRepaired, Step, repair_store
from penstock.storage.inspection.stores import verify_store
from tests.broker.transactions import plain, sent
from tests.storage.batches import Harness, abandon, read_all

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=200, retention_ms=-1)


def everything(where: object) -> bool:
    return True


def written(directory: Path, rounds: int = 80) -> Harness:
    """A log of several segments: producers with sequences, transactions that end either way."""
    harness = Harness(directory, config=CONFIG)
    log = harness.log()
    sequences = dict.fromkeys(range(4), 0)
    for number in range(rounds):
        producer, harness.clock.ms = number % 4, harness.clock.ms + 10
        values = [b"value %d" % number] * (1 + number % 3)
        made = plain if producer == 3 else sent
        data = bytearray(made(*values, producer_id=producer, sequence=sequences[producer]))
        struct.pack_into(">qq", data, 27, harness.clock.ms, harness.clock.ms)
        seal(data)
        sequences[producer] += len(values)
        guard = None if producer == 3 else UNGUARDED
        log.append(memoryview(data), now_ms=harness.clock.ms, guard=guard)
        if producer != 3 and number % 2:
            marker = Marker(producer, 0, 1, number % 3 == 0)
            log.transactions.append_marker(marker, now_ms=harness.clock.ms)
        assert harness.commit() is None
    return harness


def verified(root: Path, *, live: bool = False) -> BatchVerifier:
    verifier = BatchVerifier()
    verify_store(str(root), everything, verifier, live=live)
    return verifier


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    written(tmp_path).store.close()
    return tmp_path


def middle(root: Path, suffix: str) -> Path:
    """A file of a segment that is neither the first nor the last one."""
    found = [path for path in sorted((root / "orders-0").glob(f"*{suffix}"))]
    return found[len(found) // 2] if len(found) > 1 else found[0]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


def rot_of_a_record(root: Path) -> str:
    flip(middle(root, ".log"), 70)
    return "batch"


def rot_of_a_length(root: Path) -> str:
    path = middle(root, ".log")
    first = split_batches(path.read_bytes())[0]
    flip(path, first.size_bytes + 8)  # the length of the second batch
    return "batch"


def an_entry_of_an_index(root: Path) -> str:
    flip(middle(root, ".index"), 7)
    return "index"


def an_entry_of_a_time_index(root: Path) -> str:
    flip(middle(root, ".timeindex"), 6)
    return "timeindex"


def an_index_of_another_segment(root: Path) -> str:
    middle(root, ".index").write_bytes(
        (sorted((root / "orders-0").glob("*.index"))[0]).read_bytes()
    )
    path = middle(root, ".index")
    path.write_bytes(path.read_bytes() + struct.pack(">ii", 2**30, 2**30))
    return "index"


def an_aborted_transaction_less(root: Path) -> str:
    path = middle(root, ".txnindex")
    path.write_bytes(path.read_bytes()[34:])
    return "txnindex"


def an_aborted_transaction_of_another(root: Path) -> str:
    flip(middle(root, ".txnindex"), 9)
    return "txnindex"


def rot_of_a_snapshot(root: Path) -> str:
    flip(middle(root, ".snapshot"), 20)
    return "snapshot"


def a_sequence_in_a_snapshot(root: Path) -> str:
    path = middle(root, ".snapshot")
    first, *others = decode_snapshot(path.read_bytes())
    first = first._replace(last_sequence=first.last_sequence + 1)
    path.write_bytes(encode_snapshot([first, *others]))
    return "snapshot"


def epochs_of_others(root: Path) -> str:
    (root / "orders-0" / "leader-epoch-checkpoint").write_bytes(encode_epochs([(3, 0)]))
    return "epochs"


REPAIRED = (
    rot_of_a_record, rot_of_a_length, an_entry_of_an_index, an_entry_of_a_time_index,
    an_index_of_another_segment, an_aborted_transaction_less, an_aborted_transaction_of_another,
    rot_of_a_snapshot, a_sequence_in_a_snapshot, epochs_of_others,
)  # fmt: skip


def test_a_cleanly_closed_store_has_no_findings(root: Path) -> None:
    found = verified(root)
    assert (found.findings, found.notes) == ([], [])
    (files,) = partitions_of(str(root), everything)
    assert len(files.segments) > 3
    assert found.entries > 10
    assert found.batches == sum(
        len(split_batches(path.read_bytes())) for path in (root / "orders-0").glob("*.log")
    )


@pytest.mark.parametrize("plant", REPAIRED)
def test_a_planted_fault_is_found_and_repaired(root: Path, plant: Callable[[Path], str]) -> None:
    kind = plant(root)
    found = verified(root)
    assert {finding.kind for finding in found.findings} == {kind}
    assert all("orders-0" in finding.place for finding in found.findings)
    before = contents(root)
    planned: list[Step] = []
    repair_store(str(root), everything, perform=False, report=planned.append)
    assert contents(root) == before
    assert planned
    performed: list[Step] = []
    repair_store(str(root), everything, perform=True, report=performed.append)
    after = contents(root)
    kept = {data for name, data in after.items() if name.endswith(".quarantined")}
    changed = [name for name, data in before.items() if after.get(name) != data]
    assert changed
    for name in changed:
        assert before[name] in kept or name == "partitions.checkpoint", name
    assert verified(root).findings == []
    again: list[Step] = []
    repair_store(str(root), everything, perform=True, report=again.append)
    assert again == []


@pytest.mark.parametrize("plant", [rot_of_a_record, rot_of_a_length])
def test_a_repaired_log_is_read_around_the_gap(root: Path, plant: Callable[[Path], str]) -> None:
    whole = [
        (header.base_offset, header.crc)
        for path in sorted((root / "orders-0").glob("*.log"))
        for header in split_batches(path.read_bytes())
    ]
    plant(root)
    repair_store(str(root), everything, perform=True, report=lambda step: None)
    harness = Harness(root, config=CONFIG)
    data = read_all(harness.log(), max_bytes=1 << 20)
    left = [(header.base_offset, header.crc) for header in split_batches(data)]
    assert len(whole) - 4 <= len(left) < len(whole)  # the index knows where it goes on
    assert set(left) < set(whole)
    assert harness.put(memoryview(bytearray(plain(b"next", producer_id=9)))) > whole[-1][0]
    harness.store.close()
    assert verified(root).findings == []


def test_rot_in_the_newest_segment_is_quarantined_and_appends_continue(root: Path) -> None:
    path = sorted((root / "orders-0").glob("*.log"))[-1]
    last = split_batches(path.read_bytes())[-1]
    flip(path, path.stat().st_size - 3)
    repair_store(str(root), everything, perform=True, report=lambda step: None)
    assert verified(root).findings == []
    harness = Harness(root, config=CONFIG)
    assert harness.log().log_end_offset == last.next_offset
    assert harness.put(memoryview(bytearray(plain(b"next", producer_id=9)))) == last.next_offset
    harness.store.close()
    assert verified(root).findings == []


@pytest.mark.parametrize("steps", range(1, 4))
def test_a_repair_that_is_broken_off_is_run_again(root: Path, steps: int) -> None:
    path = sorted((root / "orders-0").glob("*.log"))[-1]
    flip(path, path.stat().st_size - 3)
    left = [steps]

    def interrupt(step: Step) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repair_store(str(root), everything, perform=True, report=interrupt)
    repair_store(str(root), everything, perform=True, report=lambda step: None)
    assert verified(root).findings == []
    harness = Harness(root, config=CONFIG)
    harness.put(memoryview(bytearray(plain(b"next", producer_id=9))))
    harness.store.close()


def test_lost_batches_are_found(root: Path) -> None:
    segments = sorted((root / "orders-0").glob("*.log"))
    os.truncate(segments[-1], segments[-1].stat().st_size - 1)
    assert {finding.kind for finding in verified(root).findings} >= {"batch", "checkpoint"}
    segments[-1].unlink()
    (lost, *_) = [finding for finding in verified(root).findings if finding.kind == "checkpoint"]
    assert "is missing" in lost.reason
    segments[1].unlink()
    gaps = [finding for finding in verified(root).findings if finding.kind == "offsets"]
    assert [gap.base_offset for gap in gaps] == [int(segments[1].stem)]
    segments[0].unlink()
    assert any(
        "the log begins at offset 0" in finding.reason for finding in verified(root).findings
    )


def test_a_crash_is_no_damage_and_is_not_repaired(tmp_path: Path) -> None:
    harness = written(tmp_path)
    harness.store.checkpoint()
    harness.put(memoryview(bytearray(plain(b"behind the checkpoint", producer_id=8))))
    abandon(harness.store)
    found = verified(tmp_path)
    assert found.findings == []
    with pytest.raises(NotRepaired, match="Start its broker and stop it"):
        repair_store(str(tmp_path), everything, perform=True, report=lambda step: None)


def test_the_journal_of_a_crashed_store_is_compared(tmp_path: Path) -> None:
    harness = written(tmp_path)
    harness.store.checkpoint()
    data = plain(b"in the journal alone", producer_id=8)
    harness.put(memoryview(bytearray(data)))
    for producer_id in 10, 11, 12:
        harness.put(memoryview(bytearray(plain(b"more", producer_id=producer_id))))
    abandon(harness.store)
    waiting = [note for note in verified(tmp_path).notes if note.kind == "journal"]
    assert len(waiting) == 1
    assert str(len(data) + 3 * len(plain(b"more"))) in waiting[0].reason
    (journal, *_) = sorted((tmp_path / "journal").iterdir())
    entries = {row["sequence"]: row["position"] for row in rows_of(str(journal))}
    flip(journal, entries[max(entries) - 2] + 60)  # a later one says that it was synced
    assert any(finding.kind == "journal" for finding in verified(tmp_path).findings)


def test_a_running_store_is_looked_at_and_not_repaired(tmp_path: Path) -> None:
    harness = written(tmp_path)
    found = verified(tmp_path, live=True)
    assert found.findings == []
    with pytest.raises(StoreLocked):
        repair_store(str(tmp_path), everything, perform=True, report=lambda step: None)
    harness.store.close()


def test_every_file_is_shown(root: Path) -> None:
    shown = {
        path.name: list(rows_of(str(path)))
        for path in [*(root / "orders-0").iterdir(), root / "partitions.checkpoint"]
        if path.suffix != ".log"
    }
    assert {Path(name).suffix or name for name in shown} >= {
        ".index", ".timeindex", ".txnindex", ".snapshot", ".batches", "leader-epoch-checkpoint",
        ".metadata", ".checkpoint",
    }  # fmt: skip
    assert all(rows for name, rows in shown.items() if name.endswith(("index", "batches")))
