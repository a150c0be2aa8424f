"""Iceberg tables of a pipeline: appended and merged rows, and the default trigger."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from penstock.lake.commits import LakeTable
from penstock.lake.target import Target
from tests.lake.oracle import assert_same, stored
from tests.spark.pipeline.conftest import Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILE = """
[source.orders]
topic = "{topic}"
format = "json"
schema = "id bigint, word string, at timestamp"

[sink.lake]
from = "orders"
iceberg = "db.orders"
partition_by = ["day(at)"]
catalog = {{type = "sql", uri = "sqlite:///catalog.db", warehouse = "lake"}}

[sink.newest]
from = "orders"
iceberg = "db.newest"
mode = "upsert"
keys = ["word"]
order_by = "id"
catalog = {{type = "sql", uri = "sqlite:///catalog.db", warehouse = "lake"}}

[errors]
on_invalid = "drop"
"""


def test_a_pipeline_writes_iceberg_tables(pipeline: Pipeline) -> None:
    topic = pipeline.topic("orders")
    values = [
        {"id": n, "word": f"w{n % 7}", "at": f"2025-01-{n % 3 + 1:02d}T00:00:00Z"}
        for n in range(50)
    ]
    pipeline.send(topic, values[:30])
    once = '[run]\ntrigger = "once"\n' + FILE.format(topic=topic)
    states = pipeline.run(once)
    assert {state.error for state in states.values()} == {None}
    pipeline.send(topic, values[30:])
    pipeline.run(once)
    found = stored(LakeTable(target_of(pipeline, "db.orders"), application="")).scan().to_arrow()
    source = pa.table({"id": [v["id"] for v in values], "word": [v["word"] for v in values]})
    assert_same(source, found.select(["id", "word"]))
    newest = stored(LakeTable(target_of(pipeline, "db.newest"), application="")).scan().to_arrow()
    expected = duckdb.from_arrow(source).aggregate("max(id) as id, word").to_arrow_table()
    assert_same(expected, newest.select(["id", "word"]))
    spec = pipeline.write(FILE.format(topic=topic))
    assert spec.run.trigger == "5 seconds"  # at most 12 commits a minute


def target_of(pipeline: Pipeline, table: str) -> Target:
    catalog = {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "lake"}
    return Target.of(table, catalog, lambda name: pipeline.folder / name)
