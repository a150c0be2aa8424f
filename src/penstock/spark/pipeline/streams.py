"""Views of a query with a stateful root, without rejected records.

A record query has what is rejected. The same views are made over streams, to run them, and over the
records of a batch, to find those that Spark drops (`late.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession

from penstock.spark.formats.decoders import Decoder
from penstock.spark.pipeline import frames, protecting, rules
from penstock.spark.pipeline.files import keys_of
from penstock.spark.pipeline.graph import QueryPlan
from penstock.spark.pipeline.spec import PipelineSpec, Source, Step
from penstock.spark.tables import read_table


def views(
    spark: SparkSession,
    spec: PipelineSpec,
    plan: QueryPlan,
    decoders: Mapping[str, Decoder],
    *,
    records: Callable[[str], DataFrame],
    timed: Callable[[DataFrame, Source | Step], DataFrame],
) -> dict[str, DataFrame]:
    """Make the tables, sources and streamed steps of a query.

    Args:
        records: the records of a source.
        timed: adds watermark and deduplication to the view of a source or step.
    """
    found: dict[str, DataFrame] = {}
    keys = keys_of(spec)
    for name in plan.tables:
        found[name] = read_table(spark, spec.sources[name].table or "")
    for name in plan.sources:
        source = spec.sources[name]
        judged = frames.source_view(
            records(name), source, decoders[name], on_error=spec.errors.on_invalid, keys=keys
        )
        good = protecting.protected(rules.accepted(judged), source, keys)
        found[name] = timed(good, source)
    return with_steps(spark, spec, plan, found, timed)


def with_steps(
    spark: SparkSession,
    spec: PipelineSpec,
    plan: QueryPlan,
    inputs: Mapping[str, DataFrame],
    timed: Callable[[DataFrame, Source | Step], DataFrame],
) -> dict[str, DataFrame]:
    """Add the streamed steps of a query to the views of its tables and sources.

    The views' names are registered with Spark only until the steps are analysed.
    """
    found = dict(inputs)
    for name, view in found.items():
        view.createOrReplaceTempView(name)
    for name in plan.streamed:
        step = spec.steps[name]
        made = frames.run_step(spark, step, found)
        good = protecting.protected(rules.met(made, step.rules), step, keys_of(spec))
        found[name] = timed(good, step)
        found[name].createOrReplaceTempView(name)
    for name in found:
        spark.catalog.dropTempView(name)
    return found
