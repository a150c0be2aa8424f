"""Checks before a run starts: columns of views, sinks, and the state directory.

Each sink compares the columns with its existing table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.base.errors import InvalidError, InvalidSetting
from penstock.formats import InvalidFormat
from penstock.formats.value_format import ValueFormat
from penstock.spark.pipeline.graph import QueryPlan
from penstock.spark.pipeline.journal import Journal
from penstock.spark.pipeline.paths import PipelinePaths
from penstock.spark.pipeline.spec import (
    RECORD,
    RECORD_FIELDS,
    ConsoleSink,
    PipelineSpec,
    Sink,
    TableSink,
)
from penstock.spark.pipeline.writing import application, check_sink
from penstock.spark.tables.commits import committed_by_another
from penstock.spark.tables.location import open_table
from penstock.spark.tables.schemas import RESERVED

TARGETS: Final = {TableSink: "table", ConsoleSink: "console"}
"""Key that names a sink's target, by type of target; `topic` for other types."""


def check_fields(names: Sequence[str], value_format: ValueFormat) -> None:
    """Check the names of a value's fields.

    Raises:
        InvalidFormat: a field is named `_record`.
    """
    if taken := [name for name in names if name.lower() == RECORD]:
        key = "schema" if value_format.schema_file is None else "schema_file"
        given = getattr(value_format, key)
        raise InvalidFormat(
            key, str(given), f"field {taken[0]} has the reserved name of the record column"
        )


def of_columns(schema: StructType) -> Iterator[tuple[str, str]]:
    """Yield the problems of a view's columns, as message and remedy."""
    for field in schema:
        if field.name.lower().startswith(RESERVED):
            yield f"column {field.name} begins with {RESERVED}, which is reserved", "rename it"
        if field.name.lower() != RECORD:
            continue
        kind = field.dataType
        if not isinstance(kind, StructType) or kind.names != [*RECORD_FIELDS, "attempt"]:
            yield (
                f"column {field.name} is {kind.simpleString()}, but its name is reserved for the "
                "column with the record, which sinks do not write",
                "rename it",
            )


def of_sink(
    spec: PipelineSpec, query: QueryPlan, sink: Sink, view: DataFrame
) -> Iterator[tuple[str, str]]:
    """Yield the reasons for which a sink rejects a view's columns, as key of the sink and message.

    Raises:
        AnalysisException: Spark rejects an expression of the sink.
    """
    target = TARGETS.get(type(sink.to), "topic")
    try:
        check_sink(spec, query.name, sink, view)
    except InvalidSetting as error:
        known = hasattr(sink.to, error.name)
        yield (error.name, f"{error.value}: {error.reason}") if known else (target, str(error))
    except (InvalidError, DeltaError) as error:
        yield target, str(error)
    else:
        if not isinstance(sink.to, TableSink) or (table := open_table(sink.to.table)) is None:
            return
        known_as = spark_id(PipelinePaths(spec).checkpoint(query.name))
        name = application(spec, query.name, sink.name)
        if (last := committed_by_another(table, name, known_as)) is not None:
            said = f"has batches of {name} up to {last}, committed with another checkpoint than"
            yield target, f"{said} that of {spec.run.state}"


def of_state(spec: PipelineSpec, query: QueryPlan) -> Iterator[str]:
    """Yield contradictions between a query's checkpoint and its journal."""
    paths = PipelinePaths(spec)
    last = Journal(paths.journal(query.name)).last()
    known_as = spark_id(paths.checkpoint(query.name))
    if last is not None and last.query_id is not None and last.query_id != known_as:
        there = "it is missing" if known_as is None else f"it is now that of query {known_as}"
        yield (
            f"batch {last.batch_id} of query {query.name} ran with the checkpoint of query "
            f"{last.query_id}, but {there}"
        )


def spark_id(checkpoint: Path) -> str | None:
    """Return the query id that Spark stored in a checkpoint; None if there is no checkpoint."""
    try:
        facts: dict[str, Any] = json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return str(facts.get("id"))
