"""Limit of the decompressed bytes of the batches of one request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from penstock.base.crc import Readable
from penstock.records.errors import RecordTooLarge

OPENED_REQUEST_BYTES_MAX: Final = 512 << 20
"""Most decompressed bytes of all batches of a produce request that a broker validates."""


class Allowance(Struct):
    """Remaining decompressed bytes of a request's batches; none after one too large."""

    left_bytes: int = OPENED_REQUEST_BYTES_MAX

    def unpacked(
        self, unpack: Callable[..., Readable], codec: int, data: Readable, *, max_bytes: int
    ) -> Readable:
        """Return the result of `unpack(codec, data, max_bytes=...)`, and count its bytes.

        Raises:
            RecordTooLarge: the batch unpacks to more than `max_bytes`, all together to more than
                `OPENED_REQUEST_BYTES_MAX`, or an earlier one was too large.
            CorruptBatch, UnsupportedCodec: as `unpack`.
        """
        limit = min(max_bytes, self.left_bytes)
        if limit <= 0:
            raise RecordTooLarge(
                "not unpacked, as earlier batches of the request unpack to too much; send fewer"
                " or smaller batches in a request"
            )
        try:
            found = unpack(codec, data, max_bytes=limit)
        except RecordTooLarge as error:
            self.left_bytes = 0
            if limit == max_bytes:
                raise
            raise RecordTooLarge(
                f"the compressed batches of the request unpack to more than"
                f" {OPENED_REQUEST_BYTES_MAX} bytes together; send fewer in a request"
            ) from error
        self.left_bytes -= len(found)
        return found
