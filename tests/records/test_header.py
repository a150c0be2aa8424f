"""The batch header: its layout, what is refused, and stamping in place."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.crc import crc32c
from penstock.records import (
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    InvalidRecord,
    LegacyBatch,
    TransactionalBatch,
    UnsupportedCodec,
    decode_header,
    encode_header,
    seal,
    split_batches,
    stamp,
    stamp_append_time,
    stamp_identity,
    validate_batch,
    verify_crc,
)

HEADER = BatchHeader(
    base_offset=0,
    batch_length=49 + 7,
    partition_leader_epoch=-1,
    magic=2,
    crc=0,
    attributes=0,
    last_offset_delta=0,
    base_timestamp=1_000,
    max_timestamp=1_000,
    producer_id=-1,
    producer_epoch=-1,
    base_sequence=-1,
    record_count=1,
)


def batch(header: BatchHeader = HEADER) -> bytearray:
    """A batch of the header's size whose records are zeros."""
    data = bytearray(encode_header(header)) + bytes(header.size_bytes - HEADER_BYTES)
    seal(data)
    return data


def test_checksum() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(b"6789"), crc32c(bytearray(b"12345"))) == 0xE3069283


@given(
    st.builds(
        BatchHeader,
        base_offset=st.integers(0, 2**62),
        batch_length=st.integers(49, 2**31 - 1),
        partition_leader_epoch=st.integers(-1, 2**31 - 1),
        magic=st.just(2),
        crc=st.integers(0, 2**32 - 1),
        attributes=st.integers(-(2**15), 2**15 - 1),
        last_offset_delta=st.integers(0, 2**31 - 1),
        base_timestamp=st.integers(-(2**63), 2**63 - 1),
        max_timestamp=st.integers(-(2**63), 2**63 - 1),
        producer_id=st.integers(-1, 2**63 - 1),
        producer_epoch=st.integers(-1, 2**15 - 1),
        base_sequence=st.integers(-1, 2**31 - 1),
        record_count=st.integers(0, 2**31 - 1),
    )
)
def test_round_trip(header: BatchHeader) -> None:
    data = encode_header(header)
    assert len(data) == HEADER_BYTES
    assert decode_header(b"xyz" + data + b"trailing", 3) == header
    for end in range(HEADER_BYTES):
        with pytest.raises(CorruptBatch):
            decode_header(data[:end])


def test_properties() -> None:
    header = HEADER._replace(
        base_offset=100, last_offset_delta=9, attributes=0x3C, base_sequence=2**31 - 5
    )
    assert (header.size_bytes, header.last_offset, header.next_offset) == (68, 109, 110)
    assert (header.codec, header.timestamp_type) == (4, 1)
    assert header.is_transactional
    assert header.is_control
    assert header.last_sequence == 4
    assert HEADER.last_sequence == -1
    assert HEADER.delete_horizon_ms is None
    assert HEADER._replace(attributes=0x40).delete_horizon_ms == 1_000


@pytest.mark.parametrize("magic", [0, 1])
def test_legacy_formats_are_named(magic: int) -> None:
    data = bytearray(61)
    data[16] = magic
    for size in (61, 30):
        with pytest.raises(LegacyBatch, match=f"magic {magic}, a format from before Kafka 0.11"):
            decode_header(data[:size])


@pytest.mark.parametrize(
    "changes",
    [
        {"magic": 3},
        {"magic": -1},
        {"batch_length": 48},
        {"batch_length": -1},
        {"base_offset": -1},
        {"base_offset": 2**63 - 1},
        {"last_offset_delta": -1},
        {"record_count": -1},
    ],
)
def test_headers_that_cannot_be(changes: dict[str, int]) -> None:
    with pytest.raises(CorruptBatch, match="batch at byte 0"):
        decode_header(encode_header(HEADER._replace(**changes)))


def test_split() -> None:
    data = batch() + batch(HEADER._replace(batch_length=49 + 100)) + batch()
    assert [header.size_bytes for header in split_batches(memoryview(data))] == [68, 161, 68]
    assert split_batches(b"") == []
    for end in range(len(data)):
        if end in (0, 68, 68 + 161):
            continue
        with pytest.raises(CorruptBatch):
            split_batches(data[:end])
    with pytest.raises(CorruptBatch, match="more than 2 batches"):
        split_batches(data, max_batches=2)


def test_every_flipped_byte_fails_the_checksum() -> None:
    data = b"before" + batch()
    header = decode_header(data, 6)
    verify_crc(data, header, 6)
    for position in range(6 + 21, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x40
        with pytest.raises(CorruptBatch, match="its header has"):
            verify_crc(damaged, header, 6)
    with pytest.raises(CorruptBatch, match="but has 67"):
        verify_crc(data[:-1], header, 6)


def test_another_identity_takes_a_head_and_a_checksum_and_no_records() -> None:
    data = memoryview(batch(HEADER._replace(batch_length=49 + 5000)))
    header = decode_header(data)
    head = stamp_identity(data, header, producer_id=7, epoch=3, base_sequence=99)
    stamped = head + bytes(data[HEADER_BYTES:])
    found = decode_header(stamped)
    verify_crc(stamped, found)
    assert found == header._replace(
        crc=found.crc, producer_id=7, producer_epoch=3, base_sequence=99
    )
    damaged = bytearray(stamped)
    damaged[4000] ^= 1
    with pytest.raises(CorruptBatch, match="checksum"):
        verify_crc(damaged, found)


def test_an_identity_does_not_vouch_for_records_that_were_damaged_before() -> None:
    data = batch(HEADER._replace(batch_length=49 + 5000))
    data[4000] ^= 1
    header = decode_header(data)
    head = stamp_identity(memoryview(data), header, producer_id=7, epoch=3, base_sequence=99)
    stamped = head + bytes(data[HEADER_BYTES:])
    with pytest.raises(CorruptBatch, match="checksum"):
        verify_crc(stamped, decode_header(stamped))


def test_stamps_leave_the_checksum_valid() -> None:
    data = batch() + batch()
    stamp(memoryview(data), 68, 2**40, HEADER.batch_length, 7)
    header = decode_header(data, 68)
    assert (header.base_offset, header.partition_leader_epoch) == (2**40, 7)
    assert header.batch_length == HEADER.batch_length
    verify_crc(data, header, 68)
    stamp_append_time(memoryview(data), 68, 123_456)
    stamped = decode_header(data, 68)
    assert (stamped.timestamp_type, stamped.max_timestamp) == (1, 123_456)
    verify_crc(data, stamped, 68)
    assert decode_header(data) == decode_header(batch())
    with pytest.raises(CorruptBatch):
        stamp_append_time(memoryview(data)[:-1], 68, 1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"record_count": 0, "last_offset_delta": 0}, "at least one"),
        ({"record_count": 2}, "must be 1"),
        ({"record_count": 2, "last_offset_delta": 1}, "2 records do not fit into 7 bytes"),
        ({"attributes": 0x20}, "control"),
        ({"attributes": 0x40}, "horizon"),
        ({"producer_id": 5}, "epoch -1"),
        ({"producer_id": -2}, "below -1"),
        ({"max_timestamp": 999}, "maximum timestamp 999"),
    ],
)
def test_what_may_not_be_produced(changes: dict[str, int], reason: str) -> None:
    with pytest.raises(InvalidRecord, match=reason):
        validate_batch(HEADER._replace(**changes))


@pytest.mark.parametrize("producer", [(-1, -1, -1), (5, 0, 0)])
def test_a_transactional_batch_without_a_transaction_is_rejected(
    producer: tuple[int, int, int],
) -> None:
    names = ("producer_id", "producer_epoch", "base_sequence")
    of = dict(zip(names, producer, strict=True))
    with pytest.raises(TransactionalBatch, match="no transactional id"):
        validate_batch(HEADER._replace(attributes=0x10, **of))


def test_what_may_be_produced() -> None:
    validate_batch(HEADER)
    validate_batch(HEADER._replace(max_timestamp=-1))
    for base, maximum in ((-5, -5), (-5, -1), (-5, 0), (-(2**63), -(2**63)), (-5, 9), (-2, -9)):
        validate_batch(HEADER._replace(base_timestamp=base, max_timestamp=maximum))
    validate_batch(HEADER._replace(producer_id=3, producer_epoch=0, base_sequence=0))
    for codec in range(1, 5):
        validate_batch(HEADER._replace(attributes=codec, record_count=99, last_offset_delta=98))
    with pytest.raises(UnsupportedCodec, match="codec 5"):
        validate_batch(HEADER._replace(attributes=5))


def test_a_broker_does_not_load_what_it_does_not_need() -> None:
    code = (
        "import sys, penstock.records\n"
        "print([n for n in ('numpy', 'pyarrow', 'zstandard', 'cramjam', 'lz4') "
        "if n in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert result.stdout.strip() == b"[]", result.stdout
