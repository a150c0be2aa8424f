"""Table of one topic: a streaming query whose every batch is one commit.

The query reads the topic from its start with every column of the source and appends through
`DeltaSink`. The checkpoint is in the table's directory, under `_penstock`, which readers of tables
ignore. A batch's end is read from the checkpoint and committed with its rows (see `positions.py`).
Before a query starts the table is compared with the log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, SparkSession

from penstock.base.errors import InvalidError
from penstock.spark import errors
from penstock.spark.errors import InvalidOption
from penstock.spark.listener import positions_of
from penstock.spark.schema import COLUMN_NAMES
from penstock.spark.tables.append import DeltaSink
from penstock.spark.tables.location import filesystem, open_table
from penstock.spark.tables.positions import TopicPositions, check_reaches, check_topic, of_topic
from penstock.spark.tables.reconciler import WantedTable

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.client import Client

TRIGGER_BYTES_MAX: Final = 512 << 20
OFFSETS_FILE_BYTES_MAX: Final = 64 << 20
PROBLEM_CHARS_MAX: Final = 500
CHECKPOINT: Final = "_penstock/checkpoint"
_OURS: Final = re.compile(r"penstock\.spark\.errors\.(\w+): (.+)")


def group_of(topic: str) -> str:
    return f"penstock-table-{topic}"


class TopicTable:
    """Query of one topic. `make_sink` makes `sink`, which appends."""

    def __init__(
        self,
        spark: SparkSession,
        wanted: WantedTable,
        *,
        bootstrap: str,
        admin_url: str | None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.wanted = wanted
        self.checkpoint = f"{wanted.location}/{CHECKPOINT}"
        self._spark = spark
        self._options = {
            "bootstrap": bootstrap,
            "subscribe": wanted.topic,
            "startingOffsets": "earliest",
            "columns": ",".join(COLUMN_NAMES),
            "groupId": group_of(wanted.topic),
            "maxBytesPerTrigger": str(TRIGGER_BYTES_MAX),
        }
        if admin_url is not None:
            self._options["penstock.admin.url"] = admin_url
        self._storage_options = storage_options
        self._sink = self.make_sink(wanted.location, storage_options)
        self._query: StreamingQuery | None = None
        self._raised: Exception | None = None

    def make_sink(self, location: str, storage_options: Mapping[str, str] | None) -> DeltaSink:
        """Return the table's sink; its permanent application name is the topic's id."""
        application = f"penstock.table/{self.wanted.topic_id}"
        return DeltaSink(
            location,
            application=application,
            codec=self.wanted.codec,
            storage_options=storage_options,
        )

    def check(self, client: Client) -> None:
        """Compare the table with the log.

        Raises:
            TableOfAnotherTopic: the table is of another topic, or of an earlier one of that name.
            LogStartsAfterTable: records were deleted before the table had them.
        """
        wanted = self.wanted
        opened = open_table(wanted.location, self._storage_options)
        if opened is None:
            return
        ends = check_topic(
            opened, wanted.location, wanted.topic, wanted.topic_id, wanted.partitions
        )
        check_reaches(
            wanted.location, wanted.topic, ends, client.list_offsets(wanted.topic, "earliest")
        )

    def start(self, *, once: bool) -> None:
        """Start the query; with `once` it ends when it has written the present records."""
        source = self._spark.readStream.format("penstock").options(**self._options).load()
        writer = (
            source.writeStream.foreachBatch(self._write)
            .option("checkpointLocation", self.checkpoint)
            .queryName(group_of(self.wanted.topic))
        )
        if once:
            writer = writer.trigger(availableNow=True)
        else:
            interval = f"{self.wanted.commit_interval_ms} milliseconds"
            writer = writer.trigger(processingTime=interval)
        self._query = writer.start()

    def stop(self) -> None:
        """Stop the query; an interrupted batch is replayed by the next start."""
        if self._query is not None:
            self._query.stop()

    @property
    def active(self) -> bool:
        return self._query is not None and self._query.isActive

    @property
    def has_progress(self) -> bool:
        return self._query is not None and self._query.lastProgress is not None

    def failure(self) -> Exception | None:
        """Error that ended the query; None if it was stopped or has written everything."""
        if self._query is None or self._query.isActive:
            return None
        reported = self._query.exception()
        if reported is None:
            return None
        return self._raised or _ours(str(reported))

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        try:
            reached = batch_end(self.checkpoint, batch_id, self.wanted.topic)
            self._sink.write(
                batch,
                batch_id,
                app_transactions=reached.app_transactions(),
                metadata=reached.metadata(),
            )
        except Exception as error:
            self._raised = error
            raise


def batch_end(checkpoint: str, batch_id: int, topic: str) -> TopicPositions:
    """Return the end of a batch, from the query's checkpoint.

    The file has a version, a line of Spark's own and a line of the source's.

    Raises:
        InvalidOption: the checkpoint is of a query with another source.
    """
    found, root = filesystem(checkpoint)
    with found.open_input_stream(f"{root}/offsets/{batch_id}") as file:
        lines = file.read(OFFSETS_FILE_BYTES_MAX).decode().splitlines()
    positions = positions_of(lines[-1] if lines else None)
    if positions is None or topic not in positions.topic_ids:
        raise InvalidOption(
            "checkpointLocation", checkpoint, f"batch {batch_id} holds no position of topic {topic}"
        )
    return of_topic(topic, positions)


def _ours(text: str) -> Exception:
    """Return the error that our planner process raised, from Spark's error."""
    found = _OURS.findall(text)
    if found:
        name, message = found[-1]
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, InvalidError):
            return InvalidError(message[:PROBLEM_CHARS_MAX])
        return RuntimeError(message[:PROBLEM_CHARS_MAX])
    lines = [line for line in text.splitlines() if line.strip()]
    return RuntimeError(" ".join(lines)[:PROBLEM_CHARS_MAX] or "the query ended")
