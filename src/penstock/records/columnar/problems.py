"""What the kernels found wrong with the records of a batch, in words."""

from __future__ import annotations

from typing import Any

from penstock.kernels import records as kernels
from penstock.records.errors import CorruptBatch

_REASONS = {
    kernels.MISFIT: "the records of a batch do not fill it, as shows at byte {place}",
    kernels.BAD_END: "it does not end where its length says, it begins at byte {place}",
    kernels.BAD_VARINT: "a varint of it has too many bytes or bits, it begins at byte {place}",
    kernels.OUTSIDE: "its offset lies outside its batch",
    kernels.GAP: "its offset delta is {place}, {record} was expected",
    kernels.MANY_HEADERS: "it says it has more headers than fit into it",
    kernels.BAD_HEADERS: "the headers of a record do not fill it",
}


def corrupt(problem: int, state: Any) -> CorruptBatch:
    """The error for a problem that `read_records` returned, without the name of the batch."""
    record = max(int(state[kernels.RECORD]), 0)
    reason = _REASONS[problem].format(place=int(state[kernels.PLACE]), record=record)
    return CorruptBatch(reason, record=record)
