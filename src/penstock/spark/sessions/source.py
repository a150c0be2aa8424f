"""Data source `penstock` of Spark.

    spark.readStream.format("penstock").option("bootstrap", "localhost:9092")
        .option("penstock.admin.url", "http://localhost:9644").option("subscribe", "orders").load()

    orders.writeStream.format("penstock").option("topic", "orders-clean")….start()

Spark creates an instance at `load()`, pickles it, and creates readers from copies in other
processes. All copies must read up to the same end offsets. Therefore `schema()` requests the end
offsets: Spark calls it once, before it pickles the instance.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import cached_property

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from penstock.spark.errors import InvalidOption
from penstock.spark.options import SourceOptions, parse
from penstock.spark.reads.broker_log import BrokerLog
from penstock.spark.reads.daemon import hush_planner
from penstock.spark.reads.log import caught_up, resolve
from penstock.spark.reads.positions import Positions
from penstock.spark.reads.stream import TO_END, PenstockReader, PenstockStreamReader
from penstock.spark.schema import Opening, spark_schema

hush_planner()


class PenstockSource(DataSource):
    """Data source `penstock`: reads a Penstock or Kafka log in batches and streams, and writes to
    it.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = options
        self._end: Positions | None = None

    @classmethod
    def name(cls) -> str:
        return "penstock"

    @cached_property
    def _parsed(self) -> SourceOptions:
        # Reads and writes have different options, and Spark does not say here which one this is.
        return parse(self._given)

    @cached_property
    def _opening(self) -> Opening | None:
        if self._parsed.value_format.kind == "raw":
            return None
        from penstock.spark.formats.decoders import opening_of

        return opening_of(self._parsed)

    def schema(self) -> StructType:
        """Return the schema of the selected columns, and fix the end offsets of a batch read."""
        self._end = self._resolved_end()
        return self._schema()

    def _schema(self) -> StructType:
        added = () if self._opening is None else self._opening.schema
        return StructType([*spark_schema(self._parsed.columns), *added])

    def reader(self, schema: StructType) -> PenstockReader:
        """Return a batch reader that ends at the offsets fixed by `load()`."""
        self._check_schema(schema)
        end = self._end or self._resolved_end()
        return PenstockReader(self._parsed, end, self._opening)

    def streamReader(self, schema: StructType) -> PenstockStreamReader:  # noqa: N802
        self._check_schema(schema)
        if self._parsed.end is not None:
            raise InvalidOption(
                self._parsed.end.option, "set", "a stream has no end; use this only in spark.read"
            )
        return PenstockStreamReader(self._parsed, self._opening)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return a batch writer, which makes one commit for the whole data frame."""
        from penstock.spark.sink.options import parse as parse_sink
        from penstock.spark.sink.writer import LogBatchWriter

        return LogBatchWriter(parse_sink(self._given), schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return a streaming writer, which makes one commit for each micro-batch."""
        from penstock.spark.sink.options import parse as parse_sink
        from penstock.spark.sink.writer import LogStreamWriter

        return LogStreamWriter(parse_sink(self._given), schema, overwrite)

    def _resolved_end(self) -> Positions:
        parsed = self._parsed
        log = BrokerLog(parsed.bootstrap, parsed.isolation_level, parsed.security)
        try:
            return caught_up(log, lambda: resolve(log, parsed, parsed.end or TO_END))
        finally:
            log.close()

    def _check_schema(self, schema: StructType) -> None:
        expected = self._schema()
        if schema != expected:
            raise InvalidOption(
                "schema", schema.simpleString(),
                f"must be {expected.simpleString()}. Select columns with the option columns",
            )  # fmt: skip
