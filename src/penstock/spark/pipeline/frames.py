"""Views as data frames: reads topics, decodes values, and runs steps.

Streams and batches use the same functions. A source's view has the fields of its value and the
column `_record` (see `spec.py`). A stateful query drops rejected records: the query that processes
the records of the same topic one by one writes their dead letters. The views of a stateful query
are built twice: over streams, to run the query, and over the records of a batch, to find the late
rows that Spark drops (`late.py`).
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any, ClassVar, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.base.errors import InvalidError
from penstock.formats.json.debezium import CHANGE, CHANGE_TYPE
from penstock.records.extents import first_millisecond
from penstock.security.data.file_ring import KeyPlace
from penstock.spark.formats.decoders import Decoder, decoder
from penstock.spark.pipeline import protecting
from penstock.spark.pipeline.draft import keys_of
from penstock.spark.pipeline.graph import QueryPlan
from penstock.spark.pipeline.reads import Read
from penstock.spark.pipeline.rules import accepted, judged, met
from penstock.spark.pipeline.spec import (
    ERROR,
    RECORD,
    RECORD_FIELDS,
    PipelineSpec,
    Source,
    Step,
)
from penstock.spark.reads.outbox import read_outbox
from penstock.spark.schema import COLUMN_NAMES, HEADERS, VALUE, quoted, spark_schema
from penstock.spark.schema import ERROR as UNDECODED
from penstock.spark.tables import read_table
from penstock.spark.tables.changes import SEQUENCE_SQL

Ranges = Mapping[str, Mapping[str, Sequence[int]]]
"""Offsets [first, end) by topic and partition; partitions are text, as in JSON."""
ATTEMPT: Final = "_attempt"
UNREAD: Final = "_unread"


class StepFailed(InvalidError):
    """Failure of a Python step: it cannot be loaded, raised an error, or returned no data frame."""

    code: ClassVar[str] = "invalid_config"


_LOADED: Final[dict[str, Path]] = {}
"""File of each loaded module of Python steps, by module name."""


def decoders(spec: PipelineSpec, inferred: Mapping[str, str]) -> dict[str, Decoder]:
    """Return the decoder of every source of topics, by the source's name.

    Args:
        inferred: the inferred schemas as DDL, by source.

    Raises:
        InvalidFormat: a schema cannot be used.
    """
    from dataclasses import replace

    found: dict[str, Decoder] = {}
    for name, source in spec.sources.items():
        if source.streaming:
            chosen = source.value_format
            if name in inferred:
                chosen = replace(chosen, schema=inferred[name])
            found[name] = decoder(chosen)
    return found


def read_options(
    spec: PipelineSpec, sources: Sequence[Source], read: Read, *, group_id: str
) -> dict[str, str]:
    """Return the options of Spark's format `penstock` for a stream of some sources' topics."""
    options = {
        "bootstrap": spec.run.bootstrap,
        "groupId": group_id,
        "failOnDataLoss": str(spec.run.fail_on_data_loss).lower(),
        **subscription(sources),
        **start_options(sources[0].start),
        **read.options(),
    }
    if spec.run.admin_url:
        options["penstock.admin.url"] = spec.run.admin_url
    if spec.run.records_max is not None:
        options["maxRecordsPerTrigger"] = str(spec.run.records_max)
    if spec.run.bytes_max is not None:
        options["maxBytesPerTrigger"] = str(spec.run.bytes_max)
    return options


def range_options(spec: PipelineSpec, ranges: Ranges) -> dict[str, str]:
    """Return the options of Spark's format `penstock` for a batch read of some offsets."""
    options = {
        "bootstrap": spec.run.bootstrap,
        "assign": json.dumps({topic: [int(at) for at in ranges[topic]] for topic in ranges}),
        "startingOffsets": json.dumps(_side(ranges, 0)),
        "endingOffsets": json.dumps(_side(ranges, 1)),
        "includeHeaders": "true",
        "failOnDataLoss": str(spec.run.fail_on_data_loss).lower(),
    }
    if spec.run.admin_url:
        options["penstock.admin.url"] = spec.run.admin_url
    return options


def _side(ranges: Ranges, side: int) -> dict[str, dict[str, int]]:
    return {
        topic: {at: bounds[side] for at, bounds in offsets.items()}
        for topic, offsets in ranges.items()
    }


def subscription(sources: Sequence[Source]) -> dict[str, str]:
    """Return the option `subscribe` or `subscribePattern` for the topics of some sources."""
    if any(source.pattern for source in sources):
        parts = [source.pattern or "|".join(map(re.escape, source.topics)) for source in sources]
        return {"subscribePattern": "|".join(f"(?:{part})" for part in parts)}
    topics = dict.fromkeys(topic for source in sources for topic in source.topics)
    return {"subscribe": ",".join(topics)}


def start_options(start: str) -> dict[str, str]:
    """Return the options for the start of a query without a checkpoint."""
    if start in {"earliest", "latest"}:
        return {"startingOffsets": start}
    milliseconds = start_millisecond(start)
    if milliseconds < 0:
        return {"startingOffsets": "earliest"}
    return {
        "startingTimestamp": str(milliseconds),
        "startingOffsetsByTimestampStrategy": "latest",
    }


def start_millisecond(start: str) -> int:
    """Return a start that is a time in milliseconds since 1970; a time without a zone is in UTC."""
    moment = datetime.fromisoformat(start)
    return first_millisecond(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def records_of(frame: DataFrame, source: Source) -> DataFrame:
    """Return the records of one source from a frame with the records of several sources."""
    return frame.where(reads(F.col("topic"), source))


def reads(topic: Column, source: Source) -> Column:
    if source.pattern is not None:
        return topic.rlike(f"^(?:{source.pattern})$")
    return topic.isin(*source.topics)


def opened(records: DataFrame, source: Source, read: Decoder) -> DataFrame:
    """Return records with decoded values: the value's fields, `_record`, and `ERROR`.

    `ERROR` has the reason if the value cannot be decoded. `records` has columns of Spark's format
    `penstock`, and `_value` and `_error` if the source has already decoded the values. Columns that
    it lacks are null in `_record`. The optional column `_attempt` is the number of earlier tries of
    a record. Of change events, `_change` gets the `sequence`, and tombstones are left out.
    """
    lines = records if source.outbox is None else _outbox_lines(records, source)
    if VALUE not in lines.columns:
        lines = read.decode(lines)
    found = lines.columns
    parts = [
        f"`{field.name}`"
        if field.name in found
        else f"cast(null as {field.dataType.simpleString()}) as `{field.name}`"
        for field in spark_schema(RECORD_FIELDS)
    ]
    tried = ATTEMPT if ATTEMPT in found else 0
    error = UNDECODED if source.outbox is None else f"coalesce({UNREAD}, {UNDECODED})"
    values = [f"{VALUE}.*"]
    if source.value_format.has_changes:
        lines = lines.where(f"{VALUE} is not null or {UNDECODED} is not null")
        op, lsn, at, unchanged = (f"{VALUE}.{CHANGE}.{part.name}" for part in CHANGE_TYPE)
        sequence = SEQUENCE_SQL.format(lsn=lsn, offset="offset")
        change = f"struct({op}, {sequence} as sequence, {at}, {unchanged}) as {CHANGE}"
        values = [f"{VALUE}.* except ({CHANGE})", change]
    return lines.selectExpr(
        *values,
        f"struct({', '.join(parts)}, {tried} as attempt) as {RECORD}",
        f"{error} as {ERROR}",
    )


def source_view(
    records: DataFrame,
    source: Source,
    read: Decoder,
    *,
    on_error: str,
    keys: KeyPlace | None,
) -> DataFrame:
    values = protecting.decrypted(opened(records, source, read), source, keys)
    return judged(values, source.rules, error=ERROR, on_error=on_error)


def _outbox_lines(records: DataFrame, source: Source) -> DataFrame:
    """Return the outbox payloads that pointers name, as records: one per line of a JSON payload.

    The key is the payload's partition id. Headers are null: a pointer's headers describe its file.
    """
    pointers = records.select(*(name for name in COLUMN_NAMES if name in records.columns))
    payloads = read_outbox(pointers, str(source.outbox), decompress=True)
    value = F.col("payload")
    frame = payloads.withColumnRenamed("error", UNREAD)
    if source.value_format.kind in {"json", "json-schema"}:
        lines = F.filter(F.split(F.decode("payload", "UTF-8"), "\n"), lambda one: F.trim(one) != "")
        frame = frame.withColumn("_line", F.explode_outer(lines)).where(
            F.col("_line").isNotNull() | F.col(UNREAD).isNotNull()
        )
        value = F.encode("_line", "UTF-8")
    return frame.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        F.encode("partition_id", "UTF-8").alias("key"),
        value.alias("value"),
        F.lit(None).cast(spark_schema((HEADERS,))[HEADERS].dataType).alias(HEADERS),
        UNREAD,
    )


def with_watermark(frame: DataFrame, part: Source | Step) -> DataFrame:
    """Return a stream with the watermark and the deduplication of a source or step."""
    if part.time is not None and part.delay is not None:
        frame = frame.withWatermark(quoted(part.time), part.delay)
    if part.deduplicate:
        frame = frame.dropDuplicatesWithinWatermark(list(part.deduplicate))
    return frame


def run_step(spark: SparkSession, step: Step, views: Mapping[str, DataFrame]) -> DataFrame:
    """Return the result of a step, whose inputs must be registered as views in `spark`.

    Raises:
        StepFailed: the Python function failed.
        AnalysisException, ParseException: Spark rejects the SQL.
    """
    if step.sql is not None:
        return spark.sql(step.sql)
    function = load_function(step)
    try:
        made = function(*(views[name] for name in step.inputs))
    except Exception as error:
        if type(error).__module__.startswith("pyspark"):
            raise
        raise StepFailed(f"step {step.name}: {type(error).__name__}: {error}") from error
    if not hasattr(made, "createOrReplaceTempView"):
        raise StepFailed(
            f"step {step.name}: its function returned {type(made).__name__}, not a data frame"
        )
    return made


def load_function(step: Step) -> Callable[..., DataFrame]:
    """Return the function of a Python step; the first call imports the step's file as a module.

    Raises:
        StepFailed: the file cannot be imported, or has no such function.
    """
    if step.python is None:
        raise StepFailed(f"step {step.name} has no Python function")
    name = module_name(step)
    module: Any = sys.modules.get(name)
    if module is not None and name not in _LOADED:
        raise StepFailed(
            f"step {step.name}: there is a module {name} already ({module!r}): "
            f"give {step.python.file} another name"
        )
    # Replace a module of this name from another pipeline or an older definition.
    if _LOADED.get(name) != step.python.file:
        found = importlib.util.spec_from_file_location(name, step.python.file)
        if found is None or found.loader is None:
            raise StepFailed(f"step {step.name}: {step.python.file} is not a Python file")
        module = importlib.util.module_from_spec(found)
        sys.modules[name] = module
        _LOADED[name] = step.python.file
        try:
            found.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            _LOADED.pop(name, None)
            raise StepFailed(
                f"step {step.name}: {step.python.file}: {type(error).__name__}: {error}"
            ) from error
    function = getattr(module, step.python.function, None)
    if not callable(function):
        raise StepFailed(
            f"step {step.name}: {step.python.file} has no function {step.python.function}"
        )
    return function  # type: ignore[no-any-return]


def module_name(step: Step) -> str:
    """Return the module name of a step's file, by which workers import it."""
    if step.python is None:
        return ""
    return step.python.file.stem


def union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda a, b: a.unionByName(b), frames)


def views(
    spark: SparkSession,
    spec: PipelineSpec,
    plan: QueryPlan,
    decoders: Mapping[str, Decoder],
    *,
    records: Callable[[str], DataFrame],
    timed: Callable[[DataFrame, Source | Step], DataFrame],
) -> dict[str, DataFrame]:
    """Return the views of a query's tables, sources and streamed steps, by name.

    Args:
        records: returns the records of a source, by the source's name.
        timed: adds the watermark and deduplication of a source or step to its view.
    """
    found: dict[str, DataFrame] = {}
    keys = keys_of(spec)
    for name in plan.tables:
        found[name] = read_table(spark, spec.sources[name].table or "")
    for name in plan.sources:
        source = spec.sources[name]
        rows = source_view(
            records(name), source, decoders[name], on_error=spec.errors.on_invalid, keys=keys
        )
        good = protecting.protected(accepted(rows), source, keys)
        found[name] = timed(good, source)
    return with_steps(spark, spec, plan, found, timed)


def with_steps(
    spark: SparkSession,
    spec: PipelineSpec,
    plan: QueryPlan,
    inputs: Mapping[str, DataFrame],
    timed: Callable[[DataFrame, Source | Step], DataFrame],
) -> dict[str, DataFrame]:
    """Return the views of a query's tables and sources (`inputs`) and of its streamed steps.

    The views are registered with Spark only while the steps are analysed.
    """
    found = dict(inputs)
    for name, view in found.items():
        view.createOrReplaceTempView(name)
    for name in plan.streamed:
        step = spec.steps[name]
        made = run_step(spark, step, found)
        good = protecting.protected(met(made, step.rules), step, keys_of(spec))
        found[name] = timed(good, step)
        found[name].createOrReplaceTempView(name)
    for name in found:
        spark.catalog.dropTempView(name)
    return found
