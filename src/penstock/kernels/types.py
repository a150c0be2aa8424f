"""Types of all kernels, importable without Numba to make tables of numbers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

READ: Final = "Array(uint8, 1, 'C', readonly=True)"
"""In a signature: bytes that are read, whether they may be written or not."""

int64: Any = np.int64
"""A number that is signed whatever it was: Numba takes what is made of bytes for unsigned."""
