"""Assignment of rows to topics and partitions, on Arrow columns.

The column `partition` chooses a row's partition. If it is missing or null, the key chooses, as in
Kafka's default partitioner. Rows without a key are distributed over the partitions in turn, in runs
of at least `RUN_ROWS_MIN` rows. Rows of one partition keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.partitioning import Partitions, groups, partitions_of_keys
from penstock.spark.errors import InvalidRows
from penstock.spark.sink.columns import KEY, PARTITION, TOPIC

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
