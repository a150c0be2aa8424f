"""Transactions in a log: end markers and aborted transactions.

A marker is a batch with one control record, which has an offset like any record. Its attributes
have the transactional and the control bit; it has no sequence. Big endian:

    key    version i16 (0), type i16 (0 abort, 1 commit)
    value  version i16 (0), coordinator epoch i32

Source: KIP-98, KIP-890; Kafka's `ControlRecordType`, `EndTxnMarker.json`, `EndTransactionMarker`
and `AbortedTxn`.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.records.errors import CorruptBatch
from penstock.records.header import (
    CONTROL_FLAG,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    encode_header,
    seal,
)

if TYPE_CHECKING:
    from penstock.base.crc import Readable


_RECORD: Final = Struct(">BBBBBhhBhiB")
"""Record of a marker: length, attributes, two deltas, key size, key, value size, value, and a
header count of 0.
"""
_KEY: Final = Struct(">hh")
_VALUE: Final = Struct(">hi")
_ABORT, _COMMIT = 0, 1
EPOCH_VERSION: Final = 2
"""Transaction version from which the producer epoch rises at the end of every transaction."""
_VARINT_BYTES_MAX: Final = 10


class Marker(NamedTuple):
    """End of a producer's transaction, as its coordinator decided it.

    With transaction version 2 (KIP-890) the marker's epoch is one above that of the transaction's
    batches; before, it is the same. A log does not store the version, so a decoded marker has
    version 1.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int = 1


class AbortedTransaction(NamedTuple):
    """Offset range of a producer's aborted batches, which read_committed consumers skip.

    `last_offset` is the marker's offset. `last_stable_offset` is the partition's at that time:
    every transaction below it had been decided.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class Guard:
    """Verification of the transaction that an append's batch belongs to.

    A guard is created before the coordinator is asked for the verification. It becomes outdated
    when a marker ends the verified transaction. A producer may have several unverified batches. The
    one with the lowest sequence must then be appended first, so that no batch is missing if its
    verification fails.

    `verified_from` is the partition's end offset when the guard was created (or a lower offset). If
    several brokers append, a marker at this offset or later ends the verified transaction.
    """

    __slots__ = ("epoch", "lowest_sequence", "seen_ms", "verified_from")

    def __init__(
        self,
        epoch: int = -1,
        lowest_sequence: int = -1,
        seen_ms: int = -1,
        verified_from: int = -1,
    ) -> None:
        self.verified_from = verified_from
        self.epoch = epoch
        self.lowest_sequence = lowest_sequence
        self.seen_ms = seen_ms

    def seen(self, epoch: int, sequence: int, now_ms: int) -> None:
        self.seen_ms = now_ms
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)


UNGUARDED: Final = Guard(verified_from=2**63 - 1)
"""Guard that always passes: `transaction.partition.verification.enable` is off."""

ONGOING: Final = Guard()
"""Guard of a batch that continues a verified transaction."""


def _fields(kind: int, epoch: int) -> tuple[int, ...]:
    return 2 * (_RECORD.size - 1), 0, 0, 0, 8, 0, kind, 12, 0, epoch, 0


def encode_marker(marker: Marker, now_ms: int) -> bytearray:
    """Return the control batch of a marker, with base offset 0."""
    return bytearray(_encoded(marker, now_ms))


@lru_cache(maxsize=16)  # the partitions of a transaction have equal markers
def _encoded(marker: Marker, now_ms: int) -> bytes:
    kind = _COMMIT if marker.commit else _ABORT
    record = _RECORD.pack(*_fields(kind, marker.coordinator_epoch))
    header = BatchHeader(
        base_offset=0,
        batch_length=HEADER_BYTES - LENGTH_OVERHEAD_BYTES + len(record),
        partition_leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG,
        last_offset_delta=0,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        base_sequence=-1,
        record_count=1,
    )
    batch = bytearray(encode_header(header)) + record
    seal(batch)
    return bytes(batch)


def decode_marker(batch: Readable, header: BatchHeader) -> Marker:
    """Decode the control batch at the start of `batch`, whose checksum was already verified.

    Raises:
        CorruptBatch: the batch is not a transaction marker.
    """
    if len(batch) >= HEADER_BYTES + _RECORD.size:
        found = _RECORD.unpack_from(batch, HEADER_BYTES)
        kind, epoch = found[6], found[9]
        if kind in (_ABORT, _COMMIT) and found == _fields(kind, epoch):  # as `encode_marker`
            return Marker(header.producer_id, header.producer_epoch, epoch, kind == _COMMIT)
    try:
        position = HEADER_BYTES
        _, position = _varint(batch, position)
        position += 1  # attributes
        for _ in range(2):  # timestamp delta and offset delta
            _, position = _varint(batch, position)
        key_bytes, position = _varint(batch, position)
        version, kind = _KEY.unpack_from(batch, position)
        value_bytes, position = _varint(batch, position + key_bytes)
        value_version, coordinator_epoch = _VALUE.unpack_from(batch, position)
    except (ValueError, IndexError, struct.error) as error:
        raise _no_marker(header, str(error)) from None
    if min(version, value_version) < 0 or kind not in (_ABORT, _COMMIT):
        raise _no_marker(
            header, f"key version {version}, type {kind} and value version {value_version}"
        )
    if key_bytes < _KEY.size or value_bytes < _VALUE.size or position + value_bytes > len(batch):
        raise _no_marker(header, f"key of {key_bytes} bytes and value of {value_bytes} bytes")
    return Marker(header.producer_id, header.producer_epoch, coordinator_epoch, kind == _COMMIT)


def _varint(buffer: Readable, position: int) -> tuple[int, int]:
    value = 0
    for place in range(_VARINT_BYTES_MAX):
        byte = buffer[position + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + place + 1
    raise ValueError(f"the varint at byte {position} does not end")


def _no_marker(header: BatchHeader, reason: str) -> CorruptBatch:
    return CorruptBatch(
        f"control batch of {header.size_bytes} bytes of producer {header.producer_id} at offset"
        f" {header.base_offset} is not a transaction marker: {reason}"
    )


# Offset ranges of aborted transactions, which read_committed readers skip.
#
# A producer has one transaction at a time in a partition, so its aborted transactions are offset
# ranges. Each range goes from the transaction's first batch to its marker, which also has an
# offset.
#
# Source: KIP-98.


OFFSET_MAX: Final = 2**63 - 1


class AbortedRange(NamedTuple):
    """Offsets of one aborted transaction of a producer; `last_offset` is the marker's.

    The ranges of one producer do not overlap.
    """

    producer_id: int
    first_offset: int
    last_offset: int


def ranges_until(
    begun: Iterable[tuple[int, int]], markers: Iterable[tuple[int, int]]
) -> tuple[AbortedRange, ...]:
    """Return the offset ranges of transactions, from their first offsets and their markers.

    Both arguments are pairs (producer id, offset); `markers` must be sorted by offset. A
    transaction without a marker gets a range that does not end.
    """
    of_producer: dict[int, list[int]] = {}
    for producer_id, offset in markers:
        of_producer.setdefault(producer_id, []).append(offset)
    ranges: list[AbortedRange] = []
    for producer_id, first_offset in begun:
        ends = of_producer.get(producer_id, [])
        place = bisect_left(ends, first_offset)
        last_offset = ends[place] if place < len(ends) else OFFSET_MAX
        ranges.append(AbortedRange(producer_id, first_offset, last_offset))
    return tuple(ranges)
