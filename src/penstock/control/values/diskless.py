"""Values of diskless topics in the control plane: objects, entries, extents, watermarks.

A *lease* is a key under which a broker may write one object. An *entry* holds the batches of one
produce request for one partition, as they were written to the object. Committing the object assigns
offsets to every entry. The batch index stores accepted entries as *extents*: adjacent batches of
one partition in one object, which a reader finds by offset.

A write-ahead object has the bytes that producers sent, with base offset 0 in every batch. A reader
writes the extent's offsets into the batch headers, and the append time if the extent has one. The
batches of a sealed segment already have their offsets.

Offsets and sizes are plain ints; times are milliseconds since 1970.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Annotated, Final, Literal, NamedTuple, TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct, field

from penstock.control.values.errors import DatabaseDamaged, MigrationRefused
from penstock.records.appends import AppendResult
from penstock.records.extents import Extent
from penstock.records.idempotence import Producer, ProducerBatch
from penstock.records.transactions import AbortedTransaction, Marker

ObjectKind = Literal["wal", "segment"]
ObjectState = Literal["pending", "committed", "deleting"]
PartitionKey = tuple[UUID, int]
"""A topic's id and a partition's index."""


class ObjectLease(NamedTuple):
    """A reserved key. Its row is PENDING until the object is committed or swept."""

    object_id: int
    key: str


class StoreIdentity(NamedTuple):
    """The random id of the object store.

    `place` is its location when the id was stored, for messages.
    """

    store_id: UUID
    place: str


class BatchEntry(NamedTuple):
    """Batches of one partition in an object, which are accepted or rejected together.

    `layout` has a pair of little-endian int32 per batch: its bytes, and its number of offsets.
    Batches of an idempotent producer have adjacent sequences: `base_sequence` is that of the first
    record, `last_sequence` of the last.

    `transactional` batches belong to a transaction. `verified_from` is the partition's end, or a
    lower offset, when the transaction's coordinator confirmed the partition
    (`records.idempotence.check_verified`). An entry with a `marker` is a control batch; its
    `verified_from` is the partition's end when the marker was made (`check_marker`).
    """

    topic_id: UUID
    partition: int
    byte_offset: int
    size_bytes: int
    offset_count: int
    max_timestamp: int
    append_time: bool
    layout: bytes
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    last_sequence: int = -1
    transactional: bool = False
    verified_from: int = -1
    marker: Marker | None = None


class ObjectCommit(Struct, frozen=True, kw_only=True):
    """A commit of a written object, with its entries in the order of acceptance.

    `now_ms` is the broker's time, which LogAppendTime topics use. Entries of one partition are
    adjacent and ordered by byte offset.
    """

    object_id: int
    size_bytes: int
    entries: tuple[BatchEntry, ...]
    now_ms: int


class Watermarks(NamedTuple):
    """The log start, high watermark and bytes of a diskless partition.

    `open_offset` is the first offset of the first open transaction. `aborted_offset` is the offset
    of the last abort marker. Both are -1 if there is none.
    """

    log_start_offset: int
    high_watermark: int
    size_bytes: int
    open_offset: int = -1
    aborted_offset: int = -1

    @property
    def last_stable_offset(self) -> int:
        """The offset below which all transactions have ended, or are deleted."""
        if self.open_offset < 0:
            return self.high_watermark
        return max(self.open_offset, self.log_start_offset)


class Aborted(NamedTuple):
    """The aborted transactions of a partition whose markers are at or above an offset, by marker.

    The list is complete for batches below `complete_to`. If that is None, it is complete up to
    `watermarks.aborted_offset`.
    """

    transactions: tuple[AbortedTransaction, ...]
    watermarks: Watermarks
    complete_to: int | None = None


class CommitAnswer(Struct, frozen=True, kw_only=True):
    """The result of a commit: an `AppendResult` per entry, in order, and the new watermarks.

    `extents` has the added extents by partition, for the cache of the writing broker. A repeated
    commit returns the same result.
    """

    placed: tuple[AppendResult, ...]
    watermarks: Mapping[PartitionKey, Watermarks] = field(default_factory=dict)
    extents: Mapping[PartitionKey, tuple[Extent, ...]] = field(default_factory=dict)


class FindRequest(NamedTuple):
    """A lookup of a partition's extents from `offset` on, up to about `max_bytes`."""

    topic_id: UUID
    partition: int
    offset: int
    max_bytes: int


class Found(NamedTuple):
    """The result of a lookup: adjacent extents, of which the first holds the requested offset.

    There is at least one extent for an offset below the high watermark, whatever its size, and none
    at the high watermark. `error` is set for an unknown partition and for an offset outside of the
    log. An unknown partition has no `watermarks`.
    """

    watermarks: Watermarks | None
    extents: tuple[Extent, ...] = ()
    error: str | None = None


class MarkedObject(NamedTuple):
    """A DELETING object, to which no extent refers."""

    object_id: int
    key: str
    size_bytes: int


class Retained(NamedTuple):
    """Result of a retention pass over a partition. `more` means that a limit stopped it."""

    watermarks: Watermarks
    extents_dropped: int
    bytes_dropped: int
    more: bool


class SegmentSwap(Struct, frozen=True, kw_only=True):
    """A replacement of extents of one partition by a sealed segment.

    `replaced` has the extents that the segment was made of; `extents` has those of the segment.
    Both are adjacent, ordered by offset, and cover the same offsets.
    """

    topic_id: UUID
    partition: int
    object_id: int
    size_bytes: int
    replaced: tuple[Extent, ...]
    extents: tuple[Extent, ...]


class Backlog(NamedTuple):
    """A partition's extents and bytes in write-ahead objects, which consolidation has to merge."""

    topic_id: UUID
    partition: int
    extents: int
    size_bytes: int
    oldest_timestamp: int


class ObjectTotals(NamedTuple):
    state: ObjectState
    kind: ObjectKind
    objects: int
    size_bytes: int


# Values of topics that become diskless or replicated: copied logs, requests, participants.
#
# The broker that receives the request coordinates. Each broker that copies partitions stores its
# progress as a participant, in one of these states:
#
# | state   | meaning                                                |
# |---------|--------------------------------------------------------|
# | COPYING | the broker copies its partitions                       |
# | READY   | all records except the newest appends are copied       |
# | FENCED  | appends have stopped, and all records are copied       |
# | FAILED  | the broker cannot copy its partitions; `reason` is set |


ParticipantState = Literal["copying", "ready", "fenced", "failed"]


class MigratedObject(NamedTuple):
    object_id: int
    size_bytes: int


class MigratedPartition(Struct, frozen=True, kw_only=True):
    """A local log that was copied completely, and becomes a diskless partition.

    `extents` adjoin and end at the high watermark. The first one holds the log start, unless the
    log is empty. `leader_epoch` is the log's last epoch. `aborted` has its aborted transactions, in
    the order of their markers.
    """

    partition: int
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    objects: tuple[MigratedObject, ...] = ()
    extents: tuple[Extent, ...] = ()
    producers: Mapping[int, Producer] = field(default_factory=dict)
    aborted: tuple[AbortedTransaction, ...] = ()


class TopicMigration(Struct, frozen=True, kw_only=True):
    """A commit that makes a topic diskless.

    `expected` and `configs` are the topic's configs before and after. `partitions` are those that
    the committing broker leads; its process `incarnation` rejects appends to them. The partitions
    of other brokers are stored under the request `migration_id`.
    """

    topic_id: UUID
    broker_id: int
    incarnation: UUID
    expected: Mapping[str, str]
    configs: Mapping[str, str]
    partitions: tuple[MigratedPartition, ...]
    migration_id: UUID | None = None


class TopicReplication(Struct, frozen=True, kw_only=True):
    """A commit that makes a diskless topic replicated.

    `expected` and `configs` are the topic's configs before and after. `broker_id` is the committing
    broker, which has copied its own replicas. Other brokers are stored as participants of the
    request `migration_id`.
    """

    topic_id: UUID
    broker_id: int
    incarnation: UUID
    expected: Mapping[str, str]
    configs: Mapping[str, str]
    min_insync_replicas: int
    migration_id: UUID


class MigrationRequest(NamedTuple):
    """A request to make a topic diskless or replicated. `migration_id` identifies the attempt.

    `broker_id` and `incarnation` are the coordinator's.
    """

    topic_id: UUID
    migration_id: UUID
    broker_id: int
    incarnation: UUID


class MigrationParticipant(Struct, frozen=True, kw_only=True):
    """A broker's progress in a migration.

    `partitions` has the copied partitions once the broker is FENCED.
    """

    broker_id: int
    incarnation: UUID
    state: ParticipantState
    reason: str = ""
    partitions: tuple[MigratedPartition, ...] = ()


class RunningMigration(NamedTuple):
    """An open request and its participants, by broker id, without their copied partitions."""

    request: MigrationRequest
    participants: tuple[MigrationParticipant, ...]


# Encodings of binary columns in the tables of diskless topics.
#
# **The result of a commit** is a MessagePack array of three: the version 1; the results of the
# entries; the partitions. A partition is an array of topic id (16 bytes), partition, watermarks and
# extents. Results, watermarks and extents are arrays of the fields of `AppendResult`, `Watermarks`
# and `Extent`, in their order.
#
# **The copied partitions of a migration's participant** are a MessagePack array of two: the version
# 1; the partitions. A partition is a map of the fields of `MigratedPartition`. Its objects, extents
# and producers are arrays of their own fields.
#
# **The last batches of an idempotent producer**, oldest first, are 28 bytes each, little endian. A
# producer has none after a marker that has raised its epoch.
#
#     at  bytes  field
#      0      4  first sequence
#      4      4  last sequence
#      8      8  last offset
#     16      4  last offset - first offset
#     20      8  highest timestamp


SWITCH_SHARE_BYTES_MAX: Final = 64 << 20
"""Encoded bytes of the copied partitions of one participant in a migration."""

ANSWER_VERSION: Final = 1
SHARE_VERSION: Final = 1
_BATCH: Final = struct.Struct("<iiqiq")


class _Partition(NamedTuple):
    topic_id: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    partition: int
    watermarks: Watermarks
    extents: tuple[Extent, ...]


class _Answer(NamedTuple):
    version: int
    placed: tuple[AppendResult, ...]
    partitions: tuple[_Partition, ...]


class _Share(NamedTuple):
    version: int
    partitions: tuple[MigratedPartition, ...]


T = TypeVar("T", _Answer, _Share)
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_Answer)
_SHARE_DECODER: Final = msgspec.msgpack.Decoder(_Share)


def encode_answer(answer: CommitAnswer) -> bytes:
    partitions = [
        _Partition(topic_id.bytes, partition, watermarks, answer.extents[topic_id, partition])
        for (topic_id, partition), watermarks in answer.watermarks.items()
    ]
    return _ENCODER.encode((ANSWER_VERSION, answer.placed, partitions))


def decode_answer(data: bytes) -> CommitAnswer:
    found = _decoded(_DECODER, data, what="the stored result of a commit", version=ANSWER_VERSION)
    keys = [(UUID(bytes=partition.topic_id), partition.partition) for partition in found.partitions]
    return CommitAnswer(
        placed=found.placed,
        watermarks={
            key: partition.watermarks for key, partition in zip(keys, found.partitions, strict=True)
        },
        extents={
            key: partition.extents for key, partition in zip(keys, found.partitions, strict=True)
        },
    )


def encode_partitions(partitions: tuple[MigratedPartition, ...]) -> bytes:
    data = _ENCODER.encode((SHARE_VERSION, partitions))
    if len(data) > SWITCH_SHARE_BYTES_MAX:
        raise MigrationRefused(
            f"the copied partitions of one broker take {len(data)} bytes in the database, the"
            f" limit is {SWITCH_SHARE_BYTES_MAX}"
        )
    return data


def decode_partitions(data: bytes) -> tuple[MigratedPartition, ...]:
    return _decoded(
        _SHARE_DECODER, data, what="a migration participant", version=SHARE_VERSION
    ).partitions


def _decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes, *, what: str, version: int) -> T:
    try:
        found = decoder.decode(data)
    except msgspec.DecodeError as cause:
        raise DatabaseDamaged(f"{what} is damaged ({len(data)} bytes): {cause}") from cause
    if found.version != version:
        raise DatabaseDamaged(f"{what} has version {found.version}, not {version}")
    return found


def encode_batches(batches: tuple[ProducerBatch, ...]) -> bytes:
    return b"".join([_BATCH.pack(*batch) for batch in batches])


def decode_batches(data: bytes) -> tuple[ProducerBatch, ...]:
    if len(data) % _BATCH.size:
        raise DatabaseDamaged(
            f"the stored batches of a producer have {len(data)} bytes, not a multiple of"
            f" {_BATCH.size}"
        )
    return tuple([ProducerBatch._make(fields) for fields in _BATCH.iter_unpack(data)])
