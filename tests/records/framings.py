"""Compressed sections as other libraries write them, and as a wrong producer might: generated."""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Final

import cramjam
import lz4.frame
import zstandard
from hypothesis import strategies as st

from penstock.records import Codec
from penstock.records.compression import XERIAL_MAGIC

EXAMPLES: Final = int(os.environ.get("PENSTOCK_EXAMPLES", "100"))
"""Batches that a generated test draws."""

TRAILERS = st.one_of(
    st.just(b""),
    st.sampled_from(
        [b"\0", bytes(3), bytes(4), bytes(600), b"x" * 18, b"x" * 19, b"nonsense behind"]
    ),
    st.binary(max_size=30),
)


def _skippable(size: int) -> bytes:
    return struct.pack("<II", 0x184D2A53, size) + bytes(size)


@st.composite
def _gzip(draw: st.DrawFn, part: bytes) -> bytes:
    packed = bytearray(gzip.compress(part, draw(st.integers(0, 9)), mtime=0))
    packed[3] = draw(st.sampled_from([0, 0, 0, 1, 2, 4, 8, 0x18, 0x20, 0x80]))
    if packed[3] & 0x1E:
        packed[10:10] = draw(st.sampled_from([b"", b"\2\0abname\0", b"\0\0", b"name\0"]))
    return bytes(packed)


def _raw(part: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(part))


@st.composite
def _snappy(draw: st.DrawFn, part: bytes) -> bytes:
    if draw(st.booleans()):
        return _raw(part)
    size = draw(st.sampled_from([7, 100, 5_000, 32_768]))
    blocks = [_raw(part[at : at + size]) for at in range(0, len(part), size)]
    blocks += [_raw(b"")] * draw(st.sampled_from([0, 0, 0, 1]))
    head = XERIAL_MAGIC + struct.pack(">ii", draw(st.sampled_from([1, 1, 2])), 1)
    return head + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


@st.composite
def _lz4(draw: st.DrawFn, part: bytes) -> bytes:
    packed: bytes = lz4.frame.compress(
        part,
        block_size=draw(st.sampled_from([4, 5, 6, 7])),
        block_linked=draw(st.sampled_from([False, False, False, True])),
        content_checksum=draw(st.booleans()),
        block_checksum=draw(st.booleans()),
        store_size=draw(st.booleans()),
    )
    return draw(st.sampled_from([b"", b"", b"", _skippable(5)])) + packed


@st.composite
def _zstd(draw: st.DrawFn, part: bytes) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(
        window_log=draw(st.sampled_from([10, 20, 27, 28])),
        write_content_size=draw(st.booleans()),
        write_checksum=draw(st.booleans()),
    )
    machine = zstandard.ZstdCompressor(compression_params=parameters)
    stream = machine.compressobj(size=len(part) if draw(st.booleans()) else -1)
    packed = machine.compress(part)
    if draw(st.booleans()):
        half = len(part) // 2
        packed = stream.compress(part[:half]) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        packed += stream.compress(part[half:]) + stream.flush()
    return draw(st.sampled_from([b"", b"", b"", _skippable(0), _skippable(9)])) + packed


_WRITERS: dict[int, Callable[[bytes], st.SearchStrategy[bytes]]] = {
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}


@st.composite
def framings(draw: st.DrawFn, codec: int, section: bytes) -> bytes:
    """A section in one to three frames: whole, cut, changed or with bytes behind them."""
    writer = _WRITERS[codec]
    kind = draw(st.sampled_from(["one", "one", "several", "behind", "cut", "changed"]))
    if kind != "several":
        packed = draw(writer(section))
        if kind == "behind":
            return packed + draw(TRAILERS)
        at = draw(st.integers(0, len(packed) - 1)) if packed else 0
        if draw(st.booleans()):  # at the ends is what describes a frame
            at = min(at % 24, len(packed) - 1) if draw(st.booleans()) else len(packed) - 1 - at % 12
        at = max(at, 0)
        if kind == "cut":
            return packed[:at]
        if kind == "changed":
            return packed[:at] + bytes([packed[at] ^ draw(st.integers(1, 255))]) + packed[at + 1 :]
        return packed
    places = sorted(draw(st.lists(st.integers(0, len(section)), min_size=1, max_size=2)))
    bounds = [0, *places, len(section)]
    parts = [section[low:high] for low, high in pairwise(bounds)]
    return b"".join(draw(writer(part)) for part in parts)
