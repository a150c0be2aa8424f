"""The codec on streams: in pieces, cut off, corrupted, and whatever Hypothesis comes up with."""

from __future__ import annotations

import subprocess
from pathlib import Path
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.crc import crc32c
from penstock.wire.frames import (
    FLAG_PAYLOAD_CRC,
    FLAG_PAYLOAD_IN_RING,
    HEADER_BYTES_MAX,
    PRELUDE_BYTES,
    Frame,
    Header,
    MalformedFrame,
    check_payload,
    decode,
    decode_body,
    decode_prelude,
    encode,
)
from tests.wire.frames.vectors import FRAME_BYTES_MAX, FRAMES

ROOT = Path(__file__).resolve().parents[3]
STREAM = [bytes.fromhex(each["hex"]) for each in FRAMES["frames"]]
UINT32 = st.integers(0, 2**32 - 1)
UINT64 = st.integers(0, 2**64 - 1)
PAYLOAD = b"a payload of a few bytes"


def whole(header: Header, payload: bytes = b"", *, checksum: bool = False) -> bytes:
    return encode(header, [payload], checksum=checksum) + payload


def read_all(data: bytes | bytearray | memoryview) -> tuple[list[Frame], int]:
    """Every frame at the start of `data`, and where the first one that is not whole begins."""
    frames: list[Frame] = []
    at = 0
    while True:
        frame, size = decode(data, at, FRAME_BYTES_MAX)
        if frame is None:
            return frames, at
        frames.append(frame)
        at += size


def same(a: Frame, b: Frame) -> bool:
    return a.header == b.header and a.payload == b.payload and a[2:] == b[2:]


EXPECTED = [read_all(data)[0][0] for data in STREAM]


# Slicing


def test_frames_that_follow_one_another_are_read_one_by_one() -> None:
    data = b"".join(STREAM)
    frames, end = read_all(data)
    assert end == len(data)
    assert len(frames) == len(EXPECTED)
    assert all(map(same, frames, EXPECTED))


def test_a_stream_that_comes_byte_by_byte_gives_the_same_frames() -> None:
    buffer, frames, needed = bytearray(), [], 0
    for byte in b"".join(STREAM):
        buffer.append(byte)
        frame, size = decode(bytes(buffer), 0, FRAME_BYTES_MAX)
        if frame is None:
            assert size > len(buffer), "more is needed than is there"
            assert size >= needed, "what is needed never shrinks"
            needed = size
        else:
            assert size == len(buffer), "a frame is handed out with its last byte"
            frames.append(frame)
            buffer, needed = bytearray(), 0
    assert not buffer
    assert len(frames) == len(EXPECTED)
    assert all(map(same, frames, EXPECTED))


@pytest.mark.parametrize("index", range(len(STREAM)))
def test_a_frame_cut_off_anywhere_says_how_much_it_needs(index: int) -> None:
    data = STREAM[index]
    for size in range(len(data)):
        expected = len(data) if size >= PRELUDE_BYTES else PRELUDE_BYTES
        assert decode(data[:size], 0, FRAME_BYTES_MAX) == (None, expected)


@pytest.mark.parametrize("index", range(len(STREAM)))
def test_bytes_around_a_frame_are_left_alone(index: int) -> None:
    data = STREAM[index]
    frame, size = decode(b"before" + data + b"\xffbehind" * 5, 6, FRAME_BYTES_MAX)
    assert frame is not None
    assert size == len(data)
    assert same(frame, EXPECTED[index])


def test_a_payload_is_a_view_of_what_was_read() -> None:
    buffer = bytearray(whole(Header(type="DATA"), PAYLOAD))
    frame, _ = decode(buffer, 0, FRAME_BYTES_MAX)
    assert frame is not None
    buffer[-1:] = b"!"
    assert bytes(frame.payload) == PAYLOAD[:-1] + b"!"


# Corruption


@pytest.mark.parametrize("bit", range(PRELUDE_BYTES * 8))
@pytest.mark.parametrize("checksum", [True, False])
def test_every_bit_of_the_prelude_matters(bit: int, checksum: bool) -> None:
    """A flipped bit is refused, or asks for bytes that are not there; never another frame."""
    header = Header(type="DATA", first_sequence=7, event_count=1, topic="flights")
    data = bytearray(whole(header, PAYLOAD, checksum=checksum))
    data[bit // 8] ^= 0x80 >> bit % 8
    try:
        frame, size = decode(bytes(data), 0, FRAME_BYTES_MAX)
    except MalformedFrame:
        return
    if frame is None:
        assert size > len(data)
        return
    # Only a shorter frame length leaves a frame: its payload ends early, unless that is checked.
    assert bit < 32
    assert not checksum
    assert size < len(data)
    assert frame.header == header
    assert frame.payload == PAYLOAD[: len(frame.payload)]


@pytest.mark.parametrize("checksum", [True, False])
def test_every_bit_of_the_header_matters(checksum: bool) -> None:
    header = Header(type="DATA", first_sequence=7, event_count=1, topic="flights")
    data = whole(header, PAYLOAD, checksum=checksum)
    for bit in range(PRELUDE_BYTES * 8, (len(data) - len(PAYLOAD)) * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 0x80 >> bit % 8
        with pytest.raises(MalformedFrame, match="header checksum"):
            decode(bytes(changed), 0, FRAME_BYTES_MAX)


def test_every_bit_of_a_checked_payload_matters() -> None:
    data = whole(Header(type="DATA"), PAYLOAD, checksum=True)
    for bit in range((len(data) - len(PAYLOAD)) * 8, len(data) * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 0x80 >> bit % 8
        with pytest.raises(MalformedFrame, match="payload checksum"):
            decode(bytes(changed), 0, FRAME_BYTES_MAX)


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waits_for_more(data: bytes) -> None:
    try:
        frame, size = decode(data, 0, FRAME_BYTES_MAX)
    except MalformedFrame:
        return
    assert frame is None, "a checksum of 32 bits does not come by chance"
    assert len(data) < size <= PRELUDE_BYTES + FRAME_BYTES_MAX


@given(st.binary(min_size=1, max_size=100), st.binary(max_size=30))
def test_a_header_with_a_valid_checksum_may_still_be_garbage(body: bytes, payload: bytes) -> None:
    head = len(body) + len(payload), len(body), 0, 0, crc32c(body), 0
    data = pack(">IHBBII", *head) + body + payload
    try:
        frame, size = decode(data, 0, FRAME_BYTES_MAX)
    except MalformedFrame:
        return
    assert frame is not None
    assert size == len(data)
    assert frame.payload == payload


# Limits


def test_the_limit_is_the_longest_frame_that_is_taken() -> None:
    data = whole(Header(type="DATA"), bytes(1000))
    size = len(data) - PRELUDE_BYTES
    assert decode(data, 0, size)[1] == len(data)
    with pytest.raises(MalformedFrame, match=f"frame length {size} bytes is over the limit"):
        decode(data[:PRELUDE_BYTES], 0, size - 1)


def test_a_header_that_is_too_long_is_not_written() -> None:
    fits = Header(type="DATA_BATCH", lengths=bytes(HEADER_BYTES_MAX - 6))
    assert len(encode(fits)) == PRELUDE_BYTES + HEADER_BYTES_MAX
    fits.lengths += b"\0"
    with pytest.raises(MalformedFrame, match="65536 bytes: must have 1 to 65535"):
        encode(fits)


def test_a_body_may_be_received_apart_from_its_prelude() -> None:
    data = whole(Header(type="DATA", event_count=1), PAYLOAD, checksum=True)
    prelude = decode_prelude(data, 0, FRAME_BYTES_MAX)
    frame = decode_body(prelude, memoryview(data)[PRELUDE_BYTES:])
    assert frame.payload == PAYLOAD
    assert frame.payload_crc == prelude.payload_crc


# Round trips

HEADERS = st.builds(
    Header,
    type=st.integers(1, 10),
    first_sequence=UINT64,
    count=UINT32,
    event_count=UINT64,
    topic=st.text(max_size=20),
    partition=st.none() | UINT32,
    log_sequence=st.none() | UINT32,
    format=st.integers(0, 1),
    lengths=st.binary(max_size=40),
    offsets=st.binary(max_size=40),
    event_counts=st.binary(max_size=40),
    ring_position=UINT64,
    ring_bytes=UINT32,
    ranges=st.lists(UINT64, max_size=8),
    reason=st.text(max_size=20),
    retryable=st.booleans(),
    retry_after_ms=UINT32,
    chunk_slots=UINT32,
    raw_events=UINT64,
    payload_bytes=UINT64,
    producer_id=st.none() | st.integers(-(2**63), 2**63 - 1),
    topics=st.lists(st.text(max_size=5), max_size=4),
    partition_counts=st.lists(UINT32, max_size=4),
    token=UINT64,
)


@given(HEADERS, st.lists(st.binary(max_size=50), max_size=5), st.booleans(), st.booleans())
def test_what_is_written_is_read_back(
    header: Header, pieces: list[bytes], checksum: bool, in_ring: bool
) -> None:
    payload = b"".join(pieces)
    head = encode(header, pieces, checksum=checksum, in_ring=in_ring)
    data = head if in_ring else head + payload
    frame, size = decode(data, 0, FRAME_BYTES_MAX)
    assert frame is not None
    assert size == len(data)
    assert frame.header == header
    assert bool(frame.flags & FLAG_PAYLOAD_CRC) == checksum
    assert bool(frame.flags & FLAG_PAYLOAD_IN_RING) == in_ring
    assert frame.payload == (b"" if in_ring else payload)
    if checksum:
        check_payload(memoryview(payload), frame.payload_crc)


@given(st.lists(st.integers(0, len(STREAM) - 1), max_size=6), st.data())
def test_a_stream_may_be_cut_anywhere(indices: list[int], draw: st.DataObject) -> None:
    data = b"".join(STREAM[index] for index in indices)
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=8)))
    frames, buffer = [], b""
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        buffer += data[start:end]
        more, used = read_all(buffer)
        frames += more
        buffer = buffer[used:]
    assert not buffer
    assert len(frames) == len(indices)
    assert all(map(same, frames, (EXPECTED[index] for index in indices)))


# The schema


def test_the_generated_code_is_up_to_date(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts" / "protobuf.sh", tmp_path], check=True, timeout=60)
    made = sorted(tmp_path.rglob("*_pb2.py*"))
    assert [path.suffix for path in made] == [".py", ".pyi"]
    for path in made:
        kept = ROOT / "src" / path.relative_to(tmp_path)
        assert kept.read_text() == path.read_text(), "run scripts/protobuf.sh"
