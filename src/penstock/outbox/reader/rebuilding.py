"""Rebuilding of the dedup window when a consumer starts.

Records below the committed offset were processed, or are in the dead-letter topic. They are read
again (`tail.backwards`), the newest first, until the limits of the window in number, age or bytes
are reached. Payload files are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.outbox.reader.consuming import ConsumerLimits
from penstock.outbox.reader.decoding import decode_records
from penstock.outbox.reader.dedup import BatchKey
from penstock.outbox.reader.tail import backwards
from penstock.records.positions import READ_COMMITTED

if TYPE_CHECKING:
    from penstock.client import Client

_COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers")


def processed_before(
    client: Client,
    topic: str,
    committed: Mapping[int, int],
    dead: set[tuple[int, int]],
    bounds: ConsumerLimits,
    now_ms: int,
) -> Iterator[tuple[BatchKey, int, int]]:
    """Yield the batches below the committed offsets, with CRC32C and time, the oldest first.

    Batches in `dead` are left out. It has partition and offset of records that became dead letters.
    """
    if bounds.dedup_entries_max == 0 or not committed:
        return
    oldest_ms = now_ms - bounds.dedup_age_ms
    found: list[tuple[BatchKey, int, int]] = []
    earliest = client.list_offsets(topic, "earliest", partitions=list(committed))
    latest = client.list_offsets(
        topic, "latest", partitions=list(committed), isolation=READ_COMMITTED
    )
    for partition, offset in committed.items():
        end = min(offset, latest[partition])
        first = max(earliest[partition], end - bounds.rebuild_records_max)
        for table in backwards(client, topic, partition, first=first, end=end, columns=_COLUMNS):
            found.extend(_keys(table, partition, dead, oldest_ms))
            if table.num_rows and table["timestamp"][0].as_py() < oldest_ms:
                break
    found.sort(key=lambda entry: entry[2])
    yield from found[-bounds.dedup_entries_max :]


def _keys(
    table: Any, partition: int, dead: set[tuple[int, int]], oldest_ms: int
) -> Iterator[tuple[BatchKey, int, int]]:
    decoded = decode_records(table["key"], table["value"], table["headers"].combine_chunks())
    rows = zip(
        table["offset"].to_pylist(),
        table["timestamp"].to_pylist(),
        decoded["partition_id"].to_pylist(),
        decoded["batch_id"].to_pylist(),
        decoded["crc32c"].to_pylist(),
        strict=True,
    )
    for offset, at_ms, partition_id, batch_id, crc in rows:
        if batch_id is not None and at_ms >= oldest_ms and (partition, offset) not in dead:
            yield (partition_id, batch_id), crc, at_ms
