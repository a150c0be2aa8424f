"""Newest row of each key, by columns of Arrow: in the tasks of a batch, then on the driver.

No row is moved between tasks. Each task keeps its newest rows, and the driver takes the newest of
all tasks'. A task that keeps too many bytes returns its rows and starts again, so the driver may
get several rows of a key.

Arrow compares keys by their bytes and sorts by value. Spark's grouping and order agree for the
types below, with null as a key like others. They do not for floats (-0.0 is 0.0, and NaN has many
forms) and nested types: such keys, and nested orders, are left to Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegralType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_PLAIN: Final = (
    BinaryType, BooleanType, DateType, DecimalType, IntegralType, StringType, TimestampNTZType,
    TimestampType,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """Reduction to the newest row of each key; may be pickled, and given to `mapInArrow`.

    Args:
        keys: columns of the key.
        order: columns by which a later row is greater; a null is the greatest. Of rows that are
            equal in all of them, any.
        reduced_bytes: a task reduces its rows when so many have come, or as many as it keeps.
        kept_bytes_max: a task that keeps more returns its rows.
    """

    keys: tuple[str, ...]
    order: tuple[str, ...]
    reduced_bytes: int = 64 << 20
    kept_bytes_max: int = 256 << 20

    def of(self, rows: pa.Table) -> pa.Table:
        if rows.num_rows < 2:
            return rows
        oldest_first = pc.sort_indices(rows, [(name, "ascending") for name in self.order])
        oldest_first = oldest_first.to_numpy()
        age = np.empty(rows.num_rows, dtype=np.int64)
        age[oldest_first] = np.arange(rows.num_rows)
        # Columns have names of our own, as one may be called like another's maximum.
        names = [str(number) for number in range(len(self.keys))]
        keyed = pa.table([*(rows[name] for name in self.keys), age], names=[*names, "age"])
        found = keyed.group_by(names).aggregate([("age", "max")])
        newest = np.zeros(rows.num_rows, dtype=bool)
        newest[oldest_first[found["age_max"].to_numpy()]] = True
        return rows.filter(pa.array(newest))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kept: list[pa.RecordBatch] = []
        kept_bytes = come_bytes = 0
        for batch in batches:
            kept.append(batch)
            come_bytes += batch.nbytes
            if come_bytes < max(self.reduced_bytes, kept_bytes):
                continue
            kept, come_bytes = self.of(pa.Table.from_batches(kept)).to_batches(), 0
            kept_bytes = sum(part.nbytes for part in kept)
            if kept_bytes > self.kept_bytes_max:
                yield from kept
                kept, kept_bytes = [], 0
        if kept:
            yield from self.of(pa.Table.from_batches(kept)).to_batches()


def distinct(keys: pa.Table) -> int:
    """Return the number of distinct rows, where the two zeros are equal, as are all NaN."""
    if any(pa.types.is_nested(kind) or pa.types.is_floating(kind) for kind in keys.schema.types):
        return len({repr(_same(list(row.values()))) for row in keys.to_pylist()})
    names = [str(number) for number in range(keys.num_columns)]
    return len(pa.table(keys.columns, names=names).group_by(names).aggregate([]))


def _same(value: Any) -> Any:
    """Return the value with the two zeros of floating types made one."""
    if isinstance(value, list):
        return [_same(item) for item in value]
    if isinstance(value, dict):
        return {name: _same(item) for name, item in value.items()}
    return value + 0.0 if isinstance(value, float) else value


def in_tasks(schema: StructType, *, keys: Sequence[str], order: str) -> bool:
    """Whether Arrow finds the same rows as Spark, for columns of these types."""
    ordered = schema[order].dataType
    return (_plain(ordered) or isinstance(ordered, FractionalType)) and all(
        _plain(schema[name].dataType) for name in keys
    )


def _plain(kind: DataType) -> bool:
    return isinstance(kind, _PLAIN)
