"""Columns of any name, from a topic through rules into tables and topics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.pipeline.spec import TableSink
from penstock.spark.tables import table_version
from tests.spark.pipeline.conftest import Pipeline
from tests.spark.pipeline.test_refusals import validated

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

NAMES = (
    "_error", "_value", "_rule", "_reason", "_otherwise", "_shredded", "_topic", "_partition",
    "_key", "_offset", "_from", "_line", "topic", "offset", "key", "timestamp", "a.b", "a b", "1a",
    "select", "é",
)  # fmt: skip
TEXT = '''
name = "names-{number}"
[run]
trigger = "once"
restarts = 0
[source.numbers]
topic = "{topic}"
format = "json"
schema = "{schema}"
expect = {{"is small" = {{that = "id is null or id < 100", otherwise = "park"}}}}
[step.changes]
sql = """select coalesce(id, bigint(string(_record.key))) as id, `a.b`, _error{more}, _record
         from numbers"""
[sink.lake]
from = "numbers"
table = "lake"
[step.present]
sql = "select * from numbers where id is not null"
[sink.newest]
from = "present"
table = "newest"
mode = "upsert"
keys = ["id"]
order_by = "a.b"
[sink.changed]
from = "changes"
table = "changed"
mode = "cdc"
keys = ["id"]
delete_when = "_record.value is null"
{evolve}
[sink.copy]
from = "numbers"
topic = "{copy}"
[errors]
on_invalid = "drop"
'''


@pytest.mark.long
def test_columns_of_any_name_reach_every_sink(pipeline: Pipeline, spark: SparkSession) -> None:
    topic, copy = pipeline.topic("numbers"), pipeline.topic("copy")
    schema = "id bigint, " + ", ".join(f"`{name}` string" for name in NAMES)

    def text(more: str = "", evolve: str = "") -> str:
        return TEXT.format(
            number=pipeline.number, topic=topic, copy=copy, schema=schema, more=more, evolve=evolve
        )

    def named(number: int, word: str) -> dict[str, object]:
        return {"id": number} | {name: f"{name} {word}" for name in NAMES}

    sent = [named(1, "old"), named(1, "older"), named(2, "two"), named(300, "parked")]
    pipeline.send(topic, [(str(row["id"]), row) for row in sent[:1]])
    pipeline.send(topic, [(str(row["id"]), row) for row in sent[2:]])
    found = pipeline.run(text())
    assert {state.held for state in found.values()} == {1}
    good = [sent[0], sent[2]]
    assert sorted(pipeline.rows("lake"), key=lambda one: one["id"]) == good
    assert sorted(pipeline.rows("newest"), key=lambda one: one["id"]) == good
    assert [json.loads(record["value"]) for record in pipeline.records(copy)] == good
    path = pipeline.folder / "pipeline.toml"
    assert validated(path, spark) == ()
    # A column more, and a removal by a record without a value.
    path.write_text(text(", `a b`"))
    (problem,) = validated(path, spark)
    assert (problem.where, problem.line) == ("sink.changed.table", 27)
    assert "has no column a b. Set add_columns = true to add it" in problem.message
    pipeline.send(topic, [("1", sent[1])])
    pipeline.client.write_arrow(topic, _tombstone("2"))
    pipeline.run(text(", `a b`", 'evolve = "add"'))
    assert pipeline.rows("changed") == [
        {"id": 1, "a.b": "a.b older", "_error": "_error older", "a b": "a b older"}
    ]
    assert sorted(pipeline.rows("newest"), key=lambda one: one["id"]) == sent[1:3]
    assert table_version(str(pipeline.folder / "changed")) == 1


def _tombstone(key: str) -> object:
    import pyarrow as pa

    return pa.table({"key": [key.encode()], "value": pa.array([None], pa.binary())})


def test_evolve_is_another_word_for_added_columns(pipeline: Pipeline) -> None:
    text = '[source.a]\ntopic = "a"\n[sink.out]\nfrom = "a"\ntable = "t"\nmode = "upsert"\n'
    for more, adds in (('evolve = "add"', True), ('evolve = "none"', False), ("", False)):
        (sink,) = pipeline.write(f'{text}keys = "key"\n{more}').sinks.values()
        assert isinstance(sink.to, TableSink)
        assert sink.to.add_columns is adds


def test_a_field_cannot_have_the_name_of_the_record(tmp_path: Path, spark: SparkSession) -> None:
    path = tmp_path / "p.toml"
    path.write_text(
        '[source.a]\ntopic = "a"\nformat = "json"\nschema = "id bigint, _Record string"\n'
        '[sink.out]\nfrom = "a"\ntable = "t"\n[errors]\non_invalid = "drop"\n'
    )
    (problem,) = validated(path, spark)
    assert (problem.where, problem.line) == ("source.a.schema", 4)
    assert "field _Record has the reserved name of the record column" in problem.message
