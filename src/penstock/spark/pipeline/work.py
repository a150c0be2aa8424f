"""Work of one batch: computes its views, counts broken rules, and commits its sinks.

A judged frame has the rule that each row breaks (`rules.py`). Broken rules are counted in the pass
that `rejects.py` chooses. The sinks are staged first; when the counts are known, everything is
committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.base.errors import InvalidError, UnavailableError
from penstock.base.system import SYSTEM_CLOCK
from penstock.spark.formats.decoders import Decoder
from penstock.spark.pipeline import frames, protecting, rules
from penstock.spark.pipeline.draft import keys_of
from penstock.spark.pipeline.graph import QueryPlan, keeps
from penstock.spark.pipeline.journal import Entry
from penstock.spark.pipeline.late import LATE, Bounds, LateRows
from penstock.spark.pipeline.retry_store import QUEUED, SCHEMA, TooManyHeld
from penstock.spark.pipeline.rules import OTHERWISE, REASON, RULE
from penstock.spark.pipeline.spec import HOLDING, RECORD, RECORD_FIELDS, PipelineSpec, Source, Step
from penstock.spark.pipeline.writing import BatchDeadLetters, dead_letter_writer, writer
from penstock.spark.staged import Staged
from penstock.spark.tables import read_table

# Selection of records that wait: rejected records, and later records of their keys.
#
# The functions read judged frames: rows with the rule that each one breaks (`rules.py`). A *point*
# is the position from which records wait. With `keep_order`, a key of a partition has one point:
# its first rejected record, or the start of the batch if an earlier record of the key still waits.
# Without `keep_order`, and for records without a key, each rejected record is its own point. The
# driver computes the points from the rejected records; a broadcast join compares the batch's
# records with them.


BEFORE_ALL: Final = -1
REJECT_SCHEMA: Final = pa.schema(
    [
        *(SCHEMA.field(name) for name in ("topic", "partition", "key", "offset")),
        *(SCHEMA.field(name) for name in ("rule", "reason", "otherwise", "attempt")),
    ]
)
_POINT_SCHEMA: Final = pa.schema(
    [
        pa.field("_penstock_topic", pa.string()),
        pa.field("_penstock_partition", pa.int32()),
        pa.field("_penstock_key", pa.binary()),
        pa.field("_penstock_offset", pa.int64()),
        pa.field("_penstock_from", pa.int64()),
        pa.field("_penstock_point_rule", pa.string()),
        pa.field("_penstock_point_reason", pa.string()),
        pa.field("_penstock_point_otherwise", pa.string()),
    ]
)
_ADDED: Final = tuple(_POINT_SCHEMA.names)


def rejects(frame: DataFrame) -> DataFrame:
    """Return the rows of a judged frame that must wait, with the columns of `REJECT_SCHEMA`."""
    record = F.col(RECORD)
    return frame.where(F.col(OTHERWISE).isin(*sorted(HOLDING))).select(
        *(record[name].alias(name) for name in ("topic", "partition", "key", "offset")),
        F.col(RULE).alias("rule"),
        F.col(REASON).alias("reason"),
        F.col(OTHERWISE).alias("otherwise"),
        record["attempt"].alias("attempt"),
    )


def blocking_offsets(rejected: pa.Table, staying: pa.Table, *, keep_order: bool) -> pa.Table:
    """Return the points from which records wait: one per key, or per record if order is not kept.

    Args:
        rejected: the rejected records, with the columns of `REJECT_SCHEMA`; a record may occur more
            than once.
        staying: the held records that are not part of this batch.
    """
    found = rejected.sort_by(
        [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    )
    if not keep_order:
        return _alone(found)
    keyed = found.filter(pc.is_valid(found["key"]))
    waiting = staying.filter(pc.is_valid(staying["key"])).select(REJECT_SCHEMA.names)
    waiting = waiting.set_column(
        waiting.schema.get_field_index("offset"),
        SCHEMA.field("offset"),
        pa.chunked_array([pa.repeat(pa.scalar(BEFORE_ALL, pa.int64()), waiting.num_rows)]),
    )
    firsts = _first_of(pa.concat_tables([waiting, keyed]), ("topic", "partition", "key"))
    nothing = pa.nulls(firsts.num_rows, pa.int64())
    in_order = _point_table(firsts, keys=firsts["key"], offsets=nothing, froms=firsts["offset"])
    return pa.concat_tables([in_order, _alone(found.filter(pc.is_null(found["key"])))])


def split(
    spark: SparkSession, frame: DataFrame, where: pa.Table, *, keep_order: bool
) -> tuple[DataFrame, DataFrame]:
    """Split a judged frame into rows that are processed now and rows that must be held.

    Args:
        where: the points, from `blocking_offsets`. Held rows also have the columns of their point,
            which `held_rows` reads.
    """
    table = F.broadcast(spark.createDataFrame(where))
    record = F.col(RECORD)
    key: Column = record["key"] if keep_order else F.lit(None).cast("binary")
    offset = F.when(key.isNull(), record["offset"])
    joined = frame.join(
        table,
        (record["topic"] == F.col("_penstock_topic"))
        & (record["partition"] == F.col("_penstock_partition"))
        & key.eqNullSafe(F.col("_penstock_key"))
        & offset.eqNullSafe(F.col("_penstock_offset")),
        "left",
    )
    waits = F.col("_penstock_from").isNotNull() & (record["offset"] >= F.col("_penstock_from"))
    return joined.where(~F.coalesce(waits, F.lit(False))).drop(*_ADDED), joined.where(waits)


def held_rows(waiting: DataFrame, *, now_ms: int, delays_seconds: Sequence[float]) -> DataFrame:
    """Return the held rows of `split` as rows of the retry store.

    A rejected record gets the rule that it breaks and, for a retry, the time of its next try.
    Records queued behind it get neither.
    """
    record = F.col(RECORD)
    point = record["offset"] == F.col("_penstock_from")
    otherwise = F.when(point, F.col("_penstock_point_otherwise")).otherwise(F.lit(QUEUED))
    retried = otherwise == "retry"
    delays = F.array(*(F.lit(int(delay * 1_000)) for delay in delays_seconds or (0,)))
    due = F.when(retried, F.lit(now_ms) + F.get(delays, record["attempt"]).cast("long"))
    return waiting.select(
        *(record[name].alias(name) for name in _RECORD_ORDER),
        F.when(point, F.col("_penstock_point_rule")).alias("rule"),
        F.when(point, F.col("_penstock_point_reason")).alias("reason"),
        otherwise.alias("otherwise"),
        (record["attempt"] + F.when(retried, 1).otherwise(0)).cast("int").alias("attempt"),
        F.lit(now_ms).cast("long").alias("held_ms"),
        due.alias("due_ms"),
    ).select(*SCHEMA.names)


def dead_letter_rows(held: DataFrame) -> DataFrame:
    """Return held records as rows of a judged frame with the action dead-letter."""
    fields = (*RECORD_FIELDS, "attempt")
    return held.select(
        F.struct(*(F.col(name) for name in fields)).alias(RECORD),
        F.col("rule").alias(RULE),
        F.col("reason").alias(REASON),
        F.lit("dead-letter").alias(OTHERWISE),
    )


_RECORD_ORDER: Final = tuple(name for name in SCHEMA.names if name in RECORD_FIELDS)


def _alone(rejected: pa.Table) -> pa.Table:
    firsts = _first_of(rejected, ("topic", "partition", "offset"))
    nobody = pa.nulls(firsts.num_rows, pa.binary())
    return _point_table(firsts, keys=nobody, offsets=firsts["offset"], froms=firsts["offset"])


def _first_of(table: pa.Table, names: Sequence[str]) -> pa.Table:
    others = [name for name in table.column_names if name not in names]
    grouped = table.group_by(list(names), use_threads=False).aggregate(
        [(name, "first") for name in others]
    )
    return grouped.rename_columns([name.removesuffix("_first") for name in grouped.column_names])


def _point_table(firsts: pa.Table, *, keys: object, offsets: object, froms: object) -> pa.Table:
    return pa.table(
        [
            firsts["topic"], firsts["partition"], keys, offsets, froms,
            firsts["rule"], firsts["reason"], firsts["otherwise"],
        ],
        schema=_POINT_SCHEMA,
    )  # fmt: skip


DEAD_LETTERS: Final = "dead_letters"


class RuleBroken(InvalidError):
    """Row that breaks a rule whose action is `fail`."""

    code: ClassVar[str] = "invalid_record"


class RowsChanged(UnavailableError):
    """Batch that rejected other rows when it was read again; it stops before any commit."""

    code: ClassVar[str] = "unknown_server_error"


class Work:
    """Processing of one batch, with its views, judged frames and counts of rejected rows."""

    def __init__(
        self,
        *,
        spec: PipelineSpec,
        plan: QueryPlan,
        decoders: Mapping[str, Decoder],
        spark: SparkSession,
        entry: Entry,
    ) -> None:
        self.spec = spec
        self.plan = plan
        self.decoders = decoders
        self.spark = spark
        self.entry = entry
        self._keys = keys_of(spec)
        self.counts: Counter[str] = Counter()
        self.commit_times: dict[str, tuple[float, float]] = {}
        """Begin and end of each target's commit, in monotonic seconds."""
        self.released: dict[str, int] = {}
        self.views: dict[str, DataFrame] = {}
        self._read_by_steps = {view for name in plan.batched for view in spec.steps[name].inputs}
        self._dead_lettered: list[DataFrame] = []
        self._dead_lettered_rows = 0
        self._late: DataFrame | None = None
        self._judged: dict[str, DataFrame] = {}
        self._steps: dict[str, DataFrame] = {}
        self._observed: dict[str, Observation] = {}
        self._dead_letters: Counter[str] = Counter()
        self._waiting = 0
        self._counted: set[str] = set()
        self._kept: list[DataFrame] = []

    def keep(self, frame: DataFrame) -> DataFrame:
        """Keep a frame in memory until the batch ends."""
        kept = frame.persist()
        self._kept.append(kept)
        return kept

    def release(self) -> None:
        for frame in reversed(self._kept):
            frame.unpersist()
        for name in self._read_by_steps:
            self.spark.catalog.dropTempView(name)

    def register(self, name: str, frame: DataFrame) -> None:
        """Store a view for sinks; if a step reads it, make it a view of Spark's session too."""
        self.views[name] = frame
        if name in self._read_by_steps:
            frame.createOrReplaceTempView(name)

    def read_tables(self) -> None:
        for name in self.plan.tables:
            table = self.spec.sources[name].table or ""
            version = self.entry.tables[name]
            self.register(name, read_table(self.spark, table, version=version))

    # Views

    def open_sources(self, batch: DataFrame, *, keep: bool = False, observe: bool = False) -> None:
        """Decode and judge the records of every source; register its good rows as a view.

        Args:
            keep: keep the judged frames in memory.
            observe: count broken rules in the first pass over the views.
        """
        for name in self.plan.sources:
            source = self.spec.sources[name]
            records = batch
            if len(self.plan.sources) > 1:
                records = frames.records_of(batch, source)
            judged = frames.source_view(
                records,
                source,
                self.decoders[name],
                on_error=self.spec.errors.on_invalid,
                keys=self._keys,
            )
            judged = self._with_last_try(judged)
            self._judged[name] = self.keep(judged) if keep else judged
        self._show_good_records(observe=observe)

    def _show_good_records(self, *, observe: bool = False) -> None:
        for name, judged in self._judged.items():
            good = rules.accepted(self._watched(name, judged, observe=observe))
            self._show(name, good, self.spec.sources[name])

    def _with_last_try(self, judged: DataFrame) -> DataFrame:
        if not self.spec.errors.retry_delays_seconds:
            return judged
        tries = len(self.spec.errors.retry_delays_seconds)
        last = (F.col(OTHERWISE) == "retry") & (F.col(RECORD)["attempt"] >= tries)
        fate = F.when(last, F.lit("dead-letter")).otherwise(F.col(OTHERWISE))
        return judged.withColumn(OTHERWISE, fate)

    def run_steps(self, *, keep: bool = False, observe: bool = False) -> None:
        self._steps = {}
        for name in self.plan.batched:
            step = self.spec.steps[name]
            frame = frames.run_step(self.spark, step, self.views)
            if not step.rules:
                self._show(name, frame, step)
                continue
            judged = rules.judged(frame, step.rules, error=None, on_error="")
            if keeps(step):
                judged = self._with_last_try(judged)
            self._steps[name] = self.keep(judged) if keep else judged
            good = rules.accepted(self._watched(name, self._steps[name], observe=observe))
            self._show(name, good, step)

    def _show(self, name: str, clear: DataFrame, part: Source | Step) -> None:
        self.register(name, protecting.protected(clear, part, self._keys))

    # Broken rules

    def _facts(self, name: str, judged: DataFrame) -> str:
        part: Source | Step = self.spec.sources.get(name) or self.spec.steps[name]
        return rules.facts(part, judged, on_error=self.spec.errors.on_invalid)

    def _watched(self, name: str, judged: DataFrame, *, observe: bool) -> DataFrame:
        facts = self._facts(name, judged) if observe else ""
        if not facts:
            return judged
        self._observed[name] = Observation()
        return judged.observe(self._observed[name], F.expr(facts))

    def _take_in_observed(self) -> None:
        for name, observation in self._observed.items():
            try:
                found = observation.get
            except Py4JJavaError:
                continue  # Spark removed that part of the plan
            self._take_in(name, found)

    def count_sources(self) -> None:
        """Count the rows that break rules of sources, in a separate pass.

        Raises:
            RuleBroken: a row breaks a rule with `fail`.
        """
        self._count(self._judged)

    def _count(self, judged: Mapping[str, DataFrame]) -> None:
        for name, frame in judged.items():
            if facts := self._facts(name, frame):
                observation = Observation()
                watched = frame.observe(observation, F.expr(facts))
                watched.write.format("noop").mode("overwrite").save()
                self._take_in(name, observation.get)

    def _take_in(self, name: str, observed: Mapping[str, Any]) -> None:
        self._counted.add(name)
        found = observed[rules.FACTS].asDict()
        for what, value in found.items():
            if value and what.startswith((rules.REJECTED, rules.WARNED, rules.GONE)):
                self.counts[what] += value
        self._dead_letters[name] = found.get(rules.DEAD_LETTERS, 0)
        self._waiting += found.get(rules.WAITING, 0)
        broken = found.get(rules.BROKEN)
        if broken is None:
            return
        text = f"{name}: a row breaks rule {broken[RULE]!r}, whose action is fail"
        if len(broken) > len(rules.PLACE):
            text += f": {broken[0]}-{broken[1]} offset {broken[2]}: {broken[rules.REASON]}"
        raise RuleBroken(text)

    # Held records

    def rejects(self, limit: int) -> pa.Table:
        """Return the rejected records that must wait, with the columns of `REJECT_SCHEMA`.

        Raises:
            TooManyHeld: there are more than `limit`.
        """
        found = [
            judged
            for name, judged in self._steps.items()
            if holds_rows(self.spec.steps[name].rules)
        ]
        if not self._waiting and not found:
            return REJECT_SCHEMA.empty_table()
        found += self._judged.values()
        union = frames.union([rejects(judged) for judged in found])
        return _arrow(union, REJECT_SCHEMA, self.plan.name, limit)

    def hold_back(self, blocking_offsets: pa.Table, limit: int) -> pa.Table:
        """Recompute the views without the records that must wait; return these for the retry store.

        Raises:
            TooManyHeld: there are more than `limit`.
        """
        keep_order = self.spec.errors.keep_order
        waiting: list[DataFrame] = []
        for name, judged in self._judged.items():
            goes_on, waits = split(self.spark, judged, blocking_offsets, keep_order=keep_order)
            self._judged[name] = goes_on
            rows = held_rows(
                waits,
                now_ms=self.entry.now_ms,
                delays_seconds=self.spec.errors.retry_delays_seconds,
            )
            waiting.append(rows)
        self.counts.clear()
        self._waiting = 0
        self.count_sources()
        self._show_good_records()
        self.run_steps(keep=True)
        return _arrow(frames.union(waiting), SCHEMA, self.plan.name, limit)

    def dead_letter_held(self, held: pa.Table) -> None:
        """Add held records that an operator chose to dead-letter to the batch's dead letters."""
        if held.num_rows:
            self._dead_lettered.append(dead_letter_rows(self.spark.createDataFrame(held)))
            self._dead_lettered_rows = held.num_rows

    def take_late(self, found: Bounds, late: LateRows) -> None:
        """Count the rows that Spark drops as late; dead-letter them according to `errors`."""
        rows, without = late.of(self.spark, found)
        if without:
            self.counts[rules.REJECTED + LATE] += without
        if rows is None:
            return
        if self.spec.errors.late_dead_letters:
            self._late = rows
        elif count := rows.count():
            self.counts[rules.REJECTED + LATE] += count

    # Sinks

    def write(self, begin: Callable[[], None], *, counting: str | None) -> None:
        """Stage every sink, check the counts and all targets, and commit.

        Dead letters are committed first. So even if the driver dies in between, a row that is
        missing in the tables is among them.

        Args:
            begin: called before the first commit, when nothing can reject the batch any more.
            counting: the sink during whose pass broken rules are counted. None if they were counted
                before, or need a separate pass.

        Raises:
            RuleBroken: a row breaks a rule with `fail`; nothing has been committed.
            PenstockError: a target rejects its staged rows; nothing has been committed.
        """
        staged: dict[str, Staged[Any]] = {}
        try:
            self._stage(staged, counting)
            if len(staged) > 1:
                for sink in staged.values():
                    sink.check()
        except BaseException:
            for sink in staged.values():
                with suppress(OSError):
                    sink.discard()
            raise
        begin()
        for name in sorted(staged, key=lambda name: name != DEAD_LETTERS):
            began = SYSTEM_CLOCK.monotonic()
            staged[name].commit()
            self.commit_times[name.removeprefix("written.")] = (began, SYSTEM_CLOCK.monotonic())
        self.counts.update({name: sink.rows for name, sink in staged.items()})

    def _stage(self, staged: dict[str, Staged[Any]], counting: str | None) -> None:
        first = [] if counting is None else [counting]
        for name in (*first, *(other for other in self.plan.sinks if other != counting)):
            sink = self.spec.sinks[name]
            stage = writer(self.spec, self.plan.name, sink)
            done = staged[f"written.{name}"] = stage(self.views[sink.view], self.entry.batch_id)
            if name == counting and done.once and not done.replayed:
                self._take_in_observed()
        judged = self._judged | self._steps
        self._count({name: frame for name, frame in judged.items() if name not in self._counted})
        expected = self._dead_letters.total() + self._dead_lettered_rows
        if self.spec.errors.dead_letters is not None and (expected or self._late is not None):
            self._stage_dead_letters(staged, expected)

    def _stage_dead_letters(self, staged: dict[str, Staged[Any]], expected: int) -> None:
        """Stage dead letters for their topic.

        Raises:
            RowsChanged: the number of rejected rows differs from the count.
        """
        dead_letters = BatchDeadLetters(self.spec, self.plan, self.decoders)
        for name, frame in (self._judged | self._steps).items():
            if self._dead_letters[name]:
                dead_letters.add(name, frame)
        for frame in self._dead_lettered:
            dead_letters.add(None, frame)
        if self._late is not None:
            dead_letters.add_late(self._late)
        stage = dead_letter_writer(self.spec, self.plan.name)
        done = stage(dead_letters.frame(), self.entry.batch_id)
        if not done.replayed:
            found = dead_letters.rejected()
            if found != expected:
                raise RowsChanged(
                    f"batch {self.entry.batch_id}: {expected} records were rejected when they were "
                    f"first read, but {found} when they were read again"
                )
            if late := dead_letters.late():
                self.counts[rules.REJECTED + LATE] += late
        if done.rows or done.replayed:
            staged[DEAD_LETTERS] = done


def holds_rows(some: Sequence[Any]) -> bool:
    """Whether the action of any rule is `park` or `retry`."""
    return any(rule.otherwise in HOLDING for rule in some)


def _arrow(frame: DataFrame, schema: pa.Schema, query: str, limit: int) -> pa.Table:
    table = frame.limit(limit + 1).toArrow()
    if table.num_rows > limit:
        raise TooManyHeld(query, table.num_rows, limit)
    return table.select(schema.names).cast(schema)
