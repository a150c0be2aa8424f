"""Job of each micro-batch of a query: computes its views, applies rules, and writes sinks.

Spark's `foreachBatch` calls a `BatchJob` with every batch. The job first writes the batch's inputs
to the journal (`journal.py`): the current time, table versions, held records, and the definition.
After a crash, Spark repeats the batch. If sinks may have rows of it, the job reads its inputs from
the journal, so that it computes the same rows. Each sink accepts a batch number once.

A record query (`RecordJob`) also rejects records that cannot be decoded or that break a rule:

    1. Decode the batch's records and the held records that are due; apply the rules of each source.
    2. If records must wait, remove them and later records of their keys (`work.py`).
    3. Compute the steps from the remaining good records. Stage the rows of every sink.
    4. Count rejected rows by rule, while a sink's rows are staged if this is exact (`rejects.py`).
    5. Stage the dead letters, if there are any.
    6. If several targets are staged, check that each topic and table would accept its rows.
    7. Commit the dead letters, then the sinks, then the held records in the retry store.

A target that rejects its rows therefore stops the batch before any row is visible. If the driver
dies, a row that is missing in a table is among the dead letters. The job of a stateful query
(`RootJob`) also dead-letters the rows that Spark dropped as late (`late.py`).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.base.errors import InvalidError, UnavailableError
from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.spark.formats.decoders import Decoder
from penstock.spark.pipeline import frames, joining, late, readers, schemas
from penstock.spark.pipeline.causes import cause_of, has_java_trace, interruption, is_lasting
from penstock.spark.pipeline.graph import QueryPlan
from penstock.spark.pipeline.journal import Definitions, Entry, Journal, with_present_sinks
from penstock.spark.pipeline.rejects import Passes, passes
from penstock.spark.pipeline.retry_store import (
    SCHEMA,
    ReleaseBox,
    RetryStore,
    TooManyHeld,
    dead_lettered,
    next_batch_ms,
    released,
)
from penstock.spark.pipeline.spec import HOLDING, PipelineSpec
from penstock.spark.pipeline.state import PipelinePaths
from penstock.spark.pipeline.tracing import batch_traces
from penstock.spark.pipeline.work import Work, blocking_offsets, holds_rows
from penstock.spark.reads import stream
from penstock.spark.schema import VALUE
from penstock.spark.sessions.workers import ship
from penstock.spark.staged import query_of
from penstock.spark.tables import table_version

MILLISECONDS: Final = 1_000

_LOG: Final = logging.getLogger(__name__)
NEVER_MS: Final = -1
"""Current time, in ms, at which no held record is due."""


class HalfWritten(InvalidError):
    """Failure to finish a batch that was half written under an older pipeline file.

    The batch is repeated with that older file, so a correction of the current file does not apply.
    """

    code: ClassVar[str] = "invalid_config"

    def __init__(self, batch_id: int, folder: str, cause: str) -> None:
        super().__init__(
            f"{cause} (batch {batch_id} is half written: it is finished with the file under which "
            "it began, except that changes of its sinks apply already. To finish it with the "
            f"current file, delete {folder}; its rows may then differ between sinks)"
        )


class BatchStopped(UnavailableError):
    """Error that ends a batch because its query is being stopped; the next run repeats the batch.

    Its message begins like an error of Py4J, by which Spark recognises a stop. It has no Java stack
    trace, because Spark's search in a long one overflows Java's stack.
    """

    code: ClassVar[str] = "unknown_server_error"

    def __init__(self, interruption: str) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling Spark: " + interruption
        )


class BatchFailed(UnavailableError):
    """Failure of a batch that a retry may avoid; the message is its cause without a stack trace."""

    code: ClassVar[str] = "unknown_server_error"


class BatchRefused(InvalidError):
    """Failure of a batch that every retry would repeat; the message has no stack trace."""

    code: ClassVar[str] = "invalid_record"


class TableMissing(UnavailableError):
    """Table of a source that does not exist yet."""

    code: ClassVar[str] = "unknown_server_error"


@dataclass(kw_only=True)
class BatchJob(ABC):
    """Job of one query, which `foreachBatch` calls with each batch; it can be pickled."""

    spec: PipelineSpec
    plan: QueryPlan
    decoders: Mapping[str, Decoder]
    definition: str = ""
    clock: Clock = field(default=SYSTEM_CLOCK)
    passes: Passes | None = field(default=None, init=False)

    @cached_property
    def paths(self) -> PipelinePaths:
        return PipelinePaths(self.spec)

    @cached_property
    def journal(self) -> Journal:
        return Journal(self.paths.journal(self.plan.name))

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        started = self.clock.monotonic()
        entry = self._entry(batch_id, query_of(batch))
        job = self._as_it_began(entry, batch.sparkSession)
        work = Work(
            spec=job.spec,
            plan=job.plan,
            decoders=job.decoders,
            spark=batch.sparkSession,
            entry=entry,
        )
        try:
            held = job._run(work, batch)
        except Exception as error:
            if (stopped := interruption(error)) is not None:
                raise BatchStopped(stopped) from None
            if has_java_trace(error):
                kind = BatchRefused if is_lasting(error) else BatchFailed
                raise kind(cause_of(error)) from None
            if job is self or not isinstance(error, InvalidError):
                raise
            folder = Definitions(self.paths.definitions).folder(entry.definition)
            raise HalfWritten(batch_id, str(folder), str(error)) from error
        finally:
            work.release()
        spent_ms = int((self.clock.monotonic() - started) * MILLISECONDS)
        self.journal.finish(entry, counts=work.counts, held=held, ms=spent_ms)
        traces = batch_traces()
        if traces is not None:
            traces.committed(
                self.spec,
                self.plan.name,
                batch_id=batch_id,
                started=started,
                commits=work.commit_times,
            )

    def _entry(self, batch_id: int, spark_query: str | None) -> Entry:
        known = self.journal.begun(batch_id, spark_query)
        if known is not None and known.writing:
            return known
        entry = Entry(
            batch_id=batch_id,
            query_id=spark_query,
            now_ms=self.clock.now_ms(),
            definition=self.definition,
            tables={name: self._table_version(name) for name in self.plan.tables},
            **self._held_facts(),
        )
        joining.note(self.spec, self.plan, entry)
        self.journal.begin(entry)
        return entry

    def _as_it_began(self, entry: Entry, spark: SparkSession) -> BatchJob:
        if entry.definition == self.definition:
            return self
        definitions = Definitions(self.paths.definitions)
        if not definitions.folder(entry.definition).exists():
            _LOG.warning(
                "batch %d began under an older file, which is not stored; using the current file",
                entry.batch_id,
            )
            return self
        began = definitions.load(entry.definition, self.spec.run)
        there = readers.with_addresses(began.spec, self.spec)
        old = with_present_sinks(there, began.plan(self.plan.name), self.spec)
        ship(spark, sorted(step.python.file for step in old.spec.steps.values() if step.python))
        return replace(
            self,
            spec=old.spec,
            plan=old.plan(self.plan.name),
            decoders=frames.decoders(old.spec, schemas.kept(old.spec)),
            definition=entry.definition,
        )

    def _table_version(self, name: str) -> int:
        table = self.spec.sources[name].table or ""
        version = table_version(table)
        if version is None:
            raise TableMissing(f"source {name}: table {table} does not exist yet")
        return version

    def _held_facts(self) -> dict[str, Any]:
        return {}

    def _chosen(self, work: Work) -> Passes:
        if self.passes is None:
            self.passes = passes(self.spec, self.plan, work.views, self.decoders)
        return self.passes

    def _write(self, work: Work, counting: str | None = None) -> None:
        work.write(lambda: self.journal.write(work.entry), counting=counting)

    @abstractmethod
    def _run(self, work: Work, batch: DataFrame) -> int:
        """Compute the batch's views and write its sinks; return the number of records held now."""


class RootJob(BatchJob):
    """Job of a stateful query: handles late rows, and runs the steps after the query's root."""

    def _run(self, work: Work, batch: DataFrame) -> int:
        checkpoint = self.paths.checkpoint(self.plan.name)
        if (bounds := late.bounds(checkpoint, work.entry.batch_id)) is not None:
            work.take_late(bounds, late.LateRows(self.spec, self.plan, self.decoders))
        work.read_tables()
        root = self.plan.root or ""
        if self.passes is None:
            work.register(root, batch)
            work.run_steps()
        chosen = self._chosen(work)
        work.register(root, batch if chosen.kept is None else work.keep(batch))
        work.run_steps(keep=chosen.kept is not None, observe=chosen.counting is not None)
        self._write(work, chosen.counting)
        return 0


class RecordJob(BatchJob):
    """Job of a record query: decodes records, applies rules, and handles rejected records."""

    @cached_property
    def store(self) -> RetryStore:
        return RetryStore(
            self.paths.held(self.plan.name), application=f"{self.spec.name}.{self.plan.name}.held"
        )

    @cached_property
    def holding(self) -> bool:
        return may_hold(self.spec, self.plan)

    def _held_facts(self) -> dict[str, Any]:
        if not self.holding:
            return {}
        releases = ReleaseBox(self.paths.releases(self.plan.name)).pending()
        return {"held_version": self.store.version(), "releases": releases}

    def _run(self, work: Work, batch: DataFrame) -> int:
        work.read_tables()
        if self.holding:
            batch, staying = self._with_due(work, batch)
            work.open_sources(batch, keep=True)
            work.run_steps(keep=True)
            return self._hold(work, staying)
        if self.passes is None:
            work.open_sources(batch)
            work.run_steps()
        chosen = self._chosen(work)
        keep, observe = chosen.kept is not None, chosen.counting is not None
        work.open_sources(batch, keep=keep, observe=observe)
        work.run_steps(keep=keep, observe=observe)
        self._write(work, chosen.counting)
        return 0

    def _with_due(self, work: Work, batch: DataFrame) -> tuple[DataFrame, pa.Table]:
        box = ReleaseBox(self.paths.releases(self.plan.name))
        releases = {release: box.read(release) for release in work.entry.releases}
        held = self.store.load(work.entry.held_version)
        keep_order = self.spec.errors.keep_order
        going, staying = released(
            held, now_ms=work.entry.now_ms, releases=tuple(releases.values()), keep_order=keep_order
        )
        for name, release in releases.items():
            alone, _ = released(held, now_ms=NEVER_MS, releases=(release,), keep_order=keep_order)
            work.released[name] = alone.num_rows
        if self.spec.errors.dead_letters is not None:
            dead, going = dead_lettered(going, tuple(releases.values()))
            work.dead_letter_held(dead)
        fresh = batch.withColumn(frames.ATTEMPT, F.lit(0))
        if going.num_rows == 0:
            return fresh, staying
        again = going.rename_columns(
            [frames.ATTEMPT if name == "attempt" else name for name in going.column_names]
        )
        wanted = [name for name in fresh.columns if name in again.column_names]
        due = work.spark.createDataFrame(again.select(wanted))
        if VALUE in fresh.columns:  # the source has decoded the batch, so all have one format
            due = self.decoders[self.plan.sources[0]].decode(due)
        return fresh.select(*due.columns).unionByName(due), staying

    def _hold(self, work: Work, staying: pa.Table) -> int:
        work.count_sources()
        limit = self.spec.errors.held_max
        keep_order = self.spec.errors.keep_order
        found = work.rejects(limit)
        waiting = SCHEMA.empty_table()
        if found.num_rows or (staying.num_rows and keep_order):
            blocking = blocking_offsets(found, staying, keep_order=keep_order)
            waiting = work.hold_back(blocking, limit)
        held = pa.concat_tables([staying, waiting])
        if held.num_rows > limit:
            raise TooManyHeld(self.plan.name, held.num_rows, limit)
        self._write(work)
        self.store.save(held, work.entry.batch_id)
        box = ReleaseBox(self.paths.releases(self.plan.name))
        box.done(work.released, batch_id=work.entry.batch_id)
        # A request that came after the batch was composed is left to the next batch.
        due_ms = next_batch_ms(held, box.pending(), now_ms=self.clock.now_ms())
        stream.write(self.paths.wake_file(self.plan.name), due_ms, by="batch")
        work.counts["held"] = waiting.num_rows
        return int(held.num_rows)


def may_hold(spec: PipelineSpec, plan: QueryPlan) -> bool:
    """Whether a query may hold records, or still holds some from an earlier definition."""
    parts = [spec.sources[name] for name in plan.sources]
    return (
        PipelinePaths(spec).held(plan.name).exists()
        or (any(source.can_fail for source in parts) and spec.errors.on_invalid in HOLDING)
        or any(holds_rows(source.rules) for source in parts)
        or any(holds_rows(spec.steps[name].rules) for name in plan.batched)
    )
