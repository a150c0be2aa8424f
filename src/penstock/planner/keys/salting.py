"""What salting does to the loads of partitions: key ‖ ":" ‖ (sequence mod n), as it is written.

A salted key has n names, each with an n-th of its records, and each name is hashed. So its load
spreads over at most n partitions, and no partition has less than an n-th of it where a name of
it falls: the hottest partition keeps at least `share / n`. Names may fall on one partition.

Source: the log and queue article, hot partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.partitioning import murmur2
from penstock.planner.keys.census import CensusResult, Loads

_POSITIVE: Final = np.uint32(0x7FFFFFFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaltEffect:
    """Loads of all partitions, in keyed records, with `salts` names for each salted key."""

    salts: int
    loads: Loads

    @property
    def hottest_share(self) -> float:
        total = float(self.loads.sum())
        return float(self.loads.max()) / total if total else 0.0

    @property
    def skew(self) -> float:
        """The hottest partition's load by the mean."""
        return self.hottest_share * len(self.loads)


def salted_keys(keys: Any, salt: int) -> Any:
    """The name of every key with one salt."""
    suffix = pa.scalar(b":" + str(salt).encode(), keys.type)
    empty = pa.scalar(b"", keys.type)
    return pc.binary_join_element_wise(keys, suffix, empty)


def salt_effects(
    census: CensusResult, partitions: int, salts: Sequence[int], salted: int | None
) -> tuple[SaltEffect, ...]:
    """Loads when the first `salted` of the ranked keys get 1, 2, … names; 1 is as it is.

    None salts all keys. Those that the summary does not hold are then taken as spread evenly,
    which many salted keys are.
    """
    keys = census.keys if salted is None else census.keys.slice(0, salted)
    records = census.key_records[:salted].astype(np.float64)
    before = census.loads[partitions]
    rest = np.maximum(before - _placed(keys, records, partitions), 0.0)
    if salted is None:
        rest = np.full(partitions, rest.sum() / partitions)
    effects = [SaltEffect(salts=1, loads=before)]
    spread = np.zeros(partitions)
    names = 0
    for count in sorted({one for one in salts if one > 1}):
        for salt in range(names, count):
            spread += _placed(salted_keys(keys, salt), records, partitions)
        names = count
        effects.append(SaltEffect(salts=count, loads=rest + spread / count))
    return tuple(effects)


def _placed(keys: Any, records: Loads, partitions: int) -> Loads:
    places = (murmur2(keys) & _POSITIVE) % np.uint32(partitions)
    return np.bincount(places, weights=records, minlength=partitions).astype(np.float64)
