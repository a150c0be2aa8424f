"""Pipelines whose values are opened by the source, where it reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from penstock.formats import ValueFormat
from penstock.spark.pipeline import frames
from penstock.spark.pipeline.analysis import plan
from penstock.spark.pipeline.graph import queries
from penstock.spark.pipeline.journal import Entry, Journal
from penstock.spark.pipeline.paths import PipelinePaths
from penstock.spark.pipeline.queries import Prepared
from penstock.spark.pipeline.reads import read_of
from tests.formats.avro.reference import encode
from tests.spark.pipeline.conftest import Pipeline
from tests.spark.pipeline.test_batches import header

pytestmark = pytest.mark.spark
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Payment",
    "fields": [{"name": "n", "type": "long"}, {"name": "account", "type": "string"}],
}


def payments(numbers: Iterable[int]) -> list[tuple[str, bytes]]:
    accounts = "ab"
    return [
        (account, encode(SCHEMA, {"n": n, "account": account}))
        for n in numbers
        for account in accounts
    ]


def avro(pipeline: Pipeline, name: str = "payment") -> str:
    (pipeline.folder / f"{name}.avsc").write_text(json.dumps(SCHEMA))
    return f'format = "avro"\n        schema_file = "{name}.avsc"'


def test_rows_dead_letters_and_what_waits(pipeline: Pipeline) -> None:
    topic, dead = pipeline.topic("payments", 2), pipeline.topic("dead")
    text = f"""
        name = "opened-{pipeline.number}"
        [run]
        trigger = "once"
        [source.payments]
        topic = "{topic}"
        {avro(pipeline)}
        [source.payments.expect]
        "not three" = {{ that = "n <> 3 or account = 'b'", otherwise = "park" }}
        "not five" = {{ that = "n <> 5", otherwise = "dead-letter" }}
        [step.rows]
        sql = "select n, account, _record.offset as place, _record.value as bytes from payments"
        [sink.rows]
        from = "rows"
        table = "rows"
        [errors]
        dead_letters = "{dead}"
    """
    pipeline.send(topic, [*payments(range(5)), ("b", b"\x01"), *payments([5])])
    assert pipeline.run(text)["payments"].held == 3
    rows = pipeline.rows("rows")
    expected = [("a", 0), ("a", 1), ("a", 2), *(("b", n) for n in range(5))]
    assert sorted((row["account"], row["n"]) for row in rows) == expected
    assert all(row["bytes"] == encode(SCHEMA, row) for row in rows)
    letters = {header(one, "rule"): one for one in pipeline.records(dead)}
    assert {rule: one["value"] for rule, one in letters.items()} == {
        "undecodable": b"\x01",
        "not five": payments([5])[1][1],
    }
    assert header(letters["undecodable"], "reason") == "field account: ends too early"
    # What waited comes back from the retry store, as bytes, beside records that the source opened.
    box = pipeline.folder / ".penstock" / f"opened-{pipeline.number}" / "releases" / "payments"
    box.mkdir(parents=True)
    (box / "one.json").write_text('{"keys": ["61"]}')
    pipeline.send(topic, payments([6]))
    assert pipeline.run(text.replace("n <> 3", "n < 100"))["payments"].held == 0
    found = sorted((row["account"], row["n"]) for row in pipeline.rows("rows"))
    assert found == sorted([*expected, ("a", 3), ("a", 4), ("a", 6), ("b", 6)])
    assert len(pipeline.records(dead)) == 3


def test_who_opens_the_values(pipeline: Pipeline) -> None:
    opened = avro(pipeline)
    text = f"""
        [source.one]
        topic = "one"
        {opened}
        [source.two]
        topic = "two"
        {opened}
        [step.both]
        sql = "select n from one union all select n from two"
        [sink.lake]
        from = "both"
        table = "lake"
        [errors]
        on_invalid = "drop"
    """
    found = plan(pipeline.write(text), pipeline.spark).queries
    assert [query.values for query in found] == ["the source, where it reads them"]
    other = avro(pipeline, "other")
    spec = pipeline.write(
        text.replace(f'topic = "two"\n        {opened}', f'topic = "two"\n{other}')
    )
    (query,) = queries(spec, ())
    read = read_of(spec, query, frames.decoders(spec, {}))
    assert (read.value_format, "several formats" in str(read)) == (None, True)
    plain = replace(spec.sources["two"], value_format=ValueFormat(kind="text"))
    spec = replace(spec, sources={**spec.sources, "two": plain})
    assert "only Spark opens" in str(read_of(spec, query, frames.decoders(spec, {})))


def test_a_batch_that_is_half_written_is_read_for_both_definitions(pipeline: Pipeline) -> None:
    text = f"""
        [source.one]
        topic = "one"
        {avro(pipeline)}
        [sink.lake]
        from = "one"
        table = "lake"
        [errors]
        on_invalid = "drop"
    """
    spec = pipeline.write(text)
    (query,) = queries(spec, ())
    now = Prepared(spec=spec, decoders=frames.decoders(spec, {}), definition="now")
    assert now.read(query).value_format is not None
    journal = Journal(PipelinePaths(spec).journal(query.name))
    entry = Entry(batch_id=0, query_id=None, now_ms=0, definition="before")
    journal.begin(entry)
    assert now.read(query).value_format is not None
    journal.write(entry)
    assert "batch 0 is finished by an older file" in str(now.read(query))
    assert replace(now, definition="before").read(query).value_format is not None
    done = PipelinePaths(spec).committed(query.name, 0)
    done.parent.mkdir(parents=True)
    done.touch()
    assert now.read(query).value_format is not None
