"""Batches as a reader yields them, from keys and their numbers of records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.client.partitioning import partitions_of_keys
from penstock.planner.keys.census import Census, CensusResult
from penstock.planner.keys.inputs import KeysInputs, partition_counts
from penstock.planner.keys.plan import Scope


def batch(
    keys: list[bytes | None],
    *,
    partitions: int = 1,
    value: bytes | None = b"0123456789",
    times: list[int] | None = None,
) -> Any:
    """Return records placed by Kafka's partitioner; those without a key in partition 0."""
    column = pa.array(keys, pa.binary())
    return pa.record_batch(
        {
            "partition": pa.array(partitions_of_keys(column, partitions, unkeyed=0)),
            "timestamp": pa.array(times or list(range(len(keys))), pa.int64()),
            "key": column,
            "value": pa.array([value] * len(keys), pa.binary()),
        }
    )


def spread(counts: Mapping[bytes, int], seed: int = 0) -> list[bytes | None]:
    """Return every key as often as given, in random order."""
    keys = np.repeat(np.array(list(counts), object), list(counts.values()))
    np.random.default_rng(seed).shuffle(keys)
    found: list[bytes | None] = keys.tolist()
    return found


def count(
    counts: Mapping[bytes, int],
    *,
    partitions: int = 8,
    inputs: KeysInputs | None = None,
    rows: int = 1000,
    pending: int = 1 << 20,
) -> CensusResult:
    """Return a census of these keys, in batches."""
    wanted = inputs or KeysInputs()
    census = Census(
        partitions,
        partition_counts(wanted, partitions),
        wanted.tracked_keys,
        pending_rows_max=pending,
    )
    whole = batch(spread(counts), partitions=partitions)
    for start in range(0, whole.num_rows, rows):
        census.add(whole.slice(start, rows))
    return census.result()


def scope(partitions: int = 8, *, complete: bool = True) -> Scope:
    sizes = np.full(partitions, 10, np.int64)
    return Scope(topic="t", read="all of it", complete=complete, sizes=sizes)
