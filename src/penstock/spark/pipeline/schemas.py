"""Inferred schemas: inferred once from a sample of records, and stored in the state directory.

If a schema changed with each run, the tables written from it would change too. To infer a schema
again, delete its file below `<state>/schemas`.
"""

from __future__ import annotations

import json
from typing import ClassVar, Final

from pyspark.sql import SparkSession

from penstock.base.errors import InvalidError
from penstock.base.files import write_durably
from penstock.formats.value_format import INFER
from penstock.records.extents import READ_COMMITTED
from penstock.spark.formats.ddl import infer_json
from penstock.spark.pipeline.broker_check import asking
from penstock.spark.pipeline.spec import PipelineSpec, Source
from penstock.spark.pipeline.state import PipelinePaths

SAMPLE_RECORDS: Final = 10_000


class NothingToInfer(InvalidError):
    """Topic without a record to infer a schema from."""

    code: ClassVar[str] = "invalid_config"


def kept(spec: PipelineSpec) -> dict[str, str]:
    """Return the stored schemas as DDL, by source."""
    found: dict[str, str] = {}
    for name, source in spec.sources.items():
        path = PipelinePaths(spec).schema(name)
        if source.value_format.schema == INFER and path.exists():
            found[name] = path.read_text(encoding="utf-8").strip()
    return found


def missing(spec: PipelineSpec) -> bool:
    wanted = [source for source in spec.sources.values() if source.value_format.schema == INFER]
    return len(kept(spec)) < len(wanted)


def inferred(spec: PipelineSpec, spark: SparkSession, *, keep: bool) -> dict[str, str]:
    """Return the schemas of all sources with `schema = infer` as DDL, by source.

    Args:
        keep: store newly inferred schemas in the state directory.

    Raises:
        NothingToInfer: a topic has no record yet.
        PenstockError: no broker responds.
    """
    found = kept(spec)
    for name, source in spec.sources.items():
        if source.value_format.schema == INFER and name not in found:
            found[name] = _infer(spec, spark, source)
            if keep:
                write_durably(PipelinePaths(spec).schema(name), found[name].encode())
    return found


def _infer(spec: PipelineSpec, spark: SparkSession, source: Source) -> str:
    begin: dict[str, dict[str, int]] = {}
    end: dict[str, dict[str, int]] = {}
    with asking(spec) as client:
        for topic in source.topics:
            lows, highs = (
                client.list_offsets(topic, at, isolation=READ_COMMITTED)
                for at in ("earliest", "latest")
            )
            share = max(1, SAMPLE_RECORDS // (len(highs) * len(source.topics)))
            end[topic] = {str(index): high for index, high in highs.items()}
            begin[topic] = {
                str(index): max(lows[index], high - share) for index, high in highs.items()
            }
    if begin == end or not source.topics:
        raise NothingToInfer(
            f"source {source.name}: schema = infer found no records in "
            f"{', '.join(source.topics) or 'a pattern, which it does not read'}; "
            "write records first, or set the schema"
        )
    options = {
        "bootstrap": spec.run.bootstrap,
        "subscribe": ",".join(source.topics),
        "startingOffsets": json.dumps(begin),
        "endingOffsets": json.dumps(end),
        "columns": "value",
    }
    frame = spark.read.format("penstock").options(**options).load()
    return infer_json(frame, "value", rows_max=SAMPLE_RECORDS)
