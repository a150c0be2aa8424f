"""Command `penstock log stats`: shows what stored partitions consist of.

Figures come from batch headers, and with --deep also from records. Memory is bounded: sizes are
counted by powers of two, and keys by a HyperLogLog with an error of about 1 %. The clean offsets of
compacted logs are reported by their leaders, or read from the files of a data directory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from penstock.apps.client.session import show
from penstock.apps.log.queues import admin_option
from penstock.apps.log.sources import (
    BrokerSource,
    Chosen,
    FileSource,
    Range,
    Source,
    place_options,
    range_options,
    source_of,
)
from penstock.base.extras import check_installed
from penstock.base.ids import TopicPartition
from penstock.base.settings import LONG_MAX
from penstock.records import BatchHeader
from penstock.records.columnar.validation import VALIDATED_BATCH_BYTES_MAX
from penstock.records.compression import decompress
from penstock.records.header import HEADER_BYTES
from penstock.storage.inspection.dumping import codec_name

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.planner.keys.census import DistinctEstimate
    from penstock.storage.inspection.directories import PartitionFiles


@click.command("stats", short_help="Count bytes, records, codecs, keys, producers.")
@click.option(
    "--deep",
    is_flag=True,
    help="Read also the records: compression ratio, distinct keys, null keys.",
)
@range_options
@admin_option
@place_options
def stats(chosen: Chosen, deep: bool, wanted: Range, admin: str | None) -> None:
    """Show statistics of each partition from the headers of its batches.

    With --deep the records are read too, for the compression ratio and the number of distinct keys,
    which has an error of about 1 %; this needs the extra `client`. JSON output has more figures
    than the table.

    For compacted logs, `clean to` is the offset up to which the log is compacted, and `dirty` the
    share of bytes of closed segments above it. They come from the leader's admin interface, or from
    the file cleaner-offset-checkpoint of the data directory.
    """
    if deep:
        check_installed("client")
    rows = []
    with source_of(chosen) as source, source.progress("counting", wanted) as advance:
        known = cleanliness_of(chosen, source, admin)
        for where in source.partitions():
            counted = PartitionStatistics(str(where))
            for batch in source.batches(where, wanted):
                counted.add(batch.header, batch.read() if deep else None)
                advance(batch.header)
            clean = known.get(where)
            offset, ratio = (None, None) if clean is None else clean
            rows.append({**counted.facts(), "clean_offset": offset, "dirty_ratio": ratio})
    columns = [
        "partition", "first_offset", "next_offset", "bytes", "batches", "records",
        "p50=batch_bytes_p50", "max=batch_bytes_max", "codecs", "producers", "first_timestamp",
        "last_timestamp",
    ]  # fmt: skip
    if deep:
        columns += ["ratio=compression_ratio", "keys=distinct_keys_estimate", "null_keys"]
    if known:
        columns += ["clean to=clean_offset", "dirty=dirty_ratio"]
    shown = [{**row, "codecs": sorted(row["bytes_by_codec"])} for row in rows]
    show(chosen.state, shown, columns, all_as_json=rows)


class Cleanliness(NamedTuple):
    """Offset up to which a log is compacted, and the share of bytes of closed segments above it."""

    clean_offset: int
    dirty_ratio: float


def cleanliness_of(
    chosen: Chosen, source: Source, admin: str | None
) -> Mapping[TopicPartition, Cleanliness]:
    """Return the cleanliness of a source's compacted logs.

    In a data directory these are the logs that were compacted at least once. Logs in object stores,
    and logs of brokers whose admin interface is not reachable, are left out.

    Raises:
        CorruptFile: a directory's checkpoint is damaged.
    """
    if isinstance(source, FileSource):
        found = [(where, files) for where in source.partitions() for files in source.files(where)]
        known = ((where, _of_files(files)) for where, files in found)
        return {where: one for where, one in known if one is not None}
    if isinstance(source, BrokerSource):
        with chosen.state.client() as client:
            return _of_leaders(chosen, client, admin)
    return {}


def _of_leaders(
    chosen: Chosen, client: Client, admin: str | None
) -> dict[TopicPartition, Cleanliness]:
    from penstock.apps.checks.brokers import admin_answers, known_admins

    topic = client.describe_topic(chosen.topic or "")
    leaders = {partition.index: partition.leader for partition in topic.partitions}
    addresses = known_admins(chosen.state, client.broker_states(), admin)
    answers = admin_answers(chosen.state, addresses, "/v1/compaction")
    return {
        TopicPartition(topic.name, row["partition"]): Cleanliness(
            row["clean_offset"], row["dirty_ratio"]
        )
        for answer in answers
        for row in answer["partitions"]
        if row["topic"] == topic.name and leaders.get(row["partition"]) == answer["node_id"]
    }


def _of_files(files: PartitionFiles) -> Cleanliness | None:
    """Return the cleanliness of a log's files; None if the log was never compacted.

    The minimum lag before compaction is ignored.
    """
    from penstock.storage.compaction.offsets import decode_clean_offsets
    from penstock.storage.files.segment import Segment
    from penstock.storage.files.values import CLEAN_OFFSETS_FILE, LOG
    from penstock.storage.log.compaction import Closed, cleanable

    directory = Path(files.path)
    try:
        data = (directory.parent / CLEAN_OFFSETS_FILE).read_bytes()
        clean_offset = decode_clean_offsets(data).get(files.where)
        if clean_offset is None:
            return None
        closed = [
            Closed(Segment(files.path, base, Path(files.file(base, LOG)).stat().st_size), end, int)
            for base, end in pairwise(files.segments)
        ]
    except FileNotFoundError:
        return None  # a running broker has removed the file
    found = cleanable(
        closed, clean_offset=clean_offset, log_start_offset=0, bound=LONG_MAX, now_ms=0,
        min_lag_ms=0, max_lag_ms=LONG_MAX, first_timestamp=lambda _: -1,
    )  # fmt: skip
    return Cleanliness(clean_offset, round(found.dirty_ratio, 4))


PRODUCERS_MAX: Final = 1_000_000
"""Most producers that are counted; a partition may have more."""


class PartitionStatistics:
    """Statistics of one partition; `add` is called with its batches in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.batches = self.records = self.size_bytes = self.markers = self.transactional = 0
        self.first_offset = self.next_offset = -1
        self.missing_offsets = 0
        self.first_timestamp = self.last_timestamp = -1
        self.codecs: Counter[str] = Counter()
        self.producers: set[int] = set()
        self.epochs: set[int] = set()
        self.sizes: Counter[int] = Counter()
        self.smallest = self.largest = 0
        self.uncompressed_bytes = self.null_keys = self.null_values = self.opened = 0
        self._keys: DistinctEstimate | None = None

    def add(self, header: BatchHeader, batch: bytes | None = None) -> None:
        """Count a batch and, if its bytes are given, its records.

        Raises:
            CorruptBatch, InvalidRecord: the records cannot be read.
        """
        size = header.size_bytes
        self.batches += 1
        self.size_bytes += size
        self.sizes[size.bit_length()] += 1
        self.smallest = min(self.smallest or size, size)
        self.largest = max(self.largest, size)
        if self.first_offset < 0:
            self.first_offset = self.next_offset = header.base_offset
        self.missing_offsets += max(0, header.base_offset - self.next_offset)
        self.missing_offsets += header.last_offset_delta + 1 - header.record_count
        self.next_offset = header.next_offset
        self.codecs[codec_name(header.codec)] += size
        self.epochs.add(header.partition_leader_epoch)
        if header.producer_id >= 0 and len(self.producers) < PRODUCERS_MAX:
            self.producers.add(header.producer_id)
        if header.is_control:
            self.markers += 1
            return
        self.records += header.record_count
        self.transactional += header.is_transactional
        if header.max_timestamp >= 0:
            first = header.base_timestamp if header.base_timestamp >= 0 else header.max_timestamp
            if header.delete_horizon_ms is not None or header.timestamp_type:
                first = header.max_timestamp
            known = self.first_timestamp
            self.first_timestamp = first if known < 0 else min(known, first)
            self.last_timestamp = max(self.last_timestamp, header.max_timestamp)
        if batch is not None and header.record_count:
            self._open(header, batch)

    def _open(self, header: BatchHeader, batch: bytes) -> None:
        # Imported here because only statistics of records need PyArrow.
        from penstock.client.partitioning import murmur2
        from penstock.planner.keys.census import DistinctEstimate
        from penstock.records.columnar.decode import decode_batches

        section = len(batch) - HEADER_BYTES
        if header.codec:
            content = memoryview(batch)[HEADER_BYTES:]
            section = len(decompress(header.codec, content, max_bytes=VALIDATED_BATCH_BYTES_MAX))
        self.uncompressed_bytes += section + HEADER_BYTES
        self.opened += 1
        columns: Any = decode_batches(batch, columns=("key", "value"))
        keys = columns.column(0)
        self.null_keys += keys.null_count
        self.null_values += columns.column(1).null_count
        self._keys = self._keys or DistinctEstimate()
        self._keys.add(murmur2(keys.drop_null()))

    def size_at(self, share: float) -> int:
        """Return a power of two that `share` of the batches' sizes do not exceed; 0 without
        batches.
        """
        wanted, seen = share * self.batches, 0
        for bits in sorted(self.sizes):
            seen += self.sizes[bits]
            if seen >= wanted:
                return min(1 << bits, self.largest)
        return 0

    def facts(self) -> dict[str, Any]:
        """Return all figures by name; those of records are None if no records were read."""
        opened = self.opened > 0
        return {
            "partition": self.name,
            "first_offset": self.first_offset,
            "next_offset": self.next_offset,
            "offsets_without_record": self.missing_offsets,
            "bytes": self.size_bytes,
            "batches": self.batches,
            "records": self.records,
            "records_per_batch": round(self.records / max(1, self.batches - self.markers), 1),
            "batch_bytes_min": self.smallest,
            "batch_bytes_p50": self.size_at(0.5),
            "batch_bytes_p99": self.size_at(0.99),
            "batch_bytes_max": self.largest,
            "bytes_by_codec": dict(self.codecs),
            "first_timestamp": self.first_timestamp,
            "last_timestamp": self.last_timestamp,
            "producers": len(self.producers),
            "transactional_batches": self.transactional,
            "markers": self.markers,
            "leader_epochs": len(self.epochs),
            "uncompressed_bytes": self.uncompressed_bytes if opened else None,
            "compression_ratio": round(self.uncompressed_bytes / max(1, self.size_bytes), 2)
            if opened
            else None,
            "distinct_keys_estimate": round(self._keys.value()) if self._keys else None,
            "null_keys": self.null_keys if opened else None,
            "null_values": self.null_values if opened else None,
        }
