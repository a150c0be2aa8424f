"""Types that all kernels use; importing them does not import Numba."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

READ: Final = "Array(uint8, 1, 'C', readonly=True)"
"""Type of bytes that a kernel only reads; accepts read-only and writable arrays."""

int64: Any = np.int64
"""Conversion to a signed number, because Numba computes with unsigned bytes as unsigned."""
