"""Table of one topic: a streaming query that writes each batch in one commit.

The query reads the topic from its start, with every column of the source, and appends through
`DeltaSink`. Its checkpoint is under `_penstock` in the table's directory, which readers of tables
ignore. The end offsets of each batch are read from the checkpoint and committed together with its
rows (see `positions.py`). Before the query starts, the table is compared with the log.
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
    """Streaming query that maintains one topic's table.

    Tests override `make_sink` to replace the sink that appends the batches.
    """

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
        """Return the sink of the table; its application name contains the topic's id."""
        application = f"penstock.table/{self.wanted.topic_id}"
        return DeltaSink(
            location,
            application=application,
            codec=self.wanted.codec,
            storage_options=storage_options,
        )

    def check(self, client: Client) -> None:
        """Check that the table belongs to the topic and that the log has all newer records.

        Raises:
            TableOfAnotherTopic: the table's records are from another topic, or a deleted one.
            LogStartsAfterTable: records were deleted from the log before the table had them.
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
        """Start the query; with `once` it ends after writing the records that exist now."""
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
        """Stop the query; the next start repeats an interrupted batch."""
        if self._query is not None:
            self._query.stop()

    @property
    def active(self) -> bool:
        return self._query is not None and self._query.isActive

    @property
    def has_progress(self) -> bool:
        return self._query is not None and self._query.lastProgress is not None

    def failure(self) -> Exception | None:
        """Return the error that ended the query; None if it was stopped, finished or runs."""
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
    """Return the end offsets of a batch, from the query's checkpoint.

    Spark's checkpoint has one file per batch: a version, a line of Spark's metadata and a line with
    the source's positions.

    Raises:
        InvalidOption: the checkpoint belongs to a query that does not read this topic.
    """
    found, root = filesystem(checkpoint)
    with found.open_input_stream(f"{root}/offsets/{batch_id}") as file:
        lines = file.read(OFFSETS_FILE_BYTES_MAX).decode().splitlines()
    positions = positions_of(lines[-1] if lines else None)
    if positions is None or topic not in positions.topic_ids:
        raise InvalidOption(
            "checkpointLocation", checkpoint, f"batch {batch_id} has no offsets of topic {topic}"
        )
    return of_topic(topic, positions)


def _ours(text: str) -> Exception:
    """Return this package's own error, found in the text of a Spark error.

    It is an `InvalidError` if an operator has to act, else a `RuntimeError`.
    """
    found = _OURS.findall(text)
    if found:
        name, message = found[-1]
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, InvalidError):
            return InvalidError(message[:PROBLEM_CHARS_MAX])
        return RuntimeError(message[:PROBLEM_CHARS_MAX])
    lines = [line for line in text.splitlines() if line.strip()]
    return RuntimeError(" ".join(lines)[:PROBLEM_CHARS_MAX] or "the query ended")
