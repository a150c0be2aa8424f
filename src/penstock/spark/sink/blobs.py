"""Staged blobs: record batches of one Spark task, uploaded before the commit.

    blob      sections, back to back
    section   record batches (v2), back to back, of one topic partition; base offsets count from 0
              within the section; no producer id, not transactional

The driver's commit request (the manifest) has one entry per blob. An entry has the blob's name and
size, and the topic, partition, position, size in bytes and record count of each section. The broker
appends the blobs in the manifest's order, and the sections in the blob's order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.partitioning import Partitions, groups, partitions_of_keys
from penstock.records.columnar import EncodedBatch
from penstock.spark.errors import InvalidRows
from penstock.spark.sink.options import KEY, PARTITION, TOPIC

# Assignment of rows to topics and partitions, on Arrow columns.
#
# The column `partition` chooses a row's partition. If it is missing or null, the key chooses, as in
# Kafka's default partitioner. Rows without a key are distributed over the partitions in turn, in
# runs of at least `RUN_ROWS_MIN` rows. Rows of one partition keep their order.


RUN_ROWS_MIN: Final = 1_024
"""Least number of consecutive rows without a key that go to one partition, to fill batches."""
MESSAGE_BYTES_DEFAULT: Final = 1_048_588
"""Assumed `max.message.bytes` if the client may not read the topic's configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Topic that rows are written to; `batch_bytes_max` is its `max.message.bytes`."""

    name: str
    topic_id: str
    partitions: int
    batch_bytes_max: int = MESSAGE_BYTES_DEFAULT


Resolve = Callable[[str], Target]


class Turns:
    """Round-robin assignment of rows without a key, with a counter per topic."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._taken: dict[str, int] = {}

    def take(self, target: Target, rows: int) -> Partitions:
        """Return the partition of each of the next `rows` rows without a key, in runs of one
        length.
        """
        run = max(RUN_ROWS_MIN, -(-rows // target.partitions))
        first = self._taken.get(target.name, self._start)
        self._taken[target.name] = first + -(-rows // run)
        turns = (first + np.arange(rows) // run) % target.partitions
        return turns.astype(np.int32)


def by_topic(chunk: Any, topic: str | None) -> Iterator[tuple[str, Any]]:
    """Yield each topic with its rows of `chunk`.

    All rows go to `topic`; if it is None, the column `topic` chooses.

    Raises:
        InvalidRows: a row's topic is null.
    """
    if topic is not None:
        yield topic, chunk
        return
    column = chunk.column(TOPIC)
    if column.null_count:
        raise InvalidRows(
            f"the column topic is null in {column.null_count} rows. Drop these rows, or set the"
            " option topic"
        )
    coded = column.dictionary_encode()
    names = coded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], chunk
        return
    for number, name in enumerate(names):
        yield name, chunk.filter(pc.equal(coded.indices, number))


def by_partition(chunk: Any, rows: Any, target: Target, turns: Turns) -> Iterator[tuple[int, Any]]:
    """Yield each partition, in ascending order, with its rows in the order of `chunk`.

    `rows` is `chunk` as converted by `read_input`.

    Raises:
        InvalidRows: a row's partition does not exist in the topic.
    """
    partitions = _partitions(chunk, target, turns)
    if bool((partitions == partitions[0]).all()):
        yield int(partitions[0]), rows
        return
    order, bounds = groups(partitions, target.partitions)
    ordered = rows.select(order)  # moves addresses only
    for partition in np.flatnonzero(np.diff(bounds)).tolist():
        yield partition, ordered.select(slice(bounds[partition], bounds[partition + 1]))


def _partitions(chunk: Any, target: Target, turns: Turns) -> Partitions:
    names = chunk.schema.names
    given = chunk.column(PARTITION) if PARTITION in names else None
    if given is not None and not given.null_count:
        return _checked(given.to_numpy(), target)
    keys = chunk.column(KEY) if KEY in names else pa.nulls(chunk.num_rows, pa.binary())
    partitions = partitions_of_keys(keys, target.partitions, unkeyed=0)
    open_rows = keys.is_null() if given is None else pc.and_(keys.is_null(), given.is_null())
    unkeyed = np.flatnonzero(open_rows.to_numpy(zero_copy_only=False))
    if unkeyed.size:
        partitions[unkeyed] = turns.take(target, unkeyed.size)
    if given is not None:
        named = given.is_valid().to_numpy(zero_copy_only=False)
        partitions[named] = _checked(given.drop_null().to_numpy(), target)
    return partitions


def _checked(partitions: Partitions, target: Target) -> Partitions:
    if not partitions.size:
        return partitions
    lowest, highest = int(partitions.min()), int(partitions.max())
    if lowest < 0 or highest >= target.partitions:
        wrong = lowest if lowest < 0 else highest
        raise InvalidRows(
            f"the column partition has the value {wrong}, but topic {target.name} has partitions 0"
            f" to {target.partitions - 1}. Omit the column to let the key choose, or add partitions"
            " to the topic"
        )
    return partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Part of a blob: the records of one topic partition."""

    topic: str
    topic_id: str
    partition: int
    position: int
    size_bytes: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Staged blob; `holders` are the admin addresses of the brokers that store it."""

    name: str
    size_bytes: int
    sections: tuple[Section, ...]
    holders: tuple[str, ...]

    @property
    def records(self) -> int:
        return sum(section.records for section in self.sections)

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    def entry(self) -> str:
        body = asdict(self)
        del body["holders"]
        return json.dumps(body, separators=(",", ":"))


def blob_from_json(text: str) -> Blob:
    body = json.loads(text)
    sections = tuple(Section(**section) for section in body.pop("sections"))
    return Blob(**body | {"holders": tuple(body["holders"])}, sections=sections)


class BlobParts:
    """Blob under construction: pieces of bytes, and their sections."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self.sections: list[Section] = []
        self.size_bytes = 0

    def add(self, target: Target, partition: int, batches: Sequence[EncodedBatch]) -> None:
        size_bytes = sum(batch.size_bytes for batch in batches)
        self.sections.append(
            Section(
                topic=target.name,
                topic_id=target.topic_id,
                partition=partition,
                position=self.size_bytes,
                size_bytes=size_bytes,
                records=sum(batch.record_count for batch in batches),
            )
        )
        self.pieces += [batch.data for batch in batches]
        self.size_bytes += size_bytes

    def named(self, name: str, holders: tuple[str, ...]) -> Blob:
        return Blob(
            name=name,
            size_bytes=self.size_bytes,
            sections=tuple(self.sections),
            holders=holders,
        )
