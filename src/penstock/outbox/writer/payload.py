"""Payloads as views of any number of buffers, without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.base.crc import crc32c
from penstock.outbox.errors import InvalidPayload

PAYLOAD_BUFFERS_MAX: Final = 1 << 20
"""Buffers of one payload."""

Buffer = bytes | bytearray | memoryview
"""Bytes. At run time, any object with contiguous memory is accepted, including Arrow buffers."""
Payload = Buffer | Sequence[Buffer]


def as_buffers(payload: Payload) -> tuple[list[memoryview], int]:
    """Return one-dimensional views of a payload's buffers, and its size in bytes.

    Empty buffers are left out.

    Raises:
        InvalidPayload: it is not made of contiguous buffers, or there are too many.
    """
    parts = payload if isinstance(payload, (list, tuple)) else (payload,)
    if len(parts) > PAYLOAD_BUFFERS_MAX:
        raise InvalidPayload(f"payload: {len(parts)} buffers; the limit is {PAYLOAD_BUFFERS_MAX}")
    try:
        views = [memoryview(part) for part in parts]
        flat = [view if view.format == "B" and view.ndim == 1 else view.cast("B") for view in views]
    except TypeError as error:
        raise InvalidPayload(f"payload: not contiguous bytes: {error}") from None
    buffers = [view for view in flat if view.nbytes]
    return buffers, sum([view.nbytes for view in buffers])


def checksum(buffers: Sequence[memoryview], initial: int = 0) -> int:
    if len(buffers) > 1 and sum([view.nbytes for view in buffers]) < len(buffers) << 10:
        # For small buffers a call each costs more than a copy.
        return crc32c(b"".join(buffers), initial)
    for view in buffers:
        initial = crc32c(view, initial)
    return initial
