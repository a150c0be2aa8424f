"""What a starting consumer must remember of the time before: the batches it has processed.

Records below the committed offset were processed, or are in the dead-letter topic. They are read
again from the newest backwards, a piece at a time, until the window is full, they are too old, or
`REBUILD_BYTES_MAX` has come (inline payloads cannot be left out of a fetch). Payload files are not
touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.outbox import read_limits
from penstock.outbox.consuming import ConsumerLimits
from penstock.outbox.decoding import decode_records
from penstock.outbox.dedup import BatchKey

if TYPE_CHECKING:
    from penstock.client import Client

_COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers")


def processed_before(
    client: Client,
    topic: str,
    committed: Mapping[int, int],
    given_up: set[tuple[int, int]],
    bounds: ConsumerLimits,
    now_ms: int,
) -> Iterator[tuple[BatchKey, int]]:
    """Batches processed below the committed offsets, with their records' times, oldest first.

    `given_up` has partition and offset of records that went to the dead-letter topic instead.
    """
    found: list[tuple[BatchKey, int]] = []
    if bounds.dedup_entries_max == 0 or not committed:
        return
    first = client.list_offsets(topic, "earliest", partitions=list(committed))
    last = client.list_offsets(topic, "latest", partitions=list(committed))
    for partition, offset in committed.items():
        pieces = _backwards(
            client, topic, partition, first[partition], min(offset, last[partition]), bounds, now_ms
        )
        for batch in pieces:
            found.extend(_keys(batch, partition, given_up, now_ms - bounds.dedup_age_ms))
    found.sort(key=lambda entry: entry[1])
    yield from found[-bounds.dedup_entries_max :]


def _backwards(
    client: Client,
    topic: str,
    partition: int,
    first: int,
    end: int,
    bounds: ConsumerLimits,
    now_ms: int,
) -> Iterator[Any]:
    """Tables of a partition's records below `end`, the newest first."""
    lowest = max(first, end - bounds.rebuild_records_max)
    size_bytes = 0
    while end > lowest and size_bytes < read_limits.REBUILD_BYTES_MAX:
        start = max(lowest, end - read_limits.REBUILD_PIECE_RECORDS)
        table = client.read_arrow(
            topic, start={partition: start}, end={partition: end}, columns=_COLUMNS,
            isolation="read_committed",
        )  # fmt: skip
        yield table
        size_bytes += table.nbytes
        end = start
        if table.num_rows and table["timestamp"][0].as_py() < now_ms - bounds.dedup_age_ms:
            return


def _keys(
    table: Any, partition: int, given_up: set[tuple[int, int]], oldest_ms: int
) -> Iterator[tuple[BatchKey, int]]:
    decoded = decode_records(table["key"], table["value"], table["headers"].combine_chunks())
    rows = zip(
        table["offset"].to_pylist(),
        table["timestamp"].to_pylist(),
        decoded["partition_id"].to_pylist(),
        decoded["batch_id"].to_pylist(),
        strict=True,
    )
    for offset, at_ms, partition_id, batch_id in rows:
        if batch_id is not None and at_ms >= oldest_ms and (partition, offset) not in given_up:
            yield (partition_id, batch_id), at_ms
