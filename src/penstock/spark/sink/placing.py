"""Assignment of a chunk's rows to topics and partitions, by columns.

A row's partition is its column `partition`; if that is missing or null, the key's, as in Kafka's
default partitioner; rows without a key go round the partitions in runs. Rows keep their order
within a partition.
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
"""Fewest rows without a key that go to one partition in a run, so that batches are full."""
MESSAGE_BYTES_DEFAULT: Final = 1_048_588
"""`max.message.bytes` of a topic whose configuration is not readable: the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Topic as the cluster has it now. `batch_bytes_max` is its `max.message.bytes`."""

    name: str
    topic_id: str
    partitions: int
    batch_bytes_max: int = MESSAGE_BYTES_DEFAULT


Resolve = Callable[[str], Target]


class Turns:
    """Next partitions for rows without a key; one for each topic."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._taken: dict[str, int] = {}

    def take(self, target: Target, rows: int) -> Partitions:
        """Return the partitions of the next `rows` rows without a key, in runs of equal length."""
        run = max(RUN_ROWS_MIN, -(-rows // target.partitions))
        first = self._taken.get(target.name, self._start)
        self._taken[target.name] = first + -(-rows // run)
        turns = (first + np.arange(rows) // run) % target.partitions
        return turns.astype(np.int32)


def by_topic(chunk: Any, topic: str | None) -> Iterator[tuple[str, Any]]:
    """Yield topics with the rows of `chunk` that go there; all go to `topic` if it is given.

    Raises:
        InvalidRows: a row names no topic.
    """
    if topic is not None:
        yield topic, chunk
        return
    column = chunk.column(TOPIC)
    if column.null_count:
        raise InvalidRows(
            f"{column.null_count} rows have a null in column topic: filter them out, or set option"
            " topic"
        )
    coded = column.dictionary_encode()
    names = coded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], chunk
        return
    for number, name in enumerate(names):
        yield name, chunk.filter(pc.equal(coded.indices, number))


def by_partition(chunk: Any, rows: Any, target: Target, turns: Turns) -> Iterator[tuple[int, Any]]:
    """Yield partitions in rising order, with their rows in the order of `chunk`.

    `rows` is the result of `read_input` for `chunk`.

    Raises:
        InvalidRows: a row names a partition that the topic does not have.
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
            f"column partition has {wrong}, but topic {target.name} has partitions 0 to"
            f" {target.partitions - 1}: leave the column out to spread rows by key, or add"
            " partitions to the topic"
        )
    return partitions
