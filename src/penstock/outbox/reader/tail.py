"""Latest records of a partition, newest piece first, within a bound of bytes.

Records may have large inline payloads, and a starting consumer needs only the newest: reading
backwards in pieces keeps the newest within the bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.client.errors import OffsetOutOfRange

if TYPE_CHECKING:
    from penstock.client import Client

TAIL_PIECE_RECORDS: Final = 2_000
"""Records of one read of the tail, the newest first."""
TAIL_BYTES_MAX: Final = 64 << 20
"""Limit of the bytes per partition read again, since records have inline payloads."""


def backwards(
    client: Client,
    topic: str,
    partition: int,
    *,
    first: int,
    end: int,
    columns: Sequence[str],
    bytes_max: int = TAIL_BYTES_MAX,
) -> Iterator[Any]:
    """Yield tables of the committed records in [first, end), the newest first.

    It ends early after `bytes_max` bytes of columns, or where retention has removed records.
    """
    size_bytes = 0
    while end > first and size_bytes < bytes_max:
        start = max(first, end - TAIL_PIECE_RECORDS)
        try:
            table = client.read_arrow(
                topic, start={partition: start}, end={partition: end}, columns=columns,
                isolation="read_committed",
            )  # fmt: skip
        except OffsetOutOfRange:
            return
        yield table
        size_bytes += table.nbytes
        end = start
