"""Pipelines whose values are opened by the source, where it reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.formats import ValueFormat
from penstock.spark.pipeline import frames
from penstock.spark.pipeline.analysis import plan
from penstock.spark.pipeline.graph import queries
from penstock.spark.pipeline.journal import Entry, Journal
from penstock.spark.pipeline.parsing import load
from penstock.spark.pipeline.queries import Prepared
from penstock.spark.pipeline.reads import Read, read_of
from penstock.spark.pipeline.spec import RECORD_FIELDS, PipelineSpec
from penstock.spark.pipeline.state import PipelinePaths
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


def look(spec: PipelineSpec) -> Read:
    (query,) = queries(spec, ())
    return read_of(spec, query, frames.decoders(spec, {}), query.sources, whole=False)


@pytest.mark.long
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
    letters = {header(record, "rule"): record for record in pipeline.records(dead)}
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


def test_the_queries_that_decode_the_values(pipeline: Pipeline) -> None:
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
    (said,) = found[0].values
    assert said == "the source's workers (n); columns of the record: topic"
    other = avro(pipeline, "other")
    spec = pipeline.write(
        text.replace(f'topic = "two"\n        {opened}', f'topic = "two"\n{other}')
    )
    read = look(spec)
    assert (read.value_format, "several formats" in str(read)) == (None, True)
    plain = replace(spec.sources["two"], value_format=ValueFormat(kind="text"))
    spec = replace(spec, sources={**spec.sources, "two": plain})
    assert "only Spark decodes" in str(look(spec))


FILE = """
    [run]
    bootstrap = "localhost:9092"
    [source.one]
    topic = "one"
    format = "avro"
    schema_file = "payment.avsc"
    [step.rows]
    sql = "SQL"
    [sink.out]
    from = "rows"
    SINK
    [errors]
    on_invalid = "drop"
    dead_letters = "dead"
"""


@pytest.mark.parametrize(
    ("sql", "more", "columns", "fields"),
    [
        ("select N as x from one", "", "partition", ["n"]),
        ("select count(*) as x from one", "", "partition", ["n"]),
        ("select n, account from one", "", "partition", None),
        ("select o.* from one o", "", None, None),
        ("select n from one pivot (sum(n) for account in ('a', 'b'))", "", None, None),
        ("select n, _record.offset from one", "", None, ["n"]),
        ("select n from one", "[source.one.expect]\nx = 'account is null'", "partition", None),
        (
            "select account from one",
            "[source.one.expect]\nx = {that = 'account > 3', otherwise = 'fail'}",
            "topic,partition,offset",
            ["account"],
        ),
        (
            "select n from one",
            "[source.one.expect]\nx = {that = 'n > 3', otherwise = 'dead-letter'}",
            None,
            ["n"],
        ),
        ("select n from one", "[step.rows.expect]\nx = '_record.key is null'", None, ["n"]),
        ("select n from one", "[sink.more]\nfrom = 'one'\ntable = 't'", "partition", None),
        (
            "select n from one",
            "[sink.more]\nfrom = 'one'\ntopic = 't'\nkey = 'n'\nvalue = 'account'\nordered = true",
            "topic,partition,offset",
            None,
        ),
        (
            "select n from one",
            "[sink.more]\nfrom = 'one'\ntopic = 't'\nvalue = 'cast(n as string)'",
            "partition",
            ["n"],
        ),
    ],
)
def test_what_is_read(
    tmp_path: Path, sql: str, more: str, columns: str | None, fields: list[str] | None
) -> None:
    (tmp_path / "payment.avsc").write_text(json.dumps(SCHEMA))
    file = FILE.replace("SQL", sql).replace("SINK", "table = 'rows'") + more
    (tmp_path / "pipeline.toml").write_text(file)
    read = look(load(tmp_path))
    assert ",".join(read.columns) == (columns or ",".join(RECORD_FIELDS))
    assert read.fields == (None if fields is None else tuple(fields))


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
    assert now.read(query, query.sources).value_format is not None
    journal = Journal(PipelinePaths(spec).journal(query.name))
    entry = Entry(batch_id=0, query_id=None, now_ms=0, definition="before")
    journal.begin(entry)
    assert now.read(query, query.sources).value_format is not None
    journal.write(entry)
    assert "batch 0 is finished with an older file" in str(now.read(query, query.sources))
    assert replace(now, definition="before").read(query, query.sources).value_format is not None
    done = PipelinePaths(spec).committed(query.name, 0)
    done.parent.mkdir(parents=True)
    done.touch()
    assert now.read(query, query.sources).value_format is not None
