"""Backfill: writes older records to a sink that was added to a running pipeline.

The backfill ends at the sink's start positions (`pipeline/joining.py`). The offsets before them are
divided into chunks when the backfill begins. Each chunk is processed as a batch. The sink writes it
under the application name `<pipeline>.<query>.<sink>.backfill` with the chunk's number, and skips a
repeated chunk. Two kinds of records are left out: those that break a rule of the current file, and
those that were held when the sink was added, which reach it through the pipeline. Versions of
tables are fixed when the backfill begins.

    <state>/backfills/<query>/<sink>.json    progress
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.base.errors import CorruptError
from penstock.base.files import write_durably
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.client import Client
from penstock.spark.pipeline import frames, joining, protecting, readers, rules, schemas
from penstock.spark.pipeline.analysis import plans
from penstock.spark.pipeline.draft import keys_of
from penstock.spark.pipeline.graph import QueryPlan
from penstock.spark.pipeline.replay.dead_letters import locked
from penstock.spark.pipeline.replay.refusals import CannotBackfill, Start, check_sink, lows
from penstock.spark.pipeline.retry_store import RetryStore
from penstock.spark.pipeline.spec import PipelineSpec, Source
from penstock.spark.pipeline.state import PipelinePaths
from penstock.spark.pipeline.writing import writer
from penstock.spark.schema import COLUMN_NAMES
from penstock.spark.tables import history, read_table, table_version
from penstock.spark.tables.location import absolute

if TYPE_CHECKING:
    from penstock.spark.pipeline.frames import Ranges


def records_in(ranges: Ranges) -> int:
    return sum(end - first for partitions in ranges.values() for first, end in partitions.values())


def chunk_count(ranges: Ranges, records: int) -> int:
    """Return the number of chunks if a chunk has at most about `records` offsets."""
    return -(-records_in(ranges) // max(1, records))


def chunk(ranges: Ranges, number: int, count: int) -> dict[str, dict[str, tuple[int, int]]]:
    """Return the offsets [first, end) of chunk `number` (from 0) of `count`."""

    def cut(first: int, end: int) -> tuple[int, int]:
        span = end - first
        return first + span * number // count, first + span * (number + 1) // count

    return {
        topic: {at: cut(*bounds) for at, bounds in partitions.items()}
        for topic, partitions in ranges.items()
    }


CHUNK_RECORDS: Final = 1_000_000
QUERY_ID: Final = "sql.streaming.queryId"
_PLACE: Final = ("topic", "partition", "offset")

Report = Callable[["Progress"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Fixed inputs of a backfill, and the number of chunks that are written.

    `ranges` has the offsets [first, end) by topic and partition. `id` is None before the backfill
    begins.
    """

    id: str | None
    query: str
    sink: str
    ranges: frames.Ranges
    tables: Mapping[str, int | None]
    held_version: int | None
    joined_ms: int
    start: str
    history: str | None
    chunks: int
    done: int = 0
    rows: int = 0
    by: str = ""
    at_ms: int = 0

    @property
    def records(self) -> int:
        """Number of offsets to read; some of them may have no record."""
        return records_in(self.ranges)


class Backfill:
    """Backfill of one sink."""

    def __init__(
        self,
        spec: PipelineSpec,
        spark: SparkSession,
        sink: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
    ) -> None:
        """Prepare the backfill of the sink named `sink`.

        Raises:
            CannotBackfill: the sink does not exist, or cannot accept older rows.
            DocumentInvalid, InvalidFormat: the pipeline's file has problems.
        """
        check_sink(spec, sink)
        spec = readers.pinned(spec, stored=True)
        inferred = schemas.inferred(spec, spark, keep=False)
        found = [plan for plan in plans(spec, spark, inferred) if sink in plan.sinks]
        self._plan: QueryPlan = found[0]
        if self._plan.root is not None:
            raise CannotBackfill(
                f"sink {sink} belongs to the stateful query {self._plan.name}, whose rows depend "
                "on state and cannot be computed again. Write the sink from another stateful step "
                "(the same SQL under another name): this adds a query that reads from its start"
            )
        self._spec = spec
        self._spark = spark
        self._sink = spec.sinks[sink]
        self._decoders = frames.decoders(spec, inferred)
        self._clock = clock
        self._randomness = randomness
        self._path = PipelinePaths(spec).backfill(self._plan.name, sink)

    def look(
        self, start: Start, *, history: str | None = None, chunk_records: int = CHUNK_RECORDS
    ) -> Progress:
        """Return the progress of the open backfill or, if none has begun, of a new one.

        Args:
            start: the first records to write; used for a new backfill.
            history: a table with the topic's records. The log is read only for offsets that the
                table lacks.
            chunk_records: offsets that are read and written at once.

        Raises:
            CannotBackfill: the sink's start is unknown, or an open backfill has another start.
        """
        history = None if history is None else absolute(history)
        known = self._read()
        if known is None:
            return self._decide(start, history, chunk_records)
        if start.text is not None and (start.text, history) != (known.start, known.history):
            raise CannotBackfill(
                f"{self._path}: the backfill of sink {known.sink} was begun with --from "
                f"{known.start}" + (f" --history {known.history}" if known.history else "")
                + ": leave these options out to continue it"
            )  # fmt: skip
        return known

    def run(
        self,
        start: Start,
        *,
        by: str,
        history: str | None = None,
        chunk_records: int = CHUNK_RECORDS,
        report: Report = lambda _: None,
    ) -> Progress:
        """Begin or continue the backfill, and complete it.

        Args:
            by: the user, for the progress file.
            report: called after each chunk.

        Raises:
            CannotBackfill: as in `look`.
            Busy: another process runs this backfill.
            AnalysisException: Spark failed; the cause is `DataLoss` if retention has deleted
                records to be read (`fail_on_data_loss = false` continues without them).
        """
        with locked(self._path.with_suffix(".lock"), f"backfill of sink {self._sink.name}"):
            progress = self.look(start, history=history, chunk_records=chunk_records)
            if not progress.chunks:
                return progress
            if progress.id is None:
                progress = replace(
                    progress, id=self._randomness.uuid().hex, by=by, at_ms=self._clock.now_ms()
                )
                self._write(progress)
            for number in range(progress.done, progress.chunks):
                rows = self._write_chunk(progress, number)
                progress = replace(progress, done=number + 1, rows=progress.rows + rows)
                self._write(progress)
                report(progress)
            return progress

    # What is read

    def _decide(self, start: Start, history: str | None, chunk_records: int) -> Progress:
        joined = joining.read(self._spec, self._plan.name, self._sink.name)
        name = self._sink.name
        if joined is None:
            raise CannotBackfill(
                f"sink {name}: no run has started with it. First run the pipeline with the sink: "
                "the run writes new records, and a backfill then writes the records before"
            )
        if joined.since == joining.UNKNOWN:
            raise CannotBackfill(
                f"sink {name}: the checkpoint of query {self._plan.name} could not be read when "
                "the sink was added, so the records that the sink lacks are unknown"
            )
        ranges: frames.Ranges = {}
        if joined.positions:
            (positions,) = joined.positions
            ends = {
                at: position.offset
                for at, position in positions.partitions.items()
                if any(_reads(source, at.topic) for source in self._sources())
            }
            topics = sorted({at.topic for at in ends})
            if history is not None and len(topics) != 1:
                raise CannotBackfill(
                    f"--history {history}: a table holds one topic, but sink {name} reads topics "
                    f"{', '.join(topics)}"
                )
            with Client(self._spec.run.bootstrap, client_id="penstock-backfill") as client:
                ids = {topic: positions.topic_ids[topic] for topic in topics}
                ranges = lows(client, start, ends, ids, with_history=history is not None)
        return Progress(
            id=None,
            query=self._plan.name,
            sink=name,
            ranges=ranges,
            tables={
                table: table_version(self._spec.sources[table].table or "")
                for table in self._views()
                if table in self._plan.tables
            },
            held_version=joined.held_version,
            joined_ms=joined.at_ms,
            start=start.text or "earliest",
            history=history,
            chunks=chunk_count(ranges, chunk_records),
        )

    def _views(self) -> tuple[str, ...]:
        needed: set[str] = set()
        left = [self._sink.view]
        while left:
            name = left.pop()
            needed.add(name)
            step = self._spec.steps.get(name)
            left += [] if step is None else step.inputs
        order = (*self._plan.tables, *self._plan.sources, *self._plan.batched)
        return tuple(name for name in order if name in needed)

    def _sources(self) -> list[Source]:
        return [self._spec.sources[name] for name in self._views() if name in self._plan.sources]

    # A chunk

    def _write_chunk(self, progress: Progress, number: int) -> int:
        ranges = chunk(progress.ranges, number, progress.chunks)
        if not records_in(ranges):
            return 0
        views: dict[str, DataFrame] = {}
        try:
            self._make_views(views, progress, self._records(progress, ranges))
            late = replace(self._sink, name=f"{self._sink.name}.backfill")
            stage = writer(self._spec, self._plan.name, late)
            with self._as_query(progress.id or ""):
                staged = stage(views[self._sink.view], number)
                staged.commit()
                return staged.rows
        finally:
            for name in views:
                self._spark.catalog.dropTempView(name)

    def _records(self, progress: Progress, ranges: frames.Ranges) -> DataFrame:
        run = self._spec.run
        if progress.history is not None:
            ((topic, offsets),) = ranges.items()
            found = history(
                self._spark,
                topic=topic,
                table=progress.history,
                bootstrap=run.bootstrap,
                admin_url=run.admin_url,
                columns=COLUMN_NAMES,
                start={int(at): first for at, (first, _) in offsets.items()},
                end={int(at): end for at, (_, end) in offsets.items()},
            )
            return self._without_held(progress, found)
        wanted = {
            topic: {at: bounds for at, bounds in offsets.items() if bounds[0] < bounds[1]}
            for topic, offsets in ranges.items()
        }
        wanted = {topic: offsets for topic, offsets in wanted.items() if offsets}
        options = frames.range_options(self._spec, wanted)
        found = self._spark.read.format("penstock").options(**options).load()
        return self._without_held(progress, found)

    def _without_held(self, progress: Progress, records: DataFrame) -> DataFrame:
        store = RetryStore(PipelinePaths(self._spec).held(self._plan.name), application="")
        held: pa.Table = store.load(progress.held_version).select(list(_PLACE))
        if not held.num_rows:
            return records
        waiting = F.broadcast(self._spark.createDataFrame(held))
        return records.join(waiting, list(_PLACE), "left_anti")

    def _make_views(
        self, views: dict[str, DataFrame], progress: Progress, records: DataFrame
    ) -> None:
        batch = records.select(*COLUMN_NAMES)
        keys = keys_of(self._spec)
        for name in self._views():
            if name in progress.tables:
                table = self._spec.sources[name].table or ""
                frame = read_table(self._spark, table, version=progress.tables[name])
            elif name in self._spec.sources:
                source = self._spec.sources[name]
                judged = frames.source_view(
                    frames.records_of(batch, source),
                    source,
                    self._decoders[name],
                    on_error=self._spec.errors.on_invalid,
                    keys=keys,
                )
                frame = protecting.protected(rules.accepted(judged), source, keys)
            else:
                step = self._spec.steps[name]
                made = rules.met(frames.run_step(self._spark, step, views), step.rules)
                frame = protecting.protected(made, step, keys)
            frame.createOrReplaceTempView(name)
            views[name] = frame

    @contextmanager
    def _as_query(self, owner: str) -> Iterator[None]:
        """Set `owner` as Spark's query id, under which sinks store the chunk numbers."""
        context = self._spark.sparkContext
        before = context.getLocalProperty(QUERY_ID)
        context.setLocalProperty(QUERY_ID, owner)
        try:
            yield
        finally:
            context.setLocalProperty(QUERY_ID, before)  # type: ignore[arg-type]

    # The file

    def _read(self) -> Progress | None:
        try:
            body: dict[str, Any] = json.loads(self._path.read_bytes())
            return Progress(**body)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise CorruptError(f"{self._path} cannot be read: {error}") from error

    def _write(self, progress: Progress) -> None:
        write_durably(self._path, json.dumps(asdict(progress)).encode())


def _reads(source: Source, topic: str) -> bool:
    if source.pattern is not None:
        return re.fullmatch(source.pattern, topic) is not None
    return topic in source.topics
