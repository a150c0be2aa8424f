"""NumPy array types of the codec; brokers import them without loading Arrow."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int64] | npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
