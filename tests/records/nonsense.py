"""Batches by hand whose header and checksum are right, with nonsense among their records."""

from __future__ import annotations

from typing import Final

from penstock.records import BatchHeader, compress, encode_header, seal
from tests.records.reference import Record, encode_record, varint

TIME_MS: Final = 1_700_000_000_000
GOOD: Final = tuple(
    encode_record(Record(number, TIME_MS, b"k%d" % number, b"value"), 0, TIME_MS)
    for number in range(3)
)
KEYLESS: Final = encode_record(Record(1, TIME_MS, None, b"value"), 0, TIME_MS)


def sealed(section: bytes, count: int, *, codec: int = 0, **changes: int) -> bytes:
    """A batch with this section of records and whatever count; `changes` are header fields."""
    if codec:
        section = compress(codec, section)
    header = BatchHeader(
        0, 49 + len(section), -1, 2, 0, codec, count - 1, TIME_MS, TIME_MS, -1, -1, -1, count
    )
    data = bytearray(encode_header(header._replace(**changes)) + section)
    seal(data)
    return bytes(data)


def framed(body: bytes) -> bytes:
    """A record with this body and the length that it has."""
    return varint(len(body)) + body


def _spoiled() -> dict[str, tuple[bytes, int, int, str]]:
    first, second, third = GOOD
    plain = b"\0" + varint(0)
    return {
        # name: section, count, record where it shows, what the message says
        "zeros": (bytes(60), 3, 0, "does not end"),
        "text": (b"this is no record at all, " * 4, 3, 0, "does not end"),
        "trailing bytes": (first + second + third + b"\0\0\0", 3, 2, "do not fill it"),
        "one record too few": (first + second + bytes(0), 3, 2, "do not fill it"),
        "one record too many": (first + second + third, 2, 1, "do not fill it"),
        "a length too long": (first + varint(90) + second[1:] + third, 3, 1, "do not fill it"),
        "a length too short": (first + varint(9) + second[1:] + third, 3, 1, "does not end"),
        "a negative length": (first + varint(-4) + second[1:] + third, 3, 1, "do not fill it"),
        "a key beyond its record": (
            first + framed(plain + varint(1) + varint(70) + b"kkk") + third, 3, 1, "does not end"
        ),
        "a key length below -1": (
            first + framed(plain + varint(1) + varint(-2) + varint(-1) + b"\0") + third,
            3, 1, "does not end",
        ),
        "a header count below 0": (
            first + framed(plain + varint(1) + varint(-1) * 2 + varint(-1)) + third,
            3, 1, "does not end",
        ),
        "headers that are not there": (
            first + framed(plain + varint(1) + varint(-1) * 2 + varint(2)) + third,
            3, 1, "more headers than fit",
        ),
        "a header without a key": (
            first + framed(plain + varint(1) + varint(-1) * 2 + varint(1) + varint(-1) * 2) + third,
            3, 1, "headers",
        ),
        "the same offset twice": (first + second + second, 3, 2, "offset delta is 1, expected 2"),
        "offsets with a gap": (first + third + third, 3, 1, "offset delta is 2, expected 1"),
        "a varint without an end": (
            first + framed(plain + b"\xff" * 6 + b"\x01" * 8) + third, 3, 1, "varint"
        ),
    }  # fmt: skip


SPOILED: Final = _spoiled()
"""By name: a section of records, the count that the header says, where it shows, the reason."""
