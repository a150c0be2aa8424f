"""Latest records of a partition, newest piece first, within a bound of bytes.

Records may have large inline payloads, and a starting consumer needs only the newest: reading
backwards in pieces keeps the newest within the bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from penstock.client.errors import OffsetOutOfRange
from penstock.outbox import read_limits

if TYPE_CHECKING:
    from penstock.client import Client


def backwards(
    client: Client,
    topic: str,
    partition: int,
    *,
    first: int,
    end: int,
    columns: Sequence[str],
    bytes_max: int = read_limits.TAIL_BYTES_MAX,
) -> Iterator[Any]:
    """Yield tables of the committed records in [first, end), the newest first.

    It ends early after `bytes_max` bytes of columns, or where retention has removed records.
    """
    size_bytes = 0
    while end > first and size_bytes < bytes_max:
        start = max(first, end - read_limits.TAIL_PIECE_RECORDS)
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
