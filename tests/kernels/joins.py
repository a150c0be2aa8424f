"""The kernels of Produce requests for buffers of any kind, also where Numba compiles them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.kernels import produce


def find_batch(request: bytes, *rest: Any) -> tuple[int, int]:
    find: Any = produce.find_batch
    start, size_bytes = find(np.frombuffer(request, np.uint8), *rest)
    return int(start), int(size_bytes)


def join_batches(data: bytes, starts: Any, lengths_at: Any, *rest: Any) -> tuple[int, int]:
    *limits, batches, headers = rest
    join: Any = produce.join_batches
    count, size_bytes = join(
        np.frombuffer(data, np.uint8),
        np.frombuffer(starts, np.int64),
        np.frombuffer(lengths_at, np.int64),
        *limits,
        np.frombuffer(batches, np.uint8),
        np.frombuffer(headers, np.uint8),
    )
    return int(count), int(size_bytes)


def joined(
    requests: Sequence[bytes],
    lengths_at: Sequence[int],
    *,
    compact: bool,
    limits: Sequence[int],
    base_offset: int = 0,
    epoch: int = 0,
) -> tuple[int, bytes, bytes]:
    """Join requests; return the number of joined batches, their bytes, and their headers."""
    starts = np.cumsum([0, *map(len, requests)])
    data = b"".join(requests)
    batches, headers = bytearray(len(data)), bytearray(61 * len(requests))
    count, size_bytes = join_batches(
        data, starts, starts[:-1] + np.array(lengths_at, np.int64), compact, *limits, base_offset,
        epoch, batches, headers,
    )  # fmt: skip
    return count, bytes(batches[:size_bytes]), bytes(headers[: 61 * count])
