"""Table of one topic: a streaming query that writes each batch in one commit.

The query reads the topic from its start, with every column of the source, and appends through
`DeltaSink`. Its checkpoint is under `_penstock` in the table's directory, which readers of tables
ignore. The end offsets of each batch are read from the checkpoint and committed together with its
rows (see `positions.py`). Before the query starts, the table is compared with the log.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql import DataFrame, SparkSession

from penstock.base.errors import InvalidError, PenstockError, RetriableError, UnavailableError
from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.spark import errors
from penstock.spark.errors import InvalidOption
from penstock.spark.reads.listener import positions_of
from penstock.spark.schema import COLUMN_NAMES
from penstock.spark.tables.append import DeltaSink
from penstock.spark.tables.location import filesystem, open_table
from penstock.spark.tables.positions import TopicPositions, check_reaches, check_topic, of_topic
from penstock.spark.tables.reconciler import (
    TABLES_MAX_DEFAULT,
    TableReconciler,
    TableState,
    WantedTable,
)
from penstock.spark.tables.topics import wanted_tables

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


# Job that maintains a Delta table for every topic with `table.format=delta`.
#
#     Materialiser(spark, bootstrap="localhost:9092", admin_url=…, root="lake").run(stop)
#
# The job polls the broker for these topics and runs one streaming query for each.
# `reconciler.py` decides which queries to start and stop. If a query fails,
# only its own topic's table is affected. All state is in the tables and their checkpoints, so the
# job may be killed at any point.


LISTING_SECONDS_DEFAULT: Final = 5.0
WATCH_SECONDS: Final = 0.25

_LOG: Final = logging.getLogger(__name__)


class Stop(Protocol):
    """Stop event of the job, such as a `threading.Event`."""

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether the event is set, after waiting at most `timeout` seconds for it."""
        ...


class Materialiser:
    """Job that maintains tables until it is stopped.

    Run only one job at a time for the same topics and root.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        bootstrap: str,
        root: str,
        admin_url: str | None = None,
        tables_max: int = TABLES_MAX_DEFAULT,
        listing_seconds: float = LISTING_SECONDS_DEFAULT,
        storage_options: Mapping[str, str] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Args:
        spark: session of `penstock.spark.session`; its listener commits each table's progress
            to a consumer group.
        bootstrap: addresses of the brokers.
        root: directory or URI under which the tables of topics without `table.location` are
            created.
        admin_url: admin address of the brokers; with it, tasks read segment files directly.
        tables_max: most tables that this job maintains; the state of any further one is
            `waiting`.
        listing_seconds: pause between two requests for the list of topics.
        storage_options: options of an object store, as `deltalake` names them.
        """
        self._spark = spark
        self._bootstrap = bootstrap
        self._root = root
        self._admin_url = admin_url
        self._listing_seconds = listing_seconds
        self._storage_options = storage_options
        self._clock = clock
        self._reconciler = TableReconciler(tables_max=tables_max)
        self._tables: dict[str, TopicTable] = {}
        self._wanted: dict[str, WantedTable] = {}
        self._listed_at: float | None = None

    def states(self) -> tuple[TableState, ...]:
        return tuple(state for _, state in sorted(self._reconciler.states.items()))

    def run(self, stop: Stop, *, once: bool = False) -> tuple[TableState, ...]:
        """Maintain the tables until `stop` is set.

        With `once`, return as soon as each table has the records that exist now.

        Returns:
            The state of each table, sorted by topic.

        Raises:
            UnavailableError, RetriableError: with `once`, the broker did not return its topics.
        """
        from penstock.client import Client

        self._reconciler.states.clear()
        self._listed_at = None
        with Client(self._bootstrap, client_id="penstock-tables") as client:
            try:
                while True:
                    self._list(client, once=once)
                    self._apply(client, once=once)
                    self._watch(client, once=once)
                    if once and not self._tables and not self._due():
                        break
                    if stop.wait(WATCH_SECONDS):
                        break
            finally:
                for table in self._tables.values():
                    table.stop()
                self._tables.clear()
        return self.states()

    def make_table(self, wanted: WantedTable) -> TopicTable:
        return TopicTable(
            self._spark,
            wanted,
            bootstrap=self._bootstrap,
            admin_url=self._admin_url,
            storage_options=self._storage_options,
        )

    def _list(self, client: Client, *, once: bool) -> None:
        now = self._clock.monotonic()
        if self._listed_at is not None and (once or now - self._listed_at < self._listing_seconds):
            return
        try:
            self._wanted = wanted_tables(client, self._root)
        except (RetriableError, UnavailableError) as error:
            if once:
                raise
            _LOG.warning("continuing with the known tables: cannot list topics: %s", error)
        self._listed_at = now

    def _apply(self, client: Client, *, once: bool) -> None:
        changes = self._reconciler.changes(self._wanted, self._clock.monotonic())
        for topic in changes.stop:
            _LOG.info("topic %s: stopping its query: the table's settings changed", topic)
            table = self._tables.pop(topic, None)
            if table is not None:
                table.stop()
        for wanted in changes.start:
            table = self.make_table(wanted)
            try:
                table.check(client)
                table.start(once=once)
            except Exception as error:  # other tables continue after any error
                self._failed(wanted.topic, error, once=once)
                continue
            _LOG.info("topic %s: maintaining table %s", wanted.topic, wanted.location)
            self._tables[wanted.topic] = table

    def _watch(self, client: Client, *, once: bool) -> None:
        for topic, table in list(self._tables.items()):
            if table.active:
                if table.has_progress:
                    self._reconciler.worked(topic)
                continue
            del self._tables[topic]
            error = table.failure()
            if error is None and once:
                self._reconciler.done(topic)
                continue
            error = error or RuntimeError("another program stopped its query")
            try:
                table.check(client)
            except InvalidError as found:
                error = found  # it names the cause more clearly than Spark's error
            except (PenstockError, OSError) as found:
                _LOG.info("topic %s: could not compare the table with the log: %s", topic, found)
            self._failed(topic, error, once=once)

    def _failed(self, topic: str, error: Exception, *, once: bool) -> None:
        by_hand = once or isinstance(error, InvalidError)
        self._reconciler.failed(topic, str(error), by_hand=by_hand, now=self._clock.monotonic())
        state = self._reconciler.states.get(topic)
        after = "not restarting" if state is None or by_hand else "restarting"
        _LOG.error("topic %s: %s its query: cannot maintain its table: %s", topic, after, error)

    def _due(self) -> bool:
        running = len(self._tables)
        waiting = any(state.phase == "waiting" for state in self._reconciler.states.values())
        return waiting and running < self._reconciler.tables_max
