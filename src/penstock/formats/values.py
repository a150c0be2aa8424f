"""Record values of a batch as kernels read them, with a problem number for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.base.errors import InvalidError
from penstock.formats.value_format import BATCH_BYTES_MAX

Longs = npt.NDArray[np.int64]

ABSENT: Final = -1
"""Problem number of a null value, which is not an error."""
REASONS: Final = 32
"""Factor of problem numbers: place * REASONS + reason, each a number of the kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Start and end of each value in `data`, and its problem number: 0 for none."""

    data: npt.NDArray[np.uint8]
    starts: Longs
    ends: Longs
    problems: Longs

    @classmethod
    def of(cls, values: pa.BinaryArray) -> Self:
        """Return the values of a binary array, without copying their bytes.

        Raises:
            InvalidError: the values have more than `BATCH_BYTES_MAX` bytes.
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
        return int((self.ends - self.starts).sum())

    def take(self, rows: Longs) -> Self:
        """Return some of the values; their starts and problems are copies."""
        return replace(
            self, starts=self.starts[rows], ends=self.ends[rows], problems=self.problems[rows]
        )

    def texts(self, words: Callable[[int, int], str]) -> pa.StringArray:
        """Return the error text of each value; null for valid and null values.

        Args:
            words: returns the text for a place in the schema and a reason, both given as numbers.
        """
        wrong = self.problems > 0
        if not wrong.any():
            return pa.nulls(len(self), pa.string())
        numbers, index = np.unique(np.where(wrong, self.problems, 0), return_inverse=True)
        table = [words(*divmod(number, REASONS)) if number else None for number in numbers.tolist()]
        return pa.array(table, pa.string()).take(pa.array(index.reshape(-1)))
