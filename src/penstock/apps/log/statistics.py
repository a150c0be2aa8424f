"""Statistics of partitions, from batch headers, and from records if they are opened.

Memory is bounded: sizes are counted by powers of two, and keys by a HyperLogLog of 2**14 registers
of murmur2, with an error of about 1 %.

Source: Flajolet, Fusy, Gandouet, Meunier, HyperLogLog (2007).
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np

from penstock.client.partitioning import murmur2
from penstock.records import BatchHeader
from penstock.records.columnar.decode import decode_batches
from penstock.records.columnar.validation import VALIDATED_BATCH_BYTES_MAX
from penstock.records.compression import decompress
from penstock.records.header import HEADER_BYTES
from penstock.storage.inspection.dumping import codec_name

REGISTER_BITS: Final = 14
PRODUCERS_MAX: Final = 1_000_000
"""Producers that are told apart; beyond, they are at least so many."""
_HASH_BITS: Final = 32
_ALPHA: Final = 0.7213 / (1 + 1.079 / (1 << REGISTER_BITS))


class DistinctKeys:
    """Estimate of the number of distinct 32-bit hashes."""

    def __init__(self) -> None:
        self._registers = np.zeros(1 << REGISTER_BITS, np.uint8)

    def add(self, hashes: np.ndarray[Any, Any]) -> None:
        mixed = hashes.astype(np.uint64)
        indexes = (mixed >> np.uint64(_HASH_BITS - REGISTER_BITS)).astype(np.int64)
        rest = (mixed << np.uint64(REGISTER_BITS)) & np.uint64(0xFFFFFFFF)
        bits = np.frexp(rest.astype(np.float64))[1]
        ranks = np.minimum(_HASH_BITS - bits + 1, _HASH_BITS - REGISTER_BITS + 1)
        np.maximum.at(self._registers, indexes, ranks.astype(np.uint8))

    def estimate(self) -> int:
        count = len(self._registers)
        found = _ALPHA * count * count / float(np.exp2(-self._registers.astype(float)).sum())
        empty = int((self._registers == 0).sum())
        if found <= 2.5 * count and empty:
            found = count * float(np.log(count / empty))
        top = float(1 << _HASH_BITS)
        if found > top / 30:
            found = -top * float(np.log1p(-min(found, top * 0.999) / top))
        return round(found)


class PartitionStatistics:
    """Statistics of one partition; `add` takes its batches in order."""

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
        self._keys: DistinctKeys | None = None

    def add(self, header: BatchHeader, batch: bytes | None = None) -> None:
        """Count a batch; with its bytes its records too.

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
        self._keys = self._keys or DistinctKeys()
        self._keys.add(murmur2(keys.drop_null()))

    def size_at(self, share: float) -> int:
        """Return a power of two below which that share of the batches are; 0 without any."""
        wanted, seen = share * self.batches, 0
        for bits in sorted(self.sizes):
            seen += self.sizes[bits]
            if seen >= wanted:
                return min(1 << bits, self.largest)
        return 0

    def facts(self) -> dict[str, Any]:
        """Return all figures by name; None for those of records that were not opened."""
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
            "distinct_keys_estimate": self._keys.estimate() if self._keys else None,
            "null_keys": self.null_keys if opened else None,
            "null_values": self.null_values if opened else None,
        }
