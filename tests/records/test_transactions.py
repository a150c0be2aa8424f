"""Markers: Kafka's bytes, what is refused, and what a producer is after one."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records import CorruptBatch, InvalidRecord, split_batches, validate_batch, verify_crc
from penstock.records.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from penstock.records.idempotence import (
    Producer,
    ProducerBatch,
    appended,
    check_marker,
    check_transaction,
    decided,
    described,
    original,
)
from penstock.records.transactions import Marker, decode_marker, encode_marker

MARKER = Marker(producer_id=7, producer_epoch=3, coordinator_epoch=9, commit=True)


def batch_at(first_sequence: int, first_offset: int, count: int = 1) -> ProducerBatch:
    last = first_offset + count - 1
    return ProducerBatch(first_sequence, first_sequence + count - 1, last, count - 1, 0)


def test_a_marker_has_kafkas_bytes() -> None:
    data = bytes(encode_marker(MARKER, 1000))
    # Length, attributes, deltas; key of 4 bytes: version, type; value: version, epoch; headers.
    assert data[61:].hex() == "2000000008000000010c00000000000900"
    abort = bytes(encode_marker(MARKER._replace(commit=False), 1000))
    assert abort[61:].hex() == "2000000008000000000c00000000000900"
    (header,) = split_batches(data)
    verify_crc(data, header)
    assert header.attributes == 0x30
    assert header[9:] == (7, 3, -1, 1)
    assert header.base_timestamp == header.max_timestamp == 1000
    with pytest.raises(InvalidRecord, match="control batches"):
        validate_batch(header._replace(base_sequence=0), transactional=True)


@given(
    st.builds(
        Marker,
        producer_id=st.integers(0, 2**63 - 1),
        producer_epoch=st.integers(0, 2**15 - 1),
        coordinator_epoch=st.integers(-1, 2**31 - 1),
        commit=st.booleans(),
        transaction_version=st.just(1),
    )
)
def test_a_marker_is_read_as_written(marker: Marker) -> None:
    data = encode_marker(marker, 5)
    (header,) = split_batches(data)
    assert decode_marker(bytes(data) + b"behind", header) == marker


def test_markers_with_longer_keys_and_values_are_read() -> None:
    (header,) = split_batches(bytes(encode_marker(MARKER, 1000)))
    record = bytes.fromhex("0000000c000000010000120001000000090000000000")
    data = bytes(61) + bytes([2 * len(record)]) + record
    assert decode_marker(data, header) == MARKER


def test_a_marker_that_is_changed_leaves_those_of_other_partitions() -> None:
    encode_marker(MARKER, 1000)[:8] = bytes([255] * 8)
    assert encode_marker(MARKER, 1000)[:8] == bytes(8)


def test_what_is_no_marker_is_refused() -> None:
    data = bytes(encode_marker(MARKER, 5))
    (header,) = split_batches(data)
    for size in range(61, len(data) - 1):
        with pytest.raises(CorruptBatch, match="at offset 0 is not a transaction marker"):
            decode_marker(data[:size], header)
    other = bytearray(data)
    struct.pack_into(">h", other, 68, 2)
    with pytest.raises(CorruptBatch, match="key version 0, type 2"):
        decode_marker(other, header)
    with pytest.raises(CorruptBatch, match="does not end"):
        decode_marker(data[:61] + b"\xff" * 40, header)


def test_a_transaction_begins_with_its_first_batch_and_ends_with_its_marker() -> None:
    one = appended(None, 3, batch_at(0, 10, 2), 1, 10)
    two = appended(one, 3, batch_at(2, 15), 2, 15)
    assert (one.txn_first_offset, two.txn_first_offset) == (10, 10)
    check_transaction(two, 7, transactional=True)
    with pytest.raises(InvalidTxnState, match="open transaction since offset 10"):
        check_transaction(two, 7, transactional=False)
    assert described(7, two) == (7, 3, 2, 2, 15, -1, 10)
    assert not check_marker(two, MARKER)
    ended = decided(two, MARKER, 5)
    assert ended == Producer(3, two.batches, 5, 9, -1)
    check_transaction(ended, 7, transactional=False)
    assert appended(ended, 3, batch_at(3, 30), 6, 30)[3:] == (9, 30, -1)
    assert original(ended, 7, 3, 3, 3) is None
    assert original(ended, 7, 3, 2, 2) == batch_at(2, 15), "it may still be sent again"


def test_a_marker_of_a_newer_epoch_fences_and_resets_sequences() -> None:
    open_one = appended(None, 3, batch_at(0, 10, 2), 1, 10)
    ended = decided(open_one, MARKER._replace(producer_epoch=4), 5)
    assert ended == Producer(4, (), 5, 9, -1)
    with pytest.raises(InvalidProducerEpoch):
        original(ended, 7, 3, 2, 2)
    with pytest.raises(OutOfOrderSequence, match="expected 0"):
        original(ended, 7, 4, 2, 2)
    assert original(ended, 7, 4, 0, 0) is None
    assert described(7, ended) == (7, 4, -1, 5, -1, 9, -1)
    assert decided(None, MARKER, 5) == Producer(3, (), 5, 9, -1)


def test_what_is_newer_refuses_a_marker() -> None:
    known = Producer(3, (), 5, 9, -1)
    assert not check_marker(None, MARKER)
    assert not check_marker(known, MARKER)
    with pytest.raises(InvalidProducerEpoch, match="epoch 2, but the partition has seen epoch 3"):
        check_marker(known, MARKER._replace(producer_epoch=2))
    with pytest.raises(TransactionCoordinatorFenced, match="epoch 8, but the partition has seen 9"):
        check_marker(known, MARKER._replace(coordinator_epoch=8))


def test_of_version_two_a_marker_is_there_once_its_epoch_is() -> None:
    marker = MARKER._replace(transaction_version=2, producer_epoch=4)
    open_one = appended(None, 3, batch_at(0, 10, 2), 1, 10)
    assert not check_marker(open_one, marker)
    ended = decided(open_one, marker, 5)
    assert check_marker(ended, marker)
    # Sent again late, it must not end the next transaction, which has that epoch.
    next_one = appended(ended, 4, batch_at(0, 20), 6, 20)
    assert check_marker(next_one, marker)
