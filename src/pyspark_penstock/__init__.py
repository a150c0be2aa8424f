"""Registration of the format `penstock` with Spark.

Spark imports every installed package named `pyspark_*` before the first use of any Python data
source, so this one imports next to nothing: what does the work is loaded when a query names the
format.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.spark.reads.daemon import hush_planner

if TYPE_CHECKING:
    from penstock.spark.sessions.source import PenstockSource

__all__ = ["DefaultSource"]

hush_planner()


class DefaultSource(DataSource):
    """`penstock.spark.sessions.source.PenstockSource`, loaded when it is needed."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        from penstock.spark.sessions.source import PenstockSource

        self._source: PenstockSource = PenstockSource(options)

    @classmethod
    def name(cls) -> str:
        """The word for `format()`."""
        return "penstock"

    def schema(self) -> StructType:
        """The columns asked for."""
        return self._source.schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader."""
        return self._source.reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A micro-batch reader."""
        return self._source.streamReader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch writer."""
        return self._source.writer(schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """A streaming writer."""
        return self._source.streamWriter(schema, overwrite)
