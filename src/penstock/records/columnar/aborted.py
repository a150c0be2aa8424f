"""Batches of aborted transactions, as a mask over a table of batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.kernels import records as kernels
from penstock.records.aborted import AbortedRange
from penstock.records.columnar.arrays import Flags, Ints
from penstock.records.header import HEADER_BYTES, TRANSACTIONAL_FLAG

_PRODUCER_ID: Final = np.arange(43, 51) - HEADER_BYTES


def aborted_batches(view: memoryview, table: Ints, ranges: Sequence[AbortedRange]) -> Flags:
    """Return which batches of a table are of aborted transactions.

    They are those within their producer's last range that begins no later: ranges and batches are
    sorted together by producer and offset.
    """
    data = np.frombuffer(view, np.uint8)
    producers = data[table[:, kernels.BEGIN, None] + _PRODUCER_ID].view(">i8")[:, 0]
    limits = np.array(ranges, np.int64).reshape(-1, 3)
    count = len(limits)
    ids = np.concatenate([limits[:, 0], producers])
    offsets = np.concatenate([limits[:, 1], table[:, kernels.BASE_OFFSET]])
    indexes = np.arange(len(ids))
    order = np.lexsort((indexes, offsets, ids))  # at one offset a range comes before its batch
    before = np.maximum.accumulate(np.where(order < count, indexes, -1))
    found = order[before]
    last = np.empty(len(ids), np.int64)
    last[order] = np.where((before >= 0) & (ids[found] == ids[order]), limits[found % count, 2], -1)
    transactional = table[:, kernels.ATTRIBUTES] & TRANSACTIONAL_FLAG != 0
    inside: Flags = transactional & (table[:, kernels.BASE_OFFSET] <= last[count:])
    return inside
