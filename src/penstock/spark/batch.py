"""Batch reader: one offset range per partition, with the end fixed at `load()`.

Spark may plan a DataFrame several times. Because the end offsets are fixed, every plan reads the
same records. The start `earliest` is resolved only during planning, because retention may delete
records in between. Filters are left to Spark: if the source took one, Spark would apply it to every
use of the DataFrame (decision 0057).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader

from penstock.base.ids import TopicPartition
from penstock.records.positions import EARLIEST, LATEST
from penstock.spark.broker_log import BrokerLog
from penstock.spark.errors import DataLoss
from penstock.spark.extents import extents_of
from penstock.spark.log import Log, caught_up, check_lineage, latest, resolve
from penstock.spark.opening import Opening
from penstock.spark.options import Bound, SourceOptions
from penstock.spark.planning import Range, plan
from penstock.spark.positions import Positions
from penstock.spark.slices import Task

FROM_START: Final = Bound(option="startingOffsets", kind="offset", everywhere=EARLIEST)
TO_END: Final = Bound(option="endingOffsets", kind="offset", everywhere=LATEST)


class PenstockReader(DataSourceReader):
    """Batch reader of the offsets [start, end) of the selected partitions."""

    def __init__(
        self, options: SourceOptions, end: Positions, opening: Opening | None = None
    ) -> None:
        self._options = options
        self._opening = opening
        self._end = end

    def partitions(self) -> list[Task]:
        """Return the tasks of a plan; Spark calls this on the driver, once per plan."""
        extents = extents_of(self._options)
        options = self._options
        log = BrokerLog(options.bootstrap, options.isolation_level, options.security)
        try:
            tasks = plan(self._ranges(log), extents, parallelism=self._options.parallelism)
        finally:
            log.close()
            if extents is not None:
                extents.close()
        return tasks or [Task(())]

    def read(self, partition: Task) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Return a task's records; Spark calls this on an executor."""
        from penstock.spark.reading import reader_of  # planners do without what opens records

        return reader_of(self._options, self._opening).read(partition)

    def _ranges(self, log: Log) -> dict[TopicPartition, Range]:
        options = self._options
        start = caught_up(log, lambda: resolve(log, options, options.start or FROM_START))
        check_lineage(start, self._end, require_progress=False)
        caught_up(log, lambda: check_lineage(self._end, latest(log, options)))
        first = resolve(log, options, FROM_START)
        ranges: dict[TopicPartition, Range] = {}
        for at, position in self._end.partitions.items():
            low = start.offset(at)
            if low is None:
                continue
            floor = first.partitions[at].offset
            if low < floor and options.fail_on_data_loss:
                raise DataLoss(at.topic, at.partition, low, floor)
            ranges[at] = (max(low, floor), position.offset)
        return ranges
