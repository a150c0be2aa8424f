"""Encodings of binary columns in the tables of diskless topics.

**The result of a commit** is a MessagePack array of three: the version 1; the results of the
entries; the partitions. A partition is an array of topic id (16 bytes), partition, watermarks and
extents. Results, watermarks and extents are arrays of the fields of `AppendResult`, `Watermarks`
and `Extent`, in their order.

**The copied partitions of a migration's participant** are a MessagePack array of two: the version
1; the partitions. A partition is a map of the fields of `MigratedPartition`. Its objects, extents
and producers are arrays of their own fields.

**The last batches of an idempotent producer**, oldest first, are 28 bytes each, little endian. A
producer has none after a marker that has raised its epoch.

    at  bytes  field
     0      4  first sequence
     4      4  last sequence
     8      8  last offset
    16      4  last offset - first offset
    20      8  highest timestamp
"""

from __future__ import annotations

from struct import Struct
from typing import Annotated, Final, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from penstock.control.batch_index.migration_values import MigratedPartition
from penstock.control.batch_index.values import CommitAnswer, Watermarks
from penstock.control.errors import DatabaseDamaged, MigrationRefused
from penstock.records.appends import AppendResult
from penstock.records.extents import Extent
from penstock.records.idempotence import ProducerBatch

SWITCH_SHARE_BYTES_MAX: Final = 64 << 20
"""Encoded bytes of the copied partitions of one participant in a migration."""

ANSWER_VERSION: Final = 1
SHARE_VERSION: Final = 1
_BATCH: Final = Struct("<iiqiq")


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
