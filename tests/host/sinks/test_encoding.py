"""Frames as batches: what they hold, what identifies them, how large they may be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.producer_partitions import Pieces
from penstock.host import errors as host_limits
from penstock.host.port import ChunkFormat
from penstock.host.sinks.log import (
    LOG_MESSAGE_BYTES_MAX,
    encode_opaque,
    frame_bytes_max,
    stamp_batches,
)
from penstock.records import InvalidRecord, RecordTooLarge, decode_header, verify_crc
from penstock.records.columnar import decode_batches
from tests.host.sinks.frames import NOW_MS, batch, frame

MOST = LOG_MESSAGE_BYTES_MAX


def whole(pieces: Pieces) -> bytes:
    return bytes(pieces.data) + bytes(pieces.tail or b"")


@settings(max_examples=150, deadline=None)
@given(
    chunks=st.lists(st.binary(max_size=300), min_size=1, max_size=60),
    gap=st.sampled_from([b"", b"-", b"-----"]),
    sequence=st.sampled_from([-1, 0, 5, 2**31 - 1]),
)
def test_each_chunk_is_a_record(chunks: list[bytes], gap: bytes, sequence: int) -> None:
    made = frame(chunks, gap=gap, producer_id=7, producer_epoch=2, log_sequence=sequence)
    (pieces,) = encode_opaque(made, now_ms=NOW_MS, message_bytes_max=MOST)
    data = whole(pieces)
    header = decode_header(data)
    verify_crc(data, header)
    assert pieces.record_count == header.record_count == len(chunks)
    identity = (header.producer_id, header.producer_epoch, header.base_sequence)
    assert identity == ((7, 2, sequence) if sequence >= 0 else (-1, -1, -1))
    assert (header.base_timestamp, header.max_timestamp) == (NOW_MS, NOW_MS)
    table = decode_batches(data, columns=("key", "value"))
    assert table.column("value").to_pylist() == chunks
    assert table.column("key").null_count == len(chunks)


def test_encoding_again_at_another_time_takes_the_same_sequences() -> None:
    made = frame([b"one", b"two"], log_sequence=40)
    first, again = (
        decode_header(whole(encode_opaque(made, now_ms=now, message_bytes_max=MOST)[0]))
        for now in (NOW_MS, NOW_MS + 60_000)
    )
    assert first.base_sequence == again.base_sequence
    assert first.last_sequence == again.last_sequence
    assert first.base_timestamp != again.base_timestamp


def test_the_largest_frame_fits_however_it_is_cut() -> None:
    most = frame_bytes_max(MOST)
    assert most > 1_000_000
    content = memoryview(bytes(most))
    for count in (1, 2, 120, 130, 1000, host_limits.CHUNKS_PER_FRAME_MAX):
        even = [most // count] * (count - 1)
        for sizes in (
            [*even, most - sum(even)],
            [*[0] * (count - 1), most],
            [*[min(8192, most // count)] * (count - 1)],
        ):
            made = frame([content[:size] for size in sizes or [most]], payload=content)
            (pieces,) = encode_opaque(made, now_ms=NOW_MS, message_bytes_max=MOST)
            assert len(whole(pieces)) <= MOST


@settings(max_examples=60, deadline=None)
@given(
    long_values=st.integers(0, 122),
    count=st.integers(1, host_limits.CHUNKS_PER_FRAME_MAX),
    seed=st.integers(0, 2**16),
)
def test_the_largest_frame_fits_for_any_lengths(long_values: int, count: int, seed: int) -> None:
    most = frame_bytes_max(MOST)
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, 300, count)
    lengths[: min(long_values, count)] = generator.integers(8_150, 8_250)
    while lengths.sum() > most:
        lengths //= 2
    lengths[-1] += most - lengths.sum()
    content = memoryview(bytes(most))
    made = frame([content[:size] for size in lengths.tolist()], payload=content)
    (pieces,) = encode_opaque(made, now_ms=NOW_MS, message_bytes_max=MOST)
    assert len(whole(pieces)) <= MOST


def test_a_batch_above_the_limit_is_refused() -> None:
    with pytest.raises(RecordTooLarge, match="the limit is 1000 bytes"):
        encode_opaque(frame([bytes(1000)]), now_ms=NOW_MS, message_bytes_max=1000)
    with pytest.raises(InvalidRecord, match="too small"):
        frame_bytes_max(1000)


def test_stamping_does_not_copy_records() -> None:
    content = memoryview(bytearray(batch([b"x" * 1000] * 3)))
    made = frame(
        [content], payload=content, event_count=3, producer_id=9, log_sequence=12,
        format=ChunkFormat.RECORD_BATCH,
    )  # fmt: skip
    (pieces,) = stamp_batches(made, message_bytes_max=MOST)
    assert pieces.tail is not None
    assert pieces.tail.obj is content.obj
    data = whole(pieces)
    header = decode_header(data)
    verify_crc(data, header)
    assert (header.producer_id, header.base_sequence) == (9, 12)
    assert data[61:] == bytes(content[61:])
