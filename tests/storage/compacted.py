"""Logs of stores that are closed, made as a compaction leaves them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.base.ids import TopicPartition
from penstock.records import BatchHeader, split_batches
from penstock.storage import LogConfig, LogStore, StorageSettings
from tests.records.reference import Batch, Record, encode, read
from tests.storage.batches import FakeClock, read_all

Rewrite = Callable[[BatchHeader, bytes], bytes | None]
"""What becomes of a batch; None: it goes."""


def compact(root: Path, where: TopicPartition, rewrite: Rewrite) -> list[int]:
    """Put what a rewrite leaves in the place of a log; the base offsets of that."""
    config = LogConfig(retention_ms=-1)
    store = LogStore.open(
        root, StorageSettings(), clock=FakeClock(), config_of=lambda topic: config
    )
    log = store.partitions[where]
    log.load()
    start, end, epochs = log.log_start_offset, log.log_end_offset, log.state.epochs.entries
    data, at, left = read_all(log, max_bytes=1 << 30), 0, []
    for header in split_batches(data):
        batch = rewrite(header, data[at : at + header.size_bytes])
        left += [] if batch is None else [batch]
        at += header.size_bytes
    producers = log.replica.producers_below(start)
    log.replica.start_at(start, producers=producers, floor=0)
    log.replica.append(memoryview(bytearray(b"".join(left))), now_ms=1, epochs=epochs)
    assert log.log_end_offset == end, "the newest batch stays"
    store.commit_pending()
    assert log.durable_offset == end
    store.close()
    return [header.base_offset for header in split_batches(b"".join(left))]


def thinned(
    header: BatchHeader, batch: bytes, wanted: Callable[[Record], bool], *, last: bool
) -> bytes | None:
    """A batch with those of its records that are wanted; without any only if it is the last."""
    records = tuple(record for record in read(batch) if wanted(record))
    if not records and not last:
        return None
    return encode(
        Batch(
            base_offset=header.base_offset,
            records=records,
            codec=header.codec if records else 0,
            producer=(header.producer_id, header.producer_epoch, header.base_sequence),
            last_offset_delta=header.last_offset_delta,
            leader_epoch=header.partition_leader_epoch,
        )
    )
