"""Reading of a partition's latest records, backwards in pieces, up to a number of bytes.

A starting consumer needs only the newest records, but records may have large inline payloads.
Reading backwards keeps the newest records within the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.client.errors import OffsetOutOfRange

if TYPE_CHECKING:
    from penstock.client import Client

TAIL_PIECE_RECORDS: Final = 2_000
"""Records of one piece."""
TAIL_BYTES_MAX: Final = 64 << 20
"""Bytes of columns, per partition, after which no further piece is read."""


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
    """Yield tables of the committed records in [first, end).

    The table with the newest records is first.

    It ends early after `bytes_max` bytes of columns, or at records that retention has removed.
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
