"""Skew of keys: their shares, and the share of the hottest partition.

A key always hashes to one partition, so that partition has at least the key's share, whatever the
number of partitions. The other keys fall on it as on all others. In addition, keys of any skew
collide: the load of a partition varies around the mean with the sum of the squared shares, and the
largest of P such loads lies about sqrt(2 ln P) deviations above it.

Source: extreme values of normal variables; Zipf's law.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Final

import numpy as np

from penstock.planner.capacity.inputs import CapacityInputs

_EXACT: Final = 10_000
"""Ranks with an exact sum; the rest is an integral with its first correction."""
_EXPONENT_MAX: Final = 10.0
_HALVINGS: Final = 60
TOP: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """Share of the busiest key, and the sum of the squared shares of all others."""

    keys: int
    hottest_share: float
    others_squared: float

    def hottest_partition(self, partitions: int) -> float:
        if partitions <= 1:
            return 1.0
        if not self.keys:
            return 1.0 / partitions
        pinned = self.hottest_share + (1.0 - self.hottest_share) / partitions
        deviation = sqrt(self.others_squared / partitions * (1 - 1 / partitions))
        crowded = 1.0 / partitions + deviation * sqrt(2 * log(partitions))
        return min(1.0, max(pinned, crowded))


def skew_of(inputs: CapacityInputs) -> Skew:
    keys = inputs.keys
    if not keys:
        return Skew(keys=0, hottest_share=0.0, others_squared=0.0)
    if inputs.hottest_key_share:
        share = inputs.hottest_key_share
        others = (1.0 - share) ** 2 / max(1, keys - 1)
        return Skew(keys=keys, hottest_share=share, others_squared=others)
    exponent = inputs.zipf_exponent
    if inputs.top_percent_share:
        exponent = exponent_of(keys, inputs.top_percent_share)
    total = harmonic(keys, exponent)
    squares = harmonic(keys, 2 * exponent)
    return Skew(
        keys=keys,
        hottest_share=1.0 / total,
        others_squared=max(0.0, (squares - 1.0) / total**2),
    )


def top_keys(keys: int) -> int:
    return max(1, round(TOP * keys))


def exponent_of(keys: int, share: float) -> float:
    """Return the exponent of Zipf's law at which the busiest 1 % of the keys have this share."""
    low, high, top = 0.0, _EXPONENT_MAX, top_keys(keys)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if harmonic(top, middle) < share * harmonic(keys, middle):
            low = middle
        else:
            high = middle
    return high


def harmonic(count: int, exponent: float) -> float:
    """Return the sum of 1/n to a power, over n from 1 to `count`."""
    exact = min(count, _EXACT)
    ranks = np.arange(1, exact + 1, dtype=np.float64)
    found = float(np.sum(ranks**-exponent))
    if count == exact:
        return found
    first, last = exact + 0.5, count + 0.5
    if abs(exponent - 1.0) < 1e-9:
        return found + log(last / first)
    power = 1.0 - exponent
    return found + (exp(power * log(last)) - exp(power * log(first))) / power


def salt_ways(share: float, allowed: float) -> int:
    if share <= allowed or allowed <= 0:
        return 1
    ways = share / allowed
    return int(-(-ways // 1)) if ways < 1e9 else 1_000_000_000
