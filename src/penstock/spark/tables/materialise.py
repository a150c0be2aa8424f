"""Job that maintains a Delta table for every topic with `table.format=delta`.

    Materialiser(spark, bootstrap="localhost:9092", admin_url=…, root="lake").run(stop)

The job polls the broker for these topics and runs one streaming query for each (`topic_table.py`).
`reconciler.py` decides which queries to start and stop. If a query fails, only its own topic's
table is affected. All state is in the tables and their checkpoints, so the job may be killed at any
point.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql import SparkSession

from penstock.base.errors import InvalidError, PenstockError, RetriableError, UnavailableError
from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.spark.tables.reconciler import (
    TABLES_MAX_DEFAULT,
    TableReconciler,
    TableState,
    WantedTable,
)
from penstock.spark.tables.topic_table import TopicTable
from penstock.spark.tables.topics import wanted_tables

if TYPE_CHECKING:
    from penstock.client import Client

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
