"""Content of one file of a log, as rows of names and values.

    .index .timeindex .txnindex .snapshot .batches         leader-epoch-checkpoint
    partition.metadata partitions.checkpoint .journal      Apache Kafka's checkpoints of offsets

`batch_row` makes the row of a batch, for segments; `rows_of` reads all other files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from penstock.base.files import MACHINE_FILES, read_file
from penstock.records import BatchHeader
from penstock.records.header import Codec
from penstock.records.transactions import decode_marker
from penstock.storage.files.checkpoint import decode_checkpoint
from penstock.storage.files.epochs import decode_epochs
from penstock.storage.files.errors import CorruptFile, CorruptLog
from penstock.storage.files.journal import decode_key, segment_position
from penstock.storage.files.producers import BATCHES_VERSION, SNAPSHOT_VERSION, decode_snapshot
from penstock.storage.files.transaction_index import ENTRY_BYTES, TransactionIndex
from penstock.storage.files.values import (
    CHECKPOINT_FILE,
    EPOCHS_FILE,
    INDEX,
    JOURNAL_SUFFIX,
    LOG,
    METADATA_FILE,
    RECENT_BATCHES,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    decode_partition_metadata,
    parse_offset_name,
)
from penstock.storage.inspection.stores import entries_of_journal
from penstock.storage.inspection.verification import OFFSET_ENTRIES, TIME_ENTRIES, entries_of

Row = dict[str, Any]


def batch_row(header: BatchHeader, position: int, batch: bytes | None = None) -> Row:
    """Return the row of a batch; with its bytes `batch`, the decision of a marker is included."""
    row: Row = {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "position": position,
        "size_bytes": header.size_bytes,
        "codec": codec_name(header.codec),
        "leader_epoch": header.partition_leader_epoch,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": header.timestamp_type,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon": header.delete_horizon_ms,
        "crc": header.crc,
    }
    if batch is not None and header.is_control and header.producer_id >= 0:
        marker = decode_marker(batch, header)
        row["marker"] = "commit" if marker.commit else "abort"
        row["coordinator_epoch"] = marker.coordinator_epoch
    return row


def codec_name(codec: int) -> str:
    return Codec(codec).name.lower() if codec in set(Codec) else str(codec)


def rows_of(path: str) -> Iterator[Row]:
    """Yield the rows of a file other than a segment, in file order.

    Raises:
        CorruptFile, CorruptLog: the content does not match the file's name.
        OSError: the file cannot be read.
    """
    name = os.path.basename(path)
    parsed = parse_offset_name(name)
    kind = parsed[1] if parsed is not None else JOURNAL_SUFFIX
    if parsed is None and not name.endswith(JOURNAL_SUFFIX):
        kind = name
    reader = _READERS.get(kind)
    if reader is None:
        known = ", ".join(sorted({LOG, *_READERS}))
        raise CorruptFile(f"{path}: the file name has no known format; known formats: {known}")
    if reader is _journal:
        yield from _journal(path)
        return
    try:
        yield from reader(read_file(MACHINE_FILES, path), parsed[0] if parsed else 0)
    except (CorruptFile, ValueError) as error:
        raise CorruptFile(f"{path}: {error}") from None


def _offsets(data: bytes, base: int) -> Iterator[Row]:
    for offset, position in entries_of(data, OFFSET_ENTRIES).tolist():
        yield {"offset": base + offset, "position": position}


def _times(data: bytes, base: int) -> Iterator[Row]:
    for timestamp, offset in entries_of(data, TIME_ENTRIES).tolist():
        yield {"timestamp": timestamp, "offset": base + offset}


def _transactions(data: bytes, base: int) -> Iterator[Row]:
    index = TransactionIndex(data[: len(data) - len(data) % ENTRY_BYTES])
    for place in range(len(index)):
        yield index.at(place)._asdict()
    if doubt := TransactionIndex(data).doubt(base):
        raise CorruptFile(doubt)


def _producers(version: int) -> Callable[[bytes, int], Iterator[Row]]:
    def read(data: bytes, base: int) -> Iterator[Row]:
        for entry in decode_snapshot(data, version):
            yield entry._asdict()

    return read


def _epochs(data: bytes, base: int) -> Iterator[Row]:
    for epoch, start in decode_epochs(data):
        yield {"epoch": epoch, "start_offset": start}


def _metadata(data: bytes, base: int) -> Iterator[Row]:
    yield {"topic_id": str(decode_partition_metadata(data))}


def _checkpoint(data: bytes, base: int) -> Iterator[Row]:
    checkpoint = decode_checkpoint(data)
    yield {"journal_sequence": checkpoint.sequence, "clean": checkpoint.clean}
    for (topic, partition), (topic_id, point) in checkpoint.points.items():
        yield {
            "topic": topic, "partition": partition, "topic_id": str(topic_id), **point._asdict()
        }  # fmt: skip


def _offset_checkpoint(data: bytes, base: int) -> Iterator[Row]:
    """Yield the rows of a Kafka checkpoint file: topic, partition and offset."""
    for line in data.decode().splitlines()[2:]:
        topic, partition, offset = line.split(" ")
        yield {"topic": topic, "partition": int(partition), "offset": int(offset)}


def _journal(path: str) -> Iterator[Row]:
    for entry in entries_of_journal(path):
        head = entry.head
        if entry.rows is None:
            reason = f"journal entry {head.sequence} of {head.size_bytes} bytes is damaged"
            raise CorruptLog(Path(path), entry.position, reason)
        for row in entry.rows:
            topic_id, topic, partition = decode_key(row.key)
            yield {
                "position": entry.position,
                "sequence": head.sequence,
                "generation": head.generation,
                "durable_sequence": head.durable_sequence,
                "topic": topic,
                "partition": partition,
                "topic_id": str(topic_id),
                "segment_base": row.segment_base,
                "segment_position": segment_position(row),
                "in_segment": row.in_segment,
                "base_offset": row.base_offset,
                "next_offset": row.next_offset,
                "size_bytes": row.size_bytes,
            }


_READERS: Final[dict[str, Callable[..., Iterator[Row]]]] = {
    INDEX: _offsets,
    TIME_INDEX: _times,
    TXN_INDEX: _transactions,
    SNAPSHOT: _producers(SNAPSHOT_VERSION),
    RECENT_BATCHES: _producers(BATCHES_VERSION),
    EPOCHS_FILE: _epochs,
    METADATA_FILE: _metadata,
    CHECKPOINT_FILE: _checkpoint,
    JOURNAL_SUFFIX: _journal,
    "recovery-point-offset-checkpoint": _offset_checkpoint,
    "log-start-offset-checkpoint": _offset_checkpoint,
    "replication-offset-checkpoint": _offset_checkpoint,
    "cleaner-offset-checkpoint": _offset_checkpoint,
}
