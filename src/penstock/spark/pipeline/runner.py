"""Runner of a pipeline's queries, which restarts them when they fail.

A query may fail because a store, broker or executor fails. A restart is safe: the query continues
from its checkpoint, and sinks skip batches that they have. The runner waits before each restart,
longer each time. It restarts a query at most `restarts` times without a finished batch in between.
A permanent failure (a rule with `fail`, a recreated topic, a table with other columns) ends the run
at once. The state directory is locked, so that only one process runs a pipeline.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, ClassVar, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.base.errors import InvalidError, PenstockError
from penstock.base.retry import Backoff
from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.spark.pipeline import frames, joining, readers, schemas
from penstock.spark.pipeline.analysis import plans
from penstock.spark.pipeline.batches import may_hold
from penstock.spark.pipeline.causes import cause_of, is_lasting
from penstock.spark.pipeline.draft import check_keys
from penstock.spark.pipeline.graph import QueryPlan
from penstock.spark.pipeline.journal import Definitions, Journal
from penstock.spark.pipeline.progress_listener import ProgressBook
from penstock.spark.pipeline.queries import Prepared, group_id
from penstock.spark.pipeline.retry_store import ReleaseBox, RetryStore, next_batch_ms
from penstock.spark.pipeline.spec import PipelineSpec
from penstock.spark.pipeline.state import PipelinePaths, QueryState
from penstock.spark.reads import stream
from penstock.spark.sessions.source import PenstockSource
from penstock.spark.sessions.workers import is_connect, ship, warm_up

POLL_SECONDS: Final = 0.2
BACKOFF: Final = Backoff(first_ms=1_000, ceiling_ms=60_000)


class QueryFailed(PenstockError):
    """Query that failed permanently, or too often."""

    def __init__(self, query: str, cause: str) -> None:
        super().__init__(f"query {query}: {cause}")
        self.query = query


class PipelineRuns(InvalidError):
    """Pipeline that another process already runs."""

    code: ClassVar[str] = "invalid_config"


@dataclass(slots=True)
class _Running:
    plan: QueryPlan
    query: StreamingQuery | None = None
    seen_batch: int = -1
    failures: int = 0
    start_at: float = 0.0
    ended: bool = False


class PipelineRunner:
    """Runner of one pipeline in one session. Call it from one thread; `states` from any thread."""

    def __init__(
        self, spec: PipelineSpec, spark: SparkSession, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._spec = spec
        self._spark = spark
        self._clock = clock
        self._paths = PipelinePaths(spec)
        self._book = ProgressBook(self._take_in)
        self._running: list[_Running] = []
        self._collecting = threading.Lock()
        self._prepared: Prepared | None = None
        self._lock: IO[str] | None = None

    def start(self) -> None:
        """Lock the state directory and start every query.

        Raises:
            PipelineRuns: another process runs the pipeline.
            DocumentInvalid: the file has problems that only Spark finds, or names no usable
                keyring.
            QueryFailed: a query cannot be started, and a retry cannot help.
            NothingToInfer, NothingToPin, InvalidFormat: a schema is missing or cannot be used.
            AdminUnavailable: a schema registry does not answer.
        """
        self._take_lock()
        try:
            check_keys(self._spec)
            files = {step.python.file for step in self._spec.steps.values() if step.python}
            ship(self._spark, sorted(files))
            if not is_connect(self._spark):
                # Registered here, so that sources and sinks share one parent of workers.
                self._spark.dataSource.register(PenstockSource)
                warm_up(self._spark)
            self._spec = readers.pinned(self._spec)
            inferred = schemas.inferred(self._spec, self._spark, keep=True)
            definitions = Definitions(self._paths.definitions)
            found = self._plans(definitions, inferred)
            definition = definitions.keep(self._spec, found)
            readers.keep(self._spec)
            self._prepared = Prepared(
                spec=self._spec,
                decoders=frames.decoders(self._spec, inferred),
                definition=definition,
            )
            self._spark.streams.addListener(self._book)
            self._running = [_Running(plan=plan) for plan in found]
            for running in self._running:
                last = self._journal(running.plan).last()
                running.seen_batch = -1 if last is None else last.batch_id - (not last.done)
                joining.note_at_rest(self._spec, running.plan, now_ms=self._clock.now_ms())
                self._begin(running)
            definitions.mark_present(definition, inferred)
        except BaseException:
            self.stop()
            raise

    def states(self) -> tuple[QueryState, ...]:
        return self._book.states()

    def wait(self, stop: threading.Event) -> None:
        """Wait until all queries have ended, or `stop` is set.

        Raises:
            QueryFailed: a query failed permanently; the others are stopped.
        """
        while not stop.wait(POLL_SECONDS):
            for running in self._running:
                self._look_after(running)
            if all(running.ended for running in self._running):
                break

    def stop(self) -> None:
        """Stop every query and release the lock; the next run repeats interrupted batches."""
        for running in self._running:
            if running.query is not None:
                running.query.stop()
                running.query = None
                self._collect(running)
                self._book.ended(running.plan.name)
        self._spark.streams.removeListener(self._book)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _plans(
        self, definitions: Definitions, inferred: Mapping[str, str]
    ) -> tuple[QueryPlan, ...]:
        """Return the plans of the queries, from the stored definition if the file is unchanged.

        Spark always analyses a file with tables or Python steps, because these may have changed.
        """
        spec = self._spec
        others = any(source.table for source in spec.sources.values()) or any(
            step.python for step in spec.steps.values()
        )
        known = None if others else definitions.present_queries(spec, inferred)
        return known or plans(spec, self._spark, inferred)

    def _begin(self, running: _Running) -> None:
        if self._prepared is None:
            return
        held = self._wake_for_held(running.plan)
        self._book.started(running.plan.name, group_id(self._spec, running.plan))
        self._book.held(running.plan.name, held)
        try:
            running.query = self._prepared.start(self._spark, running.plan)
        except (PySparkException, Py4JError) as error:
            self._take_failure(running, error)

    def _look_after(self, running: _Running) -> None:
        self._collect(running)
        if running.ended:
            return
        if running.query is None:
            if self._clock.monotonic() >= running.start_at:
                self._begin(running)
            return
        self._wake_for_releases(running.plan)
        if running.query.isActive:
            return
        error = running.query.exception()
        running.query = None
        self._collect(running)
        if error is None:
            running.ended = True
            self._book.ended(running.plan.name)
            return
        self._take_failure(running, error)

    def _take_failure(self, running: _Running, error: Exception) -> None:
        """Plan a restart of a failed query.

        Raises:
            QueryFailed: the failure is permanent, or the query has no restarts left.
        """
        running.failures += 1
        if is_lasting(error) or running.failures > self._spec.run.restarts:
            self._book.failed(running.plan.name, error)
            self.stop()
            raise QueryFailed(running.plan.name, cause_of(error)) from error
        running.start_at = self._clock.monotonic() + BACKOFF.pause_seconds(running.failures)
        self._book.restarting(running.plan.name, error)

    def _take_in(self, name: str) -> None:
        """Add the journal's counts of a query, in Spark's thread before it reports a batch."""
        for running in self._running:
            if running.plan.name == name:
                self._collect(running)

    def _collect(self, running: _Running) -> None:
        name = running.plan.name
        with self._collecting:
            for entry in self._journal(running.plan).finished_after(running.seen_batch):
                running.seen_batch = entry.batch_id
                running.failures = 0
                for count, number in entry.counts.items():
                    self._book.count(name, count, number)
                self._book.held(name, entry.held)

    def _journal(self, plan: QueryPlan) -> Journal:
        return Journal(self._paths.journal(plan.name))

    # Held records

    def _wake_for_held(self, plan: QueryPlan) -> int:
        """Write a query's wake file; return the number of its held records.

        The file has the time at which the source must begin a batch even without new records, so
        that held records are retried. It is written before the query starts, because a run with the
        trigger `once` plans its only batch then.
        """
        if plan.root is not None or not may_hold(self._spec, plan):
            return 0
        store = RetryStore(self._paths.held(plan.name), application="")
        held = store.load(store.version())
        requested = ReleaseBox(self._paths.releases(plan.name)).pending()
        due_ms = next_batch_ms(held, requested, now_ms=self._clock.now_ms())
        stream.write(self._paths.wake_file(plan.name), due_ms, by="runner")
        return int(held.num_rows)

    def _wake_for_releases(self, plan: QueryPlan) -> None:
        if plan.root is not None or not may_hold(self._spec, plan):
            return
        now_ms = self._clock.now_ms()
        path = self._paths.wake_file(plan.name)
        asked = stream.read(str(path))
        if ReleaseBox(self._paths.releases(plan.name)).pending() and (
            asked is None or asked > now_ms
        ):
            stream.write(path, now_ms, by="runner")

    def _take_lock(self) -> None:
        self._paths.state.mkdir(parents=True, exist_ok=True)
        lock = self._paths.lock.open("a+", encoding="ascii")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            lock.close()
            raise PipelineRuns(
                f"pipeline {self._spec.name} is already running as process {owner}: "
                f"{self._paths.lock} is locked"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        self._lock = lock
