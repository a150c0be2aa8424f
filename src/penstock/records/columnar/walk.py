"""Check of the records of one batch by a kernel, with errors in words."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from penstock.base.crc import Readable
from penstock.kernels import records as kernels
from penstock.records.columnar.arrays import Ints
from penstock.records.errors import CorruptBatch

_OFFSET_MAX: Final = 2**63 - 1
_DELTA_MAX: Final = 2**31 - 1
_NOTHING: Final = (
    np.empty((2, 0), np.int64),
    np.empty((2, 0, 2), np.uint64),
    np.empty((3, 0), np.int32),
    np.empty((2, 0), np.int32),
    np.empty(0, np.uint8),
)
_NO_BITMAPS: Final = np.empty((2, 0), np.uint8)
_REASONS: Final = {
    kernels.MISFIT: "the records of the batch do not fill it: the mismatch is at byte {place}",
    kernels.BAD_END: "the record at byte {place} does not end where its length field says",
    kernels.BAD_VARINT: "the record at byte {place} has a varint with too many bytes or bits",
    kernels.OUTSIDE: "its offset is outside of its batch",
    kernels.GAP: "its offset delta is {place}, expected {record}",
    kernels.MANY_HEADERS: "it declares more headers than fit into it",
    kernels.BAD_HEADERS: "its headers do not fill the record",
}


def corrupt(problem: int, state: Any) -> CorruptBatch:
    """Return the error for a problem that `read_records` reports; it does not name the batch."""
    record = max(int(state[kernels.RECORD]), 0)
    return CorruptBatch(explained(problem, record, int(state[kernels.PLACE])), record=record)


def explained(problem: int, record: int, place: int) -> str:
    return _REASONS[problem].format(place=place, record=record)


def walk(section: Readable, count: int, *, keyed: bool) -> Ints:
    """Check that a section consists of exactly `count` consecutive records.

    With `keyed`, return the indexes of the records without a key, else an empty array.

    Raises:
        CorruptBatch: a record is invalid; the error has its index.
    """
    table = np.zeros((1, kernels.BATCH_FIELDS), np.int64)
    table[0, kernels.END], table[0, kernels.COUNT] = len(section), count
    table[0, kernels.LAST_DELTA] = _DELTA_MAX
    valid = np.full((2, count // 8 + 1), 0xFF, np.uint8) if keyed else _NO_BITMAPS
    state = np.zeros(kernels.STATE_FIELDS, np.int64)
    problem = kernels.read_records(
        np.frombuffer(section, np.uint8), table, 0, 1, kernels.CONSECUTIVE | kernels.HEADERS,
        0, _OFFSET_MAX, 0, *_NOTHING, valid, state,
    )  # fmt: skip
    if problem:
        raise corrupt(problem, state)
    if not keyed or not state[kernels.NULL_KEYS]:
        return np.empty(0, np.int64)
    return np.flatnonzero(np.unpackbits(valid[0], count=count, bitorder="little") == 0)
