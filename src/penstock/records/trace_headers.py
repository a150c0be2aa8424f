"""Trace context in the headers of a batch's first record, without decoding the records.

The headers are the end of a record. The search looks at the last `SEARCHED_BYTES` of the first
record of an uncompressed batch. A batch of up to `SEARCHED_BYTES` is first searched as a whole,
with one call, because hardly any batch has a context. So the cost does not depend on the number or
size of the records.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.base.traces import (
    TRACEPARENT,
    TRACEPARENT_CHARS,
    TRACESTATE,
    TraceContext,
    parse_traceparent,
)
from penstock.records.header import HEADER_BYTES

SEARCHED_BYTES: Final = 1_024
_ATTRIBUTES_AT: Final = 22
_CODEC_BITS: Final = 0x07
_BYTE_MAX: Final = 0x7F
_NEXT: Final = HEADER_BYTES + 1
_VARINT_BYTES_MAX: Final = 5


def _length(count: int) -> bytes:
    """Return a length from 0 to 63 as a signed varint."""
    return bytes([count << 1])


_PARENT: Final = b"".join([
    _length(len(TRACEPARENT)), TRACEPARENT.encode(), bytes([TRACEPARENT_CHARS << 1]),
])  # fmt: skip
_STATE: Final = _length(len(TRACESTATE)) + TRACESTATE.encode()


find_parent: Final = re.compile(re.escape(_PARENT)).search
"""Function that searches a buffer from a position on for the header of a context."""


def first_trace(batch: memoryview) -> TraceContext | None:
    """Return the sampled trace context of a batch's first record; None if there is none.

    A compressed or malformed batch has none.
    """
    if len(batch) <= _NEXT or batch[_ATTRIBUTES_AT] & _CODEC_BITS:
        return None
    size, more = batch[HEADER_BYTES], batch[_NEXT]
    if size <= _BYTE_MAX:
        at = _NEXT
    elif more <= _BYTE_MAX:
        size, at = size & _BYTE_MAX | more << 7, _NEXT + 1
    else:
        size, at = _varint(batch, HEADER_BYTES)
    end = at + (size >> 1)
    start = end - SEARCHED_BYTES
    tail = bytes(batch[start if start > at else at : end])
    found = tail.find(_PARENT)
    if found < 0:
        return None
    at = found + len(_PARENT)
    parent = tail[at : at + TRACEPARENT_CHARS]
    return parse_traceparent(parent.decode("latin-1"), _state(tail))


def _state(tail: bytes) -> str:
    found = tail.find(_STATE)
    if found < 0:
        return ""
    view = memoryview(tail)
    size, at = _varint(view, found + len(_STATE))
    return bytes(view[at : at + (size >> 1)]).decode("latin-1")


def _varint(buffer: memoryview, at: int) -> tuple[int, int]:
    """Return an unsigned varint and the position after it; 0 if it does not end in the buffer."""
    value = 0
    for place, byte in enumerate(buffer[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    return 0, at
