"""How many distinct keys there are, in 16 KiB: HyperLogLog over 32-bit hashes, by columns.

The first 14 bits of a key's hash choose a register, which keeps the largest position of the
first one among the other 18. The harmonic mean of `2^register` gives the number, with a standard
error of `1.04 / √16384` = 0.81 %. Few keys are counted by empty registers (linear counting), very
many are corrected for hashes that collide.

Source: Flajolet, Fusy, Gandouet, Meunier: HyperLogLog (2007), whose hashes have 32 bits too.
"""

from __future__ import annotations

from math import log, sqrt
from typing import Final

import numpy as np

from penstock.client.partitioning import Hashes

_INDEX_BITS: Final = 14
_REST_BITS: Final = 32 - _INDEX_BITS
REGISTERS: Final = 1 << _INDEX_BITS
_ALPHA: Final = 0.7213 / (1 + 1.079 / REGISTERS)
_HASHES: Final = 2.0**32

STANDARD_ERROR: Final = 1.04 / sqrt(REGISTERS)


class DistinctEstimate:
    """A set that only knows about how large it is. Adding a hash again changes nothing."""

    __slots__ = ("_registers",)

    def __init__(self) -> None:
        self._registers = np.zeros(REGISTERS, np.uint8)

    def add(self, hashes: Hashes) -> None:
        """Add 32-bit hashes."""
        rest = (hashes & np.uint32((1 << _REST_BITS) - 1)).astype(np.float64)
        bit_lengths = np.frexp(rest)[1]
        places = (_REST_BITS + 1 - bit_lengths).astype(np.uint8)
        np.maximum.at(self._registers, hashes >> np.uint32(_REST_BITS), places)

    def value(self) -> float:
        """About how many different hashes were added."""
        raw = _ALPHA * REGISTERS**2 / float(np.ldexp(1.0, -self._registers.astype(np.int32)).sum())
        empty = REGISTERS - int(np.count_nonzero(self._registers))
        if raw <= 2.5 * REGISTERS and empty:
            return REGISTERS * log(REGISTERS / empty)
        if raw > _HASHES / 30:
            return -_HASHES * log(1 - min(raw / _HASHES, 1 - 1 / _HASHES))
        return raw
