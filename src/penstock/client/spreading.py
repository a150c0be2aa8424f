"""Distribution of a table's rows to partitions: by the partitioner, by a column, or all to one.

Only the addresses of rows are sorted; the encoder copies the rows once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.client.errors import InvalidArgument
from penstock.client.partitioning import Partitions, groups, partitions_of_keys


def spread(
    chunk: Any, rows: Any, *, topic: str, count: int, unkeyed: int
) -> Iterator[tuple[int, Any]]:
    """Yield partitions with their rows, each in the order of the input.

    `chunk` is a result of `columns.normalise`, with a column `partition` or `key`; `rows` is the
    result of `read_input` for it. Rows without a key go to `unkeyed`.

    Raises:
        InvalidArgument: a partition that the topic, of `count` partitions, does not have.
    """
    if "partition" in chunk.schema.names:
        partitions: Partitions = chunk.column("partition").to_numpy()
        check_partitions(topic, count, int(partitions.min()), int(partitions.max()))
    else:
        partitions = partitions_of_keys(chunk.column("key"), count, unkeyed=unkeyed)
    if count == 1 or bool((partitions == partitions[0]).all()):
        yield int(partitions[0]), rows
        return
    order, bounds = groups(partitions, count)
    ordered = rows.select(order)  # copies addresses only
    for partition in np.flatnonzero(np.diff(bounds)).tolist():
        yield partition, ordered.select(slice(bounds[partition], bounds[partition + 1]))


def check_partitions(topic: str, count: int, lowest: int, highest: int) -> None:
    """Raise `InvalidArgument` unless a topic of `count` partitions has these."""
    if lowest < 0 or highest >= count:
        wrong = lowest if lowest < 0 else highest
        raise InvalidArgument(f"partition {wrong}: topic {topic!r} has partitions 0 to {count - 1}")
