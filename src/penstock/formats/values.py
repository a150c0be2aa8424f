"""Values of a batch as kernels read them, and their problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.base.errors import InvalidError
from penstock.formats.limits import BATCH_BYTES_MAX

Longs = npt.NDArray[np.int64]

ABSENT: Final = -1
"""Problem of a null, which is not an error."""
REASONS: Final = 32
"""Factor: a problem is the number of a place times this, plus the number of a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Start and end of each value in `data`, and its problem: 0 for none."""

    data: npt.NDArray[np.uint8]
    starts: Longs
    ends: Longs
    problems: Longs

    @classmethod
    def of(cls, values: pa.BinaryArray) -> Self:
        """Return the values of an array of type binary, without a copy of their bytes.

        Raises:
            InvalidError: they are more than a batch can have.
        """
        count = len(values)
        _, offsets, held = values.buffers()
        bounds = np.zeros(1, np.int32)
        if count:
            bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + count + 1]
        data = np.frombuffer(held, np.uint8) if held is not None else np.zeros(0, np.uint8)
        if bounds[-1] - bounds[0] > BATCH_BYTES_MAX:
            raise InvalidError(
                f"a batch of {bounds[-1] - bounds[0]} bytes of values is more than"
                f" {BATCH_BYTES_MAX}: lower spark.sql.execution.arrow.maxRecordsPerBatch"
            )
        problems = np.zeros(count, np.int64)
        if values.null_count:
            problems[values.is_null().to_numpy(zero_copy_only=False)] = ABSENT
        starts, ends = bounds[:-1].astype(np.int64), bounds[1:].astype(np.int64)
        return cls(data=data, starts=starts, ends=ends, problems=problems)

    def __len__(self) -> int:
        return self.starts.size

    @property
    def size_bytes(self) -> int:
        return int(self.ends[-1] - self.starts[0]) if len(self) else 0

    def texts(self, words: Callable[[int, int], str]) -> pa.StringArray:
        """Return the error of each value; null for valid and absent ones.

        Args:
            words: returns the text of a place and a reason, by their numbers.
        """
        wrong = self.problems > 0
        if not wrong.any():
            return pa.nulls(len(self), pa.string())
        numbers, index = np.unique(np.where(wrong, self.problems, 0), return_inverse=True)
        table = [words(*divmod(number, REASONS)) if number else None for number in numbers.tolist()]
        return pa.array(table, pa.string()).take(pa.array(index.reshape(-1)))
