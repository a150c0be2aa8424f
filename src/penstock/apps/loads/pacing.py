"""Random moments of many independent producers: a Poisson process."""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.base.system import SYSTEM_RANDOMNESS


def moments(
    begin: float,
    count: int,
    per_second: float,
    uniform: Callable[[], float] = SYSTEM_RANDOMNESS.uniform,
) -> list[float]:
    """Return `count` moments after `begin`, in seconds; `uniform` draws from [0, 1)."""
    moment, found = begin, []
    for _ in range(count):
        moment -= math.log(1.0 - uniform()) / per_second
        found.append(moment)
    return found
