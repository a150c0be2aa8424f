"""How unequal keys are: the share of the top, Gini's coefficient, Zipf's exponent."""

from __future__ import annotations

from math import ceil
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.planner.keys.summary import Counts

ZIPF_RANKS_MAX: Final = 1000
ZIPF_RANKS_MIN: Final = 3


def top_share(counts: Counts, total: int, distinct: float, part: float) -> float:
    """The share of the first `part` of all keys, at least one; `counts` are ranked.

    Of keys that are not among `counts` none is known, so it is at least this share.
    """
    if not total:
        return 0.0
    return float(counts[: keys_in(distinct, part)].sum()) / total


def keys_in(distinct: float, part: float) -> int:
    """How many keys a part of all are: rounded up, at least one."""
    return max(1, ceil(round(distinct * part, 6)))


def gini(counts: Counts, total: int, distinct: float) -> float:
    """0 when all keys have as many records, towards 1 when one has all.

    Records that are not among `counts` are taken as spread evenly over the keys that are not. With
    true counts that makes it a lower bound.
    """
    rest_keys = max(0.0, distinct - len(counts))
    rest = max(0.0, float(total - counts.sum()))
    keys = len(counts) + rest_keys
    if not total or not keys:
        return 0.0
    rising = counts[::-1].astype(np.float64)
    # The sum over ranks (from 1, rising) of rank × count; the even rest stands below.
    places = rest_keys + np.arange(1, len(rising) + 1)
    weighted = float((places * rising).sum()) + (rest * (rest_keys + 1) / 2 if rest_keys else 0.0)
    known = float(rising.sum()) + (rest if rest_keys else 0.0)
    if not known:
        return 0.0
    return max(0.0, 2 * weighted / (keys * known) - (keys + 1) / keys)


def zipf_exponent(counts: Counts, error: int = 0) -> float | None:
    """`s` of count ~ rank^-s over the first ranks, by least squares of logarithms.

    Counts that are not ten times their error are left out. None below three keys.
    """
    head = counts[:ZIPF_RANKS_MAX]
    head = head[head > 10 * error]
    if len(head) < ZIPF_RANKS_MIN:
        return None
    ranks: npt.NDArray[np.float64] = np.log(np.arange(1, len(head) + 1, dtype=np.float64))
    slope = np.polyfit(ranks, np.log(head.astype(np.float64)), 1)[0]
    return float(max(0.0, -slope))


def hot_keys(counts: Counts, total: int, partitions: int) -> int:
    """How many of the ranked keys each bring more than a partition's even share.

    There are fewer of them than partitions.
    """
    return int(np.count_nonzero(counts * partitions > total))
