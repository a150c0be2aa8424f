"""What is done with each micro-batch of a query.

Theory of operation. `foreachBatch` calls a `BatchJob`. It first writes down what the batch is made
of besides its records (`journal.py`), so that a replay computes the same rows; then it computes the
views and writes every sink, each of which takes a batch once. Nothing has to be undone after a
crash: the replay goes through the same steps and finds done what was done.

A record query (`RecordJob`) also judges records and sees to those that are rejected:

    records of the batch + held records that are due
      -> opened and judged, per source (kept in memory: everything after reads it several times)
      -> counted by verdict: one job
      -> if some have to wait: blocking offsets are found, what lies behind them leaves the batch
      -> the good ones are the sources' views -> steps -> sinks
      -> dead letters to their topic, what waits into the retry store
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.base.errors import InvalidError, UnavailableError
from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.spark import wake
from penstock.spark.formats.decoders import Decoder
from penstock.spark.pipeline import blocking, frames, joining, rules, schemas
from penstock.spark.pipeline.causes import interruption
from penstock.spark.pipeline.dead_letters import dead_letters
from penstock.spark.pipeline.definitions import Definitions, with_present_sinks
from penstock.spark.pipeline.graph import QueryPlan, keeps
from penstock.spark.pipeline.journal import Entry, Journal
from penstock.spark.pipeline.paths import PipelinePaths
from penstock.spark.pipeline.retry_store import (
    SCHEMA,
    ReleaseBox,
    RetryStore,
    TooManyHeld,
    given_up,
    let_go,
    next_batch_ms,
)
from penstock.spark.pipeline.rules import OTHERWISE, RULE
from penstock.spark.pipeline.spec import HOLDING, RECORD, PipelineSpec
from penstock.spark.pipeline.writing import dead_letter_writer, writer
from penstock.spark.query_id import query_of
from penstock.spark.schema import VALUE
from penstock.spark.tables import read_table, table_version
from penstock.spark.workers import ship

MILLISECONDS: Final = 1_000

_LOG: Final = logging.getLogger(__name__)
NEVER_MS: Final = -1
"""A time at which nothing is due yet."""


class RuleBroken(InvalidError):
    """A row breaks a rule that says `fail`."""

    code: ClassVar[str] = "invalid_record"


class HalfWritten(InvalidError):
    """A batch that is finished by an older file is refused."""

    code: ClassVar[str] = "invalid_config"

    def __init__(self, batch_id: int, folder: str, cause: str) -> None:
        super().__init__(
            f"{cause} (batch {batch_id} is half written and goes by the file that it began with; "
            "changes of its sinks count already. To go by the present file, with rows that may "
            f"differ between sinks, delete {folder})"
        )


class BatchStopped(UnavailableError):
    """The query is being stopped in the middle of a batch, which is done again later.

    Spark tells this from a failure by these words, and its search for them in Java's whole stack
    trace ends in a stack overflow.
    """

    code: ClassVar[str] = "unknown_server_error"

    def __init__(self, interruption: str) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling Spark: " + interruption
        )


class TableMissing(UnavailableError):
    """A table that is read is not there yet."""

    code: ClassVar[str] = "unknown_server_error"


@dataclass(kw_only=True)
class BatchJob(ABC):
    """What all queries do with a batch; pass it to `foreachBatch`. It can be pickled."""

    spec: PipelineSpec
    plan: QueryPlan
    decoders: Mapping[str, Decoder]
    definition: str = ""
    clock: Clock = field(default=SYSTEM_CLOCK)

    @cached_property
    def places(self) -> PipelinePaths:
        return PipelinePaths(self.spec)

    @cached_property
    def journal(self) -> Journal:
        return Journal(self.places.journal(self.plan.name))

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Run a batch to its end."""
        started = self.clock.monotonic()
        entry = self._entry(batch_id, query_of(batch))
        job = self._as_it_began(entry, batch.sparkSession)
        work = _Work(job, batch.sparkSession, entry)
        try:
            held = job._run(work, batch)
        except Exception as error:
            if (stopped := interruption(error)) is not None:
                raise BatchStopped(stopped) from None
            if job is self or not isinstance(error, InvalidError):
                raise
            folder = Definitions(self.places.definitions).folder(entry.definition)
            raise HalfWritten(batch_id, str(folder), str(error)) from error
        finally:
            work.release()
        spent_ms = int((self.clock.monotonic() - started) * MILLISECONDS)
        self.journal.finish(entry, counts=work.counts, held=held, ms=spent_ms)

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
        """The job by the definition that the batch began under, which may be an older one."""
        if entry.definition == self.definition:
            return self
        definitions = Definitions(self.places.definitions)
        if not definitions.folder(entry.definition).exists():
            _LOG.warning("batch %d is finished by another file than it began with", entry.batch_id)
            return self
        began = definitions.load(entry.definition, self.spec.run)
        old = with_present_sinks(began.spec, began.plan(self.plan.name), self.spec)
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
            raise TableMissing(f"source {name}: there is no table {table} yet")
        return version

    def _held_facts(self) -> dict[str, Any]:
        return {}

    def _write(self, work: _Work) -> None:
        """Write every sink, once it is certain that the batch is not refused."""
        work.settle_steps()
        self.journal.write(work.entry)
        work.write_sinks()
        work.write_dead_letters()

    @abstractmethod
    def _run(self, work: _Work, batch: DataFrame) -> int:
        """Compute and write; returns how many records are held now."""


class RootJob(BatchJob):
    """Batches of a query with a stateful root: its rows go through the steps behind it."""

    def _run(self, work: _Work, batch: DataFrame) -> int:
        work.read_tables()
        frame = work.keep(batch) if len(self.plan.sinks) > 1 or self.plan.batched else batch
        work.register(self.plan.root or "", frame)
        work.run_steps()
        self._write(work)
        return 0


class RecordJob(BatchJob):
    """Batches of a record query: records in, verdicts and rows out."""

    @cached_property
    def lot(self) -> RetryStore:
        return RetryStore(
            self.places.held(self.plan.name), application=f"{self.spec.name}.{self.plan.name}.held"
        )

    @cached_property
    def holding(self) -> bool:
        """Whether records may have to wait."""
        return may_hold(self.spec, self.plan)

    def _held_facts(self) -> dict[str, Any]:
        if not self.holding:
            return {}
        releases = ReleaseBox(self.places.releases(self.plan.name)).pending()
        return {"held_version": self.lot.version(), "releases": releases}

    def _run(self, work: _Work, batch: DataFrame) -> int:
        staying = SCHEMA.empty_table()
        if self.holding:
            batch, staying = self._with_due(work, batch)
        work.read_tables()
        work.open_sources(batch)
        work.run_steps()
        if self.holding:
            return self._hold(work, staying)
        self._write(work)
        return 0

    def _with_due(self, work: _Work, batch: DataFrame) -> tuple[DataFrame, pa.Table]:
        box = ReleaseBox(self.places.releases(self.plan.name))
        releases = {release: box.read(release) for release in work.entry.releases}
        held = self.lot.load(work.entry.held_version)
        keep_order = self.spec.errors.keep_order
        going, staying = let_go(
            held, now_ms=work.entry.now_ms, releases=tuple(releases.values()), keep_order=keep_order
        )
        for name, release in releases.items():
            alone, _ = let_go(held, now_ms=NEVER_MS, releases=(release,), keep_order=keep_order)
            work.released[name] = alone.num_rows
        if self.spec.errors.dead_letters is not None:
            letters, going = given_up(going, tuple(releases.values()))
            work.give_up(letters)
        fresh = batch.withColumn(frames.ATTEMPT, F.lit(0))
        if going.num_rows == 0:
            return fresh, staying
        again = going.rename_columns(
            [frames.ATTEMPT if name == "attempt" else name for name in going.column_names]
        )
        wanted = [name for name in fresh.columns if name in again.column_names]
        due = work.spark.createDataFrame(again.select(wanted))
        if VALUE in fresh.columns:  # the source has opened them: all are of one format
            due = self.decoders[self.plan.sources[0]].decode(due)
        return fresh.select(*due.columns).unionByName(due), staying

    def _hold(self, work: _Work, staying: pa.Table) -> int:
        limit = self.spec.errors.held_max
        keep_order = self.spec.errors.keep_order
        found = work.rejects(limit)
        waiting = SCHEMA.empty_table()
        if found.num_rows or (staying.num_rows and keep_order):
            blocking_offsets = blocking.blocking_offsets(found, staying, keep_order=keep_order)
            waiting = work.hold_back(blocking_offsets, limit)
        held = pa.concat_tables([staying, waiting])
        if held.num_rows > limit:
            raise TooManyHeld(self.plan.name, held.num_rows, limit)
        self._write(work)
        self.lot.save(held, work.entry.batch_id)
        box = ReleaseBox(self.places.releases(self.plan.name))
        box.done(work.released, batch_id=work.entry.batch_id)
        # A request that came after the batch had been made up, as a replayed one was, is next.
        due_ms = next_batch_ms(held, box.pending(), now_ms=self.clock.now_ms())
        wake.write(self.places.wake_file(self.plan.name), due_ms, by="batch")
        work.counts["held"] = waiting.num_rows
        return int(held.num_rows)


class _Work:
    """One batch under way: its session, views, what is kept in memory, and counts."""

    def __init__(self, job: BatchJob, spark: SparkSession, entry: Entry) -> None:
        self.spec = job.spec
        self.plan = job.plan
        self.decoders = job.decoders
        self.spark = spark
        self.entry = entry
        self.counts: Counter[str] = Counter()
        self.released: dict[str, int] = {}
        self._given_up: list[DataFrame] = []
        self._views: dict[str, DataFrame] = {}
        self._judged: dict[str, DataFrame] = {}
        self._steps: dict[str, DataFrame] = {}
        self._kept: list[DataFrame] = []

    def keep(self, frame: DataFrame) -> DataFrame:
        """Keep a frame in memory until the batch ends."""
        kept = frame.persist()
        self._kept.append(kept)
        return kept

    def release(self) -> None:
        """Give up what was kept, and the views."""
        for frame in reversed(self._kept):
            frame.unpersist()
        for name in self._views:
            self.spark.catalog.dropTempView(name)

    def register(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(name)
        self._views[name] = frame

    def read_tables(self) -> None:
        for name in self.plan.tables:
            table = self.spec.sources[name].table or ""
            version = self.entry.tables[name]
            self.register(name, read_table(self.spark, table, version=version))

    # Sources

    def open_sources(self, batch: DataFrame) -> None:
        """Judge the records of every source; their good rows become views."""
        keep = rejecting(self.spec, self.plan) or len(self.plan.sinks) > 1
        for name in self.plan.sources:
            source = self.spec.sources[name]
            records = batch
            if len(self.plan.sources) > 1:
                records = frames.records_of(batch, source)
            judged = frames.source_view(
                records, source, self.decoders[name], on_error=self.spec.errors.on_invalid
            )
            judged = self._with_last_try(judged)
            self._judged[name] = self.keep(judged) if keep else judged
        if keep:
            self._count(self._judged)
        self._show_good_records()

    def _show_good_records(self) -> None:
        for name, judged in self._judged.items():
            self.register(name, rules.accepted(judged))

    def _with_last_try(self, judged: DataFrame) -> DataFrame:
        """After its last try, a record that would be tried again is a dead letter."""
        if not self.spec.errors.retry_delays_seconds:
            return judged
        tries = len(self.spec.errors.retry_delays_seconds)
        last = (F.col(OTHERWISE) == "retry") & (F.col(RECORD)["attempt"] >= tries)
        fate = F.when(last, F.lit("dead-letter")).otherwise(F.col(OTHERWISE))
        return judged.withColumn(OTHERWISE, fate)

    # Steps

    def run_steps(self) -> None:
        """Make the view of every step; those with rules that keep rows are judged."""
        self._steps = {}
        for name in self.plan.batched:
            step = self.spec.steps[name]
            frame = frames.run_step(self.spark, step, self._views)
            if not step.rules:
                self.register(name, frame)
                continue
            judged = rules.judged(frame, step.rules, error=None, on_error="")
            if keeps(step):
                judged = self._with_last_try(judged)
            self._steps[name] = self.keep(judged)
            self.register(name, rules.accepted(self._steps[name]))

    def settle_steps(self) -> None:
        """Count what the steps' rules say, once it is known which records take part."""
        self._count(self._steps)

    def _count(self, judged: Mapping[str, DataFrame]) -> None:
        """Count verdicts, and stop if one says so.

        Raises:
            RuleBroken: a row breaks a rule that says `fail`.
        """
        if not judged:
            return
        for row in frames.union([self._verdicts(*item) for item in judged.items()]).collect():
            if row[OTHERWISE] == "fail":
                raise RuleBroken(self._first_broken(row["_view"], row[RULE]))
            if row[OTHERWISE] == "warn":
                self.counts[f"warned.{row[RULE]}"] += row["_count"]
            elif row[RULE] is not None:
                self.counts[f"rejected.{row[RULE]}"] += row["_count"]

    def _verdicts(self, name: str, judged: DataFrame) -> DataFrame:
        """How many rows of a view have which verdict; a row for each rule that warns, too."""
        part = self.spec.sources.get(name) or self.spec.steps[name]
        view = F.lit(name).alias("_view")
        counted = judged.groupBy(RULE, OTHERWISE).agg(F.count("*").alias("_count"))
        verdicts = counted.select(view, RULE, OTHERWISE, "_count")
        warned = rules.warnings(part.rules)
        if not warned:
            return verdicts
        good = judged.where(F.col(RULE).isNull())
        sums = good.agg(*(count.alias(f"_{index}") for index, (_, count) in enumerate(warned)))
        pairs = [
            F.struct(F.lit(rule).alias(RULE), F.col(f"_{index}").alias("_count"))
            for index, (rule, _) in enumerate(warned)
        ]
        exploded = sums.select(F.inline(F.array(*pairs)))
        warn = F.lit("warn").alias(OTHERWISE)
        return verdicts.unionByName(exploded.select(view, RULE, warn, "_count"))

    def _first_broken(self, view: str, rule: str) -> str:
        judged = self._judged.get(view, self._steps.get(view))
        text = f"{view}: rule {rule!r} is broken, and says fail"
        if judged is None or RECORD not in judged.columns:
            return text
        record = F.col(RECORD)
        place = [record[name].alias(name) for name in ("topic", "partition", "offset")]
        row = judged.where(F.col(RULE) == rule).select(*place, rules.REASON).first()
        if row is None:
            return text
        return f"{text}: {row[0]}-{row[1]} offset {row[2]}: {row[3]}"

    # What waits

    def rejects(self, limit: int) -> pa.Table:
        """The rejected records that have to wait, as `blocking.REJECT_SCHEMA`.

        Raises:
            TooManyHeld: more than `limit`.
        """
        frames_ = [*self._judged.values()]
        frames_ += [
            judged
            for name, judged in self._steps.items()
            if holds_rows(self.spec.steps[name].rules)
        ]
        found = frames.union([blocking.rejects(one) for one in frames_])
        return _arrow(found, blocking.REJECT_SCHEMA, self.plan.name, limit)

    def hold_back(self, blocking_offsets: pa.Table, limit: int) -> pa.Table:
        """Take what has to wait out of the views; returns it, as `holding.SCHEMA`.

        Raises:
            TooManyHeld: more than `limit`.
        """
        keep_order = self.spec.errors.keep_order
        waiting: list[DataFrame] = []
        for name, judged in self._judged.items():
            goes_on, waits = blocking.split(
                self.spark, judged, blocking_offsets, keep_order=keep_order
            )
            self._judged[name] = goes_on
            rows = blocking.held_rows(
                waits,
                now_ms=self.entry.now_ms,
                delays_seconds=self.spec.errors.retry_delays_seconds,
            )
            waiting.append(rows)
        self.counts.clear()
        self._count(self._judged)
        self._show_good_records()
        self.run_steps()
        return _arrow(frames.union(waiting), SCHEMA, self.plan.name, limit)

    def give_up(self, held: pa.Table) -> None:
        """Make dead letters of held records that somebody has given up."""
        if held.num_rows:
            self._given_up.append(blocking.given_up_rows(self.spark.createDataFrame(held)))

    # Sinks

    def write_sinks(self) -> None:
        for name in self.plan.sinks:
            sink = self.spec.sinks[name]
            write = writer(self.spec, self.plan.name, sink)
            self.counts[f"written.{name}"] = write(self._views[sink.view], self.entry.batch_id)

    def write_dead_letters(self) -> None:
        """Put rejected records on their topic."""
        if self.spec.errors.dead_letters is None or not (
            self._given_up or any(name.startswith("rejected.") for name in self.counts)
        ):
            return
        judged = [*self._judged.values(), *self._given_up]
        judged += [frame for name, frame in self._steps.items() if keeps(self.spec.steps[name])]
        letters = frames.union(
            [dead_letters(frame, pipeline=self.spec.name, query=self.plan.name) for frame in judged]
        )
        write = dead_letter_writer(self.spec, self.plan.name)
        self.counts["dead_letters"] = write(letters, self.entry.batch_id)


def holds_rows(some: Sequence[Any]) -> bool:
    """Whether one of some rules makes records wait."""
    return any(rule.otherwise in HOLDING for rule in some)


def may_hold(spec: PipelineSpec, plan: QueryPlan) -> bool:
    """Whether records of a record query may have to wait, or some do since its rules said so."""
    parts = [spec.sources[name] for name in plan.sources]
    return (
        PipelinePaths(spec).held(plan.name).exists()
        or (any(source.can_fail for source in parts) and spec.errors.on_invalid in HOLDING)
        or any(holds_rows(source.rules) for source in parts)
        or any(holds_rows(spec.steps[name].rules) for name in plan.batched)
    )


def rejecting(spec: PipelineSpec, plan: QueryPlan) -> bool:
    """Whether records of a record query can be rejected or counted."""
    parts = [spec.sources[name] for name in plan.sources]
    return any(source.can_fail or source.rules for source in parts) or any(
        keeps(spec.steps[name]) for name in plan.batched
    )


def _arrow(frame: DataFrame, schema: pa.Schema, query: str, limit: int) -> pa.Table:
    table = frame.limit(limit + 1).toArrow()
    if table.num_rows > limit:
        raise TooManyHeld(query, table.num_rows, limit)
    return table.select(schema.names).cast(schema)
