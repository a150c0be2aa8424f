"""Codecs: they round-trip, read what other libraries write, and never unpack beyond a limit."""

from __future__ import annotations

import contextlib
import gzip

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from penstock.records import Codec, CorruptBatch, RecordTooLarge, UnsupportedCodec
from penstock.records.compression import LEVELS, compress, decompress, decompress_portable

PACKED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
TEXT = b"the quick brown fox, " * 5_000


@pytest.mark.parametrize("codec", list(Codec))
@given(data=st.binary(max_size=300), repeats=st.integers(0, 1_000))
def test_round_trip(codec: Codec, data: bytes, repeats: int) -> None:
    whole = data * repeats
    assert bytes(decompress(codec, compress(codec, whole), max_bytes=len(whole))) == whole


@pytest.mark.parametrize("codec", list(Codec))
def test_the_limit_is_exact(codec: Codec) -> None:
    packed = compress(codec, TEXT)
    assert bytes(decompress(codec, packed, max_bytes=len(TEXT))) == TEXT
    for limit in (0, 1, len(TEXT) - 1):
        with pytest.raises(RecordTooLarge, match=f"limit of {limit} bytes"):
            decompress(codec, packed, max_bytes=limit)


@pytest.mark.parametrize("codec", PACKED)
def test_every_cut_is_refused(codec: Codec) -> None:
    packed = compress(codec, TEXT[:2_000])
    for end in range(len(packed)):
        with pytest.raises(CorruptBatch):
            decompress_portable(codec, packed[:end], max_bytes=1 << 20)


@pytest.mark.parametrize("codec", PACKED)
@given(data=st.binary(max_size=200))
def test_garbage_is_refused_or_bounded(codec: Codec, data: bytes) -> None:
    with contextlib.suppress(CorruptBatch, RecordTooLarge):
        assert len(decompress(codec, data, max_bytes=1 << 16)) <= 1 << 16


@pytest.mark.parametrize("codec", PACKED)
@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_flipped_bits_are_refused_or_bounded(codec: Codec, position: int, bit: int) -> None:
    packed = bytearray(compress(codec, TEXT[:3_000]))
    packed[position % len(packed)] ^= 1 << bit
    with contextlib.suppress(CorruptBatch, RecordTooLarge):
        assert len(decompress(codec, packed, max_bytes=1 << 16)) <= 1 << 16


def test_what_others_write_is_read() -> None:
    limit = len(TEXT) * 2
    linked = lz4.frame.compress(TEXT, block_linked=True, store_size=True, content_checksum=True)
    streamed = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)
    raw = bytes(cramjam.snappy.compress_raw(TEXT))
    for codec, packed in (
        (Codec.GZIP, gzip.compress(TEXT)),
        (Codec.LZ4, linked),
        (Codec.ZSTD, streamed),
        (Codec.SNAPPY, raw),
    ):
        assert bytes(decompress(codec, memoryview(packed), max_bytes=limit)) == TEXT
        with pytest.raises(RecordTooLarge):
            decompress(codec, packed, max_bytes=100)
    for codec, packed in ((Codec.GZIP, gzip.compress(TEXT)), (Codec.ZSTD, streamed)):
        assert bytes(decompress(codec, packed + packed, max_bytes=limit)) == TEXT * 2
    assert bytes(decompress(Codec.LZ4, linked + linked, max_bytes=limit)) == TEXT


def test_a_wrong_declared_size_is_rejected() -> None:
    huge = b"\xff\xff\xff\xff\x0f\x00"
    with pytest.raises(CorruptBatch, match="declares 4294967295 decompressed bytes"):
        decompress(Codec.SNAPPY, huge, max_bytes=1 << 40)
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 24))
    with pytest.raises(RecordTooLarge):
        decompress(Codec.ZSTD, bomb, max_bytes=1 << 20)


def test_member_after_member_is_bounded() -> None:
    with pytest.raises(CorruptBatch, match="more than 1024 gzip members"):
        decompress(Codec.GZIP, gzip.compress(b"") * 1100, max_bytes=100)


def test_unknown_codecs_and_levels() -> None:
    for codec in (5, 7, -1):
        with pytest.raises(UnsupportedCodec, match="must be from 0 to 4"):
            compress(codec, b"")
        with pytest.raises(UnsupportedCodec):
            decompress(codec, b"", max_bytes=1)
    with pytest.raises(UnsupportedCodec, match="gzip level 10 must be from 1 to 9"):
        compress(Codec.GZIP, b"", 10)
    for codec, (smallest, _, largest) in LEVELS.items():
        for level in (smallest, largest):
            assert bytes(decompress(codec, compress(codec, TEXT, level), max_bytes=1 << 20)) == TEXT


def test_names() -> None:
    assert [Codec.parse(name) for name in ("none", "gzip", "snappy", "LZ4", "zstd")] == list(Codec)
    with pytest.raises(UnsupportedCodec, match="'brotli'"):
        Codec.parse("brotli")
