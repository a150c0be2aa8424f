"""The least that a source in Python costs Spark: rows that are there, and nothing to read.

Format `prepared` has the columns of format `penstock` and hands out one Arrow batch again and
again: the same bytes through the same transport. Its options are `columns`, `rows` and
`valueBytes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from penstock.spark.schema import BATCH_ROWS_MAX, arrow_schema, spark_schema

NAME: Final = "prepared"
TASKS: Final = 2
_PLACE: Final = "rows"


class PreparedSource(DataSource):
    """What comes through when nothing has to be read."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return spark_schema(tuple(self.options["columns"].split(",")))

    def reader(self, schema: StructType) -> _Reader:
        return _Reader(self.options)

    def streamReader(self, schema: StructType) -> _StreamReader:  # noqa: N802
        return _StreamReader(self.options)


class _Reader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._columns = tuple(options["columns"].split(","))
        self._value_bytes = int(options["valueBytes"])
        self.rows = int(options["rows"])

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.rows // TASKS) for _ in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        full = prepared(self._columns, self._value_bytes)
        for left in range(partition.value, 0, -BATCH_ROWS_MAX):
            yield full if left >= BATCH_ROWS_MAX else full.slice(0, left)


class _StreamReader(DataSourceStreamReader):
    """All rows in the first batch, and none after it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._batch = _Reader(options)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {_PLACE: 0}

    def latestOffset(self, start: Any, limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {_PLACE: self._batch.rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return self._batch.partitions() if end != start else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._batch.read(partition)


@lru_cache(maxsize=1)
def prepared(columns: tuple[str, ...], value_bytes: int) -> pa.RecordBatch:
    """A full batch of these columns with values of this size."""
    samples: dict[str, Any] = {
        "key": b"12345678", "value": b"x" * value_bytes, "topic": "bench", "partition": 1,
        "offset": 1 << 30, "timestamp": 1 << 50, "timestampType": 0,
    }  # fmt: skip
    schema = arrow_schema(columns)
    arrays = [pa.array([samples[field.name]] * BATCH_ROWS_MAX).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
