"""Reduction of a batch to the newest row of each key, on Arrow columns.

No row moves between tasks. Each task reduces its own rows, and the driver then reduces the rows of
all tasks. A task whose rows exceed a limit in bytes returns them early and starts again, so the
driver may get several rows of one key.

Arrow compares keys by their bytes and sorts by value. For the types in `_PLAIN` this gives the same
groups and order as Spark, with null as an ordinary key. It does not for floating-point keys (-0.0
equals 0.0, and NaN has many bit patterns) or for nested keys and order columns. Spark itself
reduces these.
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
    """Reduction to the newest row of each key; it can be pickled and passed to `mapInArrow`.

    Args:
        keys: columns of the key.
        order: columns by which a later row is greater; null counts as the greatest value. If
            several rows of a key are equal in all of these columns, any one of them is kept.
        reduced_bytes: a task reduces its rows after this many new bytes or after as many as it
            already holds, whichever is more.
        kept_bytes_max: a task that holds more bytes after a reduction returns its rows.
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
        # Numbers as names, because a key column could itself be called `age` or `age_max`.
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
    """Return the number of distinct rows; -0.0 equals 0.0, and all NaN are equal."""
    if any(pa.types.is_nested(kind) or pa.types.is_floating(kind) for kind in keys.schema.types):
        return len({repr(_same(list(row.values()))) for row in keys.to_pylist()})
    names = [str(number) for number in range(keys.num_columns)]
    return len(pa.table(keys.columns, names=names).group_by(names).aggregate([]))


def _same(value: Any) -> Any:
    """Return the value with -0.0 replaced by 0.0, at any depth."""
    if isinstance(value, list):
        return [_same(item) for item in value]
    if isinstance(value, dict):
        return {name: _same(item) for name, item in value.items()}
    return value + 0.0 if isinstance(value, float) else value


def in_tasks(schema: StructType, *, keys: Sequence[str], order: str) -> bool:
    """Return whether tasks can reduce their rows with Arrow, as `Newest` does.

    This is so if Arrow selects the same newest rows as Spark for columns of these types.
    """
    ordered = schema[order].dataType
    return (_plain(ordered) or isinstance(ordered, FractionalType)) and all(
        _plain(schema[name].dataType) for name in keys
    )


def is_flat(schema: StructType) -> bool:
    """Return whether all values are numbers, times, texts or bytes, none of them nested."""
    kinds = [field.dataType for field in schema]
    return all(_plain(kind) or isinstance(kind, FractionalType) for kind in kinds)


def _plain(kind: DataType) -> bool:
    return isinstance(kind, _PLAIN)
