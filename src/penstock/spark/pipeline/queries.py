"""Queries as Spark runs them: from a `QueryPlan` to a started query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.spark.formats.decoders import Decoder
from penstock.spark.pipeline import frames
from penstock.spark.pipeline.batches import BatchJob, RecordJob, RootJob, may_hold
from penstock.spark.pipeline.graph import QueryPlan
from penstock.spark.pipeline.journal import Journal
from penstock.spark.pipeline.reads import Read, read_of
from penstock.spark.pipeline.spec import PipelineSpec
from penstock.spark.pipeline.state import PipelinePaths
from penstock.spark.sessions.workers import slots

ONCE = "once"
NOW = "now"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Pipeline with its decoders and its definition, ready to start queries."""

    spec: PipelineSpec
    decoders: Mapping[str, Decoder]
    definition: str

    def start(self, spark: SparkSession, plan: QueryPlan) -> StreamingQuery:
        """Start a query, or continue it from its checkpoint.

        Raises:
            AnalysisException: Spark rejects the plan.
        """
        spec = self.spec
        job: BatchJob = (RecordJob if plan.root is None else RootJob)(
            spec=spec, plan=plan, decoders=self.decoders, definition=self.definition
        )
        alone = plan.root is None
        frame = self.records(spark, plan, plan.sources) if alone else self.root(spark, plan)
        writer = (
            frame.writeStream.queryName(plan.name)
            .outputMode(output_mode(spec, plan))
            .foreachBatch(job)
            .option("checkpointLocation", str(PipelinePaths(spec).checkpoint(plan.name)))
        )
        if spec.run.trigger == ONCE:
            writer = writer.trigger(availableNow=True)
        elif spec.run.trigger != NOW:
            writer = writer.trigger(processingTime=spec.run.trigger)
        return writer.start()

    def records(self, spark: SparkSession, plan: QueryPlan, names: Sequence[str]) -> DataFrame:
        """Return the records of some of a query's sources as a stream."""
        options = stream_options(self.spec, plan, names, self.read(plan, names))
        options["parallelism"] = str(slots(spark))
        return spark.readStream.format("penstock").options(**options).load()

    def read(self, plan: QueryPlan, names: Sequence[str]) -> Read:
        """Return the columns and fields to read for some of a query's sources.

        A half-written batch is finished with the definition with which it began. An older one may
        need other columns, so all columns are read.
        """
        paths = PipelinePaths(self.spec)
        last = Journal(paths.journal(plan.name)).last()
        older = last is not None and last.writing and last.definition != self.definition
        if last is not None and older and not paths.committed(plan.name, last.batch_id).exists():
            return Read(why=f"batch {last.batch_id} is finished with an older file")
        return read_of(self.spec, plan, self.decoders, names, whole=whole(self.spec, plan))

    def root(self, spark: SparkSession, plan: QueryPlan) -> DataFrame:
        """Return the stream of a stateful query's root, from records that pass the sources' rules.

        The stream belongs to the runner's session `spark`, whose listener sees its progress.
        """
        views = frames.views(
            spark,
            self.spec,
            plan,
            self.decoders,
            records=lambda name: self.records(spark, plan, (name,)),
            timed=frames.with_watermark,
        )
        return views[plan.root or ""]


def whole(spec: PipelineSpec, plan: QueryPlan) -> bool:
    """Whether a query needs all columns of its records, because it may hold records unchanged."""
    return plan.root is None and may_hold(spec, plan)


def stream_options(
    spec: PipelineSpec, plan: QueryPlan, names: Sequence[str], read: Read
) -> dict[str, str]:
    """Return the options of a stream of records, except `parallelism`."""
    sources = [spec.sources[name] for name in names]
    options = frames.read_options(spec, sources, read, group_id=group_id(spec, plan))
    if whole(spec, plan):
        options["wakeFile"] = str(PipelinePaths(spec).wake_file(plan.name))
    return options


def group_id(spec: PipelineSpec, plan: QueryPlan) -> str:
    return f"{spec.name}.{plan.name}"


def output_mode(spec: PipelineSpec, plan: QueryPlan) -> str:
    step = spec.steps.get(plan.root or "")
    return "append" if step is None else step.output_mode
