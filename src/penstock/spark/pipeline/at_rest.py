"""Check that a run to the end of the log has nothing to do, without starting Spark.

A pipeline that is started every few minutes often finds nothing new, and starting Spark's session
takes seconds. This check compares the pipeline file with the last definition (`journal.py`),
and Spark's checkpoint with the journal and the ends of the source's partitions. If anything
differs, the caller starts Spark.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.base.errors import PenstockError
from penstock.spark.options import parse
from penstock.spark.pipeline import readers, schemas
from penstock.spark.pipeline.batches import may_hold
from penstock.spark.pipeline.graph import QueryPlan
from penstock.spark.pipeline.journal import Definitions, Journal
from penstock.spark.pipeline.queries import group_id, stream_options
from penstock.spark.pipeline.reads import Read
from penstock.spark.pipeline.retry_store import ReleaseBox
from penstock.spark.pipeline.spec import PipelineSpec
from penstock.spark.pipeline.state import PipelinePaths, QueryState
from penstock.spark.pipeline.status import checkpoint_positions, numbers
from penstock.spark.reads.positions import Positions
from penstock.spark.reads.stream import PenstockStreamReader

_LOGS: Final = ("offsets", "commits")
"""Folders of Spark's checkpoint, with a file for each batch that began, or that ended."""


def at_rest(spec: PipelineSpec) -> tuple[QueryState, ...]:
    """Return a pipeline's queries in phase `ended`; an empty tuple if a run may have work to do."""
    try:
        spec = readers.pinned(spec)
        plans = Definitions(PipelinePaths(spec).definitions).present_queries(
            spec, schemas.kept(spec)
        )
        if plans is None or schemas.missing(spec) or not all(_rests(spec, plan) for plan in plans):
            return ()
    except (PenstockError, OSError):
        return ()
    return tuple(
        QueryState(query=plan.name, group_id=group_id(spec, plan), phase="ended") for plan in plans
    )


def _rests(spec: PipelineSpec, plan: QueryPlan) -> bool:
    paths = PipelinePaths(spec)
    last = Journal(paths.journal(plan.name)).last()
    if plan.root is not None or last is None or not last.done:
        return False
    checkpoint = paths.checkpoint(plan.name)
    if any(max(numbers(checkpoint / name), default=-1) != last.batch_id for name in _LOGS):
        return False
    if may_hold(spec, plan) and (last.held or ReleaseBox(paths.releases(plan.name)).pending()):
        return False
    stands = checkpoint_positions(checkpoint)
    return len(stands) == 1 and _at_end(spec, plan, stands[0])


def _at_end(spec: PipelineSpec, plan: QueryPlan, stands: Positions) -> bool:
    reader = PenstockStreamReader(parse(stream_options(spec, plan, plan.sources, Read())))
    try:
        reader.prepareForTriggerAvailableNow()
        start = stands.to_json()
        return reader.latestOffset(start, ReadAllAvailable()) is start
    finally:
        reader.stop()
