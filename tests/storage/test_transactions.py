"""Transactions in logs, and what the batches say, over crashes, checkpoints, cuts, retention."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.records import CorruptBatch, seal, split_batches, stamp
from penstock.records.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    TransactionalBatch,
    TransactionCoordinatorFenced,
)
from penstock.records.header import TRANSACTIONAL_FLAG
from penstock.records.transactions import UNGUARDED, AbortedTransaction, Marker, encode_marker
from penstock.storage import LogConfig
from penstock.storage.files.transaction_index import TransactionIndex
from tests.faulty_files import FaultyFiles
from tests.storage.batches import Harness, abandon, batch, read_all
from tests.storage.transactions import Transactional

DAY_MS = 86_400_000


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_the_log_knows_its_transactions(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    place = Transactional(tmp_path)
    for _ in range(250):
        producer_id = dice.randrange(6)
        step = dice.choice(
            ["put"] * 9 + ["end"] * 6 + ["checkpoint"] * 2 + ["crash", "reopen", "cut", "start"]
        )
        if step == "put":
            place.put(producer_id, dice.randint(1, 4))
        elif step == "end":
            place.end(producer_id, commit=dice.random() < 0.5)
        elif step == "checkpoint":
            place.harness.store.checkpoint()
        elif step == "crash":
            place.harness.crash()
        elif step == "reopen":
            place.harness.reopen()
        elif step == "start" and dice.random() < 0.5:
            log = place.log
            log.delete_records(dice.randint(log.log_start_offset, log.durable_offset))
            place.harness.clock.ms += DAY_MS // 4
            place.harness.store.housekeeping(place.harness.clock.ms)
        elif step == "cut" and dice.random() < 0.5:
            log = place.log
            place.cut(max(log.log_start_offset, log.log_end_offset - dice.randint(1, 9)))
        place.check()
    place.harness.store.close()


@pytest.mark.parametrize("policy", ["group", "os"])
def test_a_damaged_index_is_rebuilt(tmp_path: Path, policy: str) -> None:
    place = Transactional(tmp_path, log_flush_policy=policy)
    for number in range(30):
        place.put(number % 4)
        place.put((number + 1) % 4)
        place.end(number % 4, commit=number % 3 == 0)
    place.harness.store.close()
    files = sorted(tmp_path.glob("orders-0/*.txnindex"))
    assert len(files) > 3
    for damaged in files:
        whole = damaged.read_bytes()
        damaged.write_bytes(whole[:-5] if len(whole) > 34 else b"\xff" * 34)
        place.harness.reopen()
        place.check()
        assert damaged.read_bytes() == whole
        place.harness.store.close()


def test_kafkas_entries() -> None:
    index = TransactionIndex()
    index.add(AbortedTransaction(7, 10, 20, 21))
    index.add(AbortedTransaction(8, 15, 30, 12))
    assert index.entries.hex() == (
        "0000" "0000000000000007" "000000000000000a" "0000000000000014" "0000000000000015"
        "0000" "0000000000000008" "000000000000000f" "000000000000001e" "000000000000000c"
    )  # fmt: skip
    assert index.find(0, 40) == ([index.at(0), index.at(1)], False)
    assert index.find(0, 20) == ([index.at(0)], True)
    assert index.find(21, 15) == ([], False)
    assert index.find(21, 12) == ([], True)
    assert index.doubt(20) is None
    assert index.doubt(21) is not None
    index.cut(30)
    assert len(index) == 1
    assert TransactionIndex(bytes(34 * 2)).doubt(0) is not None
    partial = "33 bytes are not a multiple of the entry size 34"
    assert TransactionIndex(bytes(33)).doubt(0) == partial
    assert TransactionIndex(b"\1" + bytes(33)).doubt(0) == "an entry has version 256, not 0"


def test_the_log_rejects_invalid_markers(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    log = harness.log()
    sent = batch(producer_id=3, epoch=2, sequence=0, attributes=TRANSACTIONAL_FLAG)
    with pytest.raises(TransactionalBatch, match="no transactional id"):
        log.append(sent, now_ms=1)
    plain = batch(producer_id=3, epoch=2, sequence=1)
    with pytest.raises(InvalidTxnState, match="lacks the transactional flag"):
        log.append(plain, now_ms=1, guard=UNGUARDED)
    assert log.append(sent, now_ms=1, guard=UNGUARDED).base_offset == 0
    assert log.append(sent, now_ms=1, guard=UNGUARDED).duplicate
    with pytest.raises(InvalidTxnState, match="open transaction since offset 0"):
        log.append(plain, now_ms=1)
    marker = Marker(3, 2, 5, commit=True)
    with pytest.raises(InvalidProducerEpoch):
        log.transactions.append_marker(marker._replace(producer_epoch=1), now_ms=1)
    assert log.transactions.append_marker(marker, now_ms=1).base_offset == 1
    with pytest.raises(TransactionCoordinatorFenced):
        log.transactions.append_marker(marker._replace(coordinator_epoch=4), now_ms=1)
    assert log.append(plain, now_ms=1).base_offset == 2
    bumped = Marker(3, 3, 5, commit=False, transaction_version=2)
    assert log.transactions.append_marker(bumped, now_ms=1).base_offset == 3
    assert log.transactions.append_marker(bumped, now_ms=1).duplicate
    with pytest.raises(InvalidProducerEpoch):
        log.append(batch(producer_id=3, epoch=2, sequence=2), now_ms=1)
    assert harness.commit() is None
    assert log.transactions.aborted(0, 9) == []
    harness.store.close()


def test_failed_appends_leave_no_transaction_state(tmp_path: Path) -> None:
    files = FaultyFiles()
    place = Transactional(tmp_path, files=files)
    place.harness.config = LogConfig()
    place.put(1)
    place.put(2)
    place.end(2, commit=False)
    place.check()
    kept = list(place.history)
    place.put(3, commit=False)
    place.end(1, commit=False, durable=False)
    place.put(1, commit=False)
    place.harness.append(batch(size=300_000))
    place.harness.append(batch(size=300_000))
    files.room = 0
    assert place.harness.commit() is not None
    files.room = None
    place.history = kept
    place.check()
    place.put(1)
    place.end(1, commit=False)
    place.check()
    place.harness.store.close()


def test_idle_producers_with_an_open_transaction_are_kept(tmp_path: Path) -> None:
    place = Transactional(tmp_path)
    place.put(1)
    place.put(2)
    place.end(2, commit=True)
    place.harness.clock.ms += 30 * DAY_MS
    place.harness.store.housekeeping(place.harness.clock.ms)
    assert [producer.producer_id for producer in place.log.producers()] == [1]
    place.check()
    place.harness.store.close()


def test_a_replica_has_its_leaders_transaction_state(tmp_path: Path) -> None:
    """Mirror a log's open transactions from its stamped batches and markers."""
    leader = Transactional(tmp_path / "leader")
    for number in range(40):
        leader.put(number % 5, 2)
        if number % 2:
            leader.end(number % 3, commit=number % 4 == 1)
    data = read_all(leader.log)
    follower = Transactional(tmp_path / "follower")
    follower.history = leader.history
    for header in split_batches(data):
        start = sum(earlier.size_bytes for earlier in split_batches(data) if earlier < header)
        one = memoryview(data)[start : start + header.size_bytes]
        follower.log.replica.append(one, now_ms=leader.harness.clock.ms)
    assert follower.harness.commit() is None
    follower.check()
    assert follower.log.producers() == leader.log.producers()
    follower.harness.crash()
    follower.check()
    follower.cut(follower.log.log_end_offset // 2)
    follower.check()
    leader.harness.store.close()
    follower.harness.store.close()


def test_a_restarted_log_receives_open_transactions(tmp_path: Path) -> None:
    leader = Transactional(tmp_path / "leader")
    leader.put(1)
    leader.put(2)
    start = leader.put(3)
    leader.end(2, commit=True)
    told = leader.log.replica.producers_below(start)
    follower = Transactional(tmp_path / "follower")
    follower.log.replica.start_at(start, producers=told, floor=0)
    assert follower.harness.commit() is None
    for _ in range(2):
        known = {
            producer.producer_id: producer.txn_start_offset for producer in follower.log.producers()
        }
        assert known == {1: 0, 2: -1}
        follower.harness.crash()
    leader.harness.store.close()
    follower.harness.store.close()


def test_a_control_batch_that_is_no_marker_is_not_taken_from_a_leader(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    data = encode_marker(Marker(1, 0, 0, commit=True), 5)
    data[69] = 9
    seal(data)
    stamp(memoryview(data), 0, 0, len(data) - 12, 1)
    with pytest.raises(CorruptBatch, match="not a transaction marker"):
        harness.log().replica.append(memoryview(data), now_ms=1)
    assert harness.log().log_end_offset == 0
    abandon(harness.store)


def test_markers_have_a_time(tmp_path: Path) -> None:
    place = Transactional(tmp_path)
    place.harness.clock.ms = 5000
    place.put(1)
    place.end(1, commit=True)
    assert place.log.offset_of_max_timestamp() == (1, 5000, 0)
    assert place.log.offset_for_timestamp(4000) == (1, 5000, 0)
    assert place.log.offset_for_timestamp(5001) is None
    place.harness.store.close()
