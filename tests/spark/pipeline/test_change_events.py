"""Pipelines that apply change events: rows, versions, rules, steps, and rejected events."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from penstock.base.document import DocumentInvalid
from penstock.lake.commits import LakeTable
from penstock.spark.pipeline.analysis import problems
from penstock.spark.pipeline.parsing import survey
from penstock.spark.tables.changes import END, START
from tests.lake.oracle import stored
from tests.spark.pipeline.conftest import Pipeline
from tests.spark.pipeline.test_iceberg import target_of
from tests.spark.tables.histories import COLUMNS, Database, Event

pytestmark = pytest.mark.spark

SHOP = """
name = "{name}"
run.trigger = "once"
[source.orders]
topic = "{topic}"
format = "debezium"
schema = "region string, id bigint, name string, body string, note string"
[source.orders.expect]
"has a number" = "id >= 0"
[sink.rows]
from = "orders"
table = "lake/rows"
mode = "cdc"
keys = ["region", "id"]
[sink.versions]
from = "orders"
table = "lake/versions"
mode = "cdc"
keys = ["region", "id"]
history = true
[sink.lake]
from = "orders"
iceberg = "db.rows"
mode = "cdc"
keys = ["region", "id"]
partition_by = ["bucket(2, id)"]
catalog = {{type = "sql", uri = "sqlite:///catalog.db", warehouse = "lake"}}
[errors]
dead_letters = "{dead}"
"""
ITEMS = """
name = "{name}"
run.trigger = "once"
[source.items]
topic = "{topic}"
format = "debezium"
schema = "id int, price decimal(10,2), body string, at timestamp, day date, raw binary"
milliseconds = "at"
[step.dear]
sql = "select id, price * 2 as price, body, at, day, raw, _change from items"
[sink.lake]
from = "dear"
table = "lake/items"
mode = "cdc"
keys = "id"
[errors]
on_invalid = "drop"
"""


def written(events: Iterable[Event]) -> pa.Table:
    """Records of events: a delete is followed by a tombstone, a truncation has no key."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    for event in events:
        moment_ms = int(event.at.timestamp() * 1000)
        row = {name: event.sent[name] for name in COLUMNS}
        value: dict[str, Any] = {
            "before": row if event.op == "d" else None,
            "after": row if event.op in "cru" else None,
            "source": {"lsn": event.lsn, "ts_ms": moment_ms, "schema": "public"},
            "op": event.op,
            "ts_ms": moment_ms + 5,
        }
        if event.unchanged:
            value["unchanged"] = list(event.unchanged)
        key = json.dumps([event.row["region"], event.row["id"]]).encode()
        keys.append(None if event.op == "t" else key)
        values.append(json.dumps(value, ensure_ascii=False).encode())
        if event.op == "d":
            keys.append(key)
            values.append(None)
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def shown(rows: Iterable[dict[str, Any]], *names: str) -> list[str]:
    return sorted(repr([row[name] for name in (*COLUMNS, *names)]) for row in rows)


def test_change_events_become_the_rows_and_the_versions_of_the_table(pipeline: Pipeline) -> None:
    database = Database(11, keys=60, moved_toast=False)
    database.run(2_000)
    topic, dead = pipeline.topic("orders", partitions=3), pipeline.topic("dead")
    text = SHOP.format(name=f"shop-{pipeline.number}", topic=topic, dead=dead)
    wrong = [b"nonsense", {"op": "x", "ts_ms": 1}, {"op": "c", "ts_ms": 1, "after": {"id": -1}}]
    events = list(database.arriving(apart=200, again=0.1))
    for part in (events[:1_200], events[1_200:]):
        pipeline.client.write_arrow(topic, written(part))
        pipeline.send(topic, wrong)
        pipeline.run(text)
    assert shown(pipeline.rows("lake/rows")) == shown(database.rows())
    lake = LakeTable(target_of(pipeline, "db.rows"), application="tests")
    assert shown(stored(lake).scan().to_arrow().to_pylist()) == shown(database.rows())
    versions = pipeline.rows("lake/versions")
    expected = [row | {START: row["begins"], END: row["ends"]} for row in database.versions()]
    assert shown(versions, START, END) == shown(expected, START, END)
    headers = [header for record in pipeline.records(dead) for header in record["headers"]]
    reasons = [item["value"] for item in headers if item["key"] == "penstock.error.reason"]
    assert Counter(reason.decode()[:12] for reason in reasons) == {
        "field op: 'x": 2, "has a number": 2, "not JSON": 2,
    }  # fmt: skip


def test_values_are_read_by_their_types_and_steps_keep_the_change(pipeline: Pipeline) -> None:
    topic = pipeline.topic("items")
    text = ITEMS.format(name=f"items-{pipeline.number}", topic=topic)
    unscaled = base64.b64encode((-1_234).to_bytes(2, signed=True)).decode()
    row = {"id": 1, "price": unscaled, "body": "b", "at": 1_700_000_000_123, "day": 19_000,
           "raw": "AP8="}  # fmt: skip
    marked = row | {"price": "AMg=", "body": "__debezium_unavailable_value"}
    events = [{"op": "c", "after": row}, {"op": "u", "after": marked}]
    pipeline.send(topic, [event | {"source": {"lsn": 7}, "ts_ms": 9} for event in events])
    pipeline.run(text)
    (found,) = pipeline.rows("lake/items")
    assert found["at"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert (str(found["price"]), found["body"]) == ("4.00", "b")
    assert (found["day"].isoformat(), found["raw"]) == ("2022-01-08", b"\x00\xff")


@pytest.mark.parametrize(
    ("old", "new", "where", "said"),
    [
        ("raw, _change from", "raw from", "sink.lake.mode", "there is no column _change"),
        ('keys = "id"', 'keys = "number"', "sink.lake.keys", "there is no column number"),
        ("id int,", "id double,", "sink.lake.keys", "keys of exact types"),
        ("raw binary", "raw variant", "source.items.schema", "Declare it as string"),
        ("id int,", "id int not null,", "source.items.schema", "must be nullable"),
        ("body string", "_change string", "source.items.schema", "name of the column with the"),
        ('"at"\n', '"when"\n', "source.items.milliseconds", "is not a column of the schema"),
    ],
)
def test_validate_reports_wrong_change_events(
    pipeline: Pipeline, old: str, new: str, where: str, said: str
) -> None:
    assert old in ITEMS
    path = pipeline.folder / "pipeline.toml"
    text = ITEMS.format(name="items", topic="items").replace(old, new)
    path.write_text(text)
    found = survey(path)
    (problem, *more) = [
        *found.problems, *problems(found.spec, pipeline.spark, reported=found.problems)
    ]  # fmt: skip
    assert (problem.where, said in problem.message) == (where, True), (problem, more)
    line = text.splitlines()[(problem.line or 0) - 1]
    assert line.startswith(where.rpartition(".")[2])


def test_a_file_with_a_wrong_sink_does_not_load(pipeline: Pipeline) -> None:
    with pytest.raises(DocumentInvalid, match="order_by: is only for rows that are no change"):
        pipeline.write(ITEMS.format(name="items", topic="items").replace(
            'keys = "id"', 'keys = "id"\norder_by = "at"'
        ))  # fmt: skip
