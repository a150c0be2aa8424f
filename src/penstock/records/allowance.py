"""Limit on the decompressed bytes of all batches of one request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from penstock.base.crc import Readable
from penstock.records.errors import RecordTooLarge

OPENED_REQUEST_BYTES_MAX: Final = 512 << 20
"""Most decompressed bytes that a broker validates for all batches of one produce request."""


class Allowance(Struct):
    """Remaining budget of decompressed bytes for a request; 0 after a batch exceeded a limit."""

    left_bytes: int = OPENED_REQUEST_BYTES_MAX

    def unpacked(
        self, unpack: Callable[..., Readable], codec: int, data: Readable, *, max_bytes: int
    ) -> Readable:
        """Decompress with `unpack(codec, data, max_bytes=...)`, and deduct the bytes from the
        budget.

        Raises:
            RecordTooLarge: this batch exceeds `max_bytes`, all batches together exceed
                `OPENED_REQUEST_BYTES_MAX`, or an earlier batch exceeded a limit.
            CorruptBatch, UnsupportedCodec: raised by `unpack`.
        """
        limit = min(max_bytes, self.left_bytes)
        if limit <= 0:
            raise RecordTooLarge(
                "not decompressed, because earlier batches of the request already exceeded a limit"
                " of decompressed bytes. Send fewer or smaller batches in a request"
            )
        try:
            found = unpack(codec, data, max_bytes=limit)
        except RecordTooLarge as error:
            self.left_bytes = 0
            if limit == max_bytes:
                raise
            raise RecordTooLarge(
                f"the compressed batches of the request decompress to more than"
                f" {OPENED_REQUEST_BYTES_MAX} bytes in total. Send fewer batches in a request"
            ) from error
        self.left_bytes -= len(found)
        return found
