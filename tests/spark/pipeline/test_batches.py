"""Processing of good and bad records by pipelines, on a real broker."""

from __future__ import annotations

import json
import threading
from collections import Counter
from typing import Any

import pytest

from penstock.spark.pipeline.runner import PipelineRunner, QueryFailed
from penstock.spark.pipeline.work import RuleBroken
from tests.sampling import sample
from tests.spark.pipeline.conftest import PATIENCE_SECONDS, Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def header(record: dict[str, Any], name: str) -> str:
    values = [
        header["value"] for header in record["headers"] if header["key"] == f"penstock.error.{name}"
    ]
    assert len(values) == 1
    return str(values[0].decode())


def test_each_record_is_a_row_or_a_dead_letter(pipeline: Pipeline) -> None:
    orders, dead = pipeline.topic("orders", 2), pipeline.topic("dead")
    good = [{"id": number, "amount": number % 7} for number in range(300)]
    bad = [b"not json", {"id": 1000, "amount": -1}, {"id": "x", "amount": 1}, {"id": None}]
    pipeline.send(orders, [*good[:100], *bad, *good[100:]])
    text = f"""
        name = "letters-{pipeline.number}"
        [run]
        trigger = "once"
        max_records = 120
        [source.orders]
        topic = "{orders}"
        format = "json"
        schema = "id bigint, amount bigint"
        [source.orders.expect]
        "amount is positive" = "amount >= 0"
        "small" = {{ that = "amount < 6", otherwise = "warn" }}
        [step.masked]
        sql = "select sha2(cast(id as string), 256) as id, amount from orders"
        [sink.lake]
        from = "masked"
        table = "lake"
        [sink.raw]
        from = "orders"
        table = "raw"
        [errors]
        dead_letters = "{dead}"
    """
    state = pipeline.run(text)["orders"]
    assert Counter(row["id"] for row in pipeline.rows("raw")) == Counter(range(300))
    assert len(pipeline.rows("lake")) == 300
    assert set(pipeline.rows("raw")[0]) == {"id", "amount"}
    letters = pipeline.records(dead)
    assert len(letters) == len(bad)
    assert {header(letter, "rule") for letter in letters} == {"undecodable", "amount is positive"}
    assert {letter["value"] for letter in letters} >= {b"not json"}
    assert all(letter["key"] == b"k" and header(letter, "topic") == orders for letter in letters)
    counts = state.counts
    assert counts["rejected.undecodable"] + counts["rejected.amount is positive"] == len(bad)
    assert counts["dead_letters"] == len(bad)
    assert counts["written.raw"] == 300
    assert counts["warned.small"] == sum(number % 7 == 6 for number in range(300))
    # Another run finds nothing to do, and what comes later is read once.
    pipeline.send(orders, [{"id": 300, "amount": 1}])
    pipeline.run(text)
    assert Counter(row["id"] for row in pipeline.rows("raw")) == Counter(range(301))


@pytest.mark.parametrize("order", sample(["at", "struct(at)"], 2), ids=["in tasks", "by Spark"])
def test_an_upsert_counts_what_it_refuses(pipeline: Pipeline, order: str) -> None:
    states, dead = pipeline.topic("states", 2), pipeline.topic("dead")
    good = [{"id": number % 20, "at": number} for number in range(100)]
    pipeline.send(states, [b"not json", *good[:60], {"id": 1, "at": -1}, *good[60:]])
    state = pipeline.run(f"""
        name = "states-{pipeline.number}"
        [run]
        trigger = "once"
        [source.states]
        topic = "{states}"
        format = "json"
        schema = "id bigint, at bigint"
        [source.states.expect]
        "is known" = "at >= 0"
        [step.ordered]
        sql = "select id, at, {order} as later from states"
        [sink.newest]
        from = "ordered"
        table = "newest"
        mode = "upsert"
        keys = "id"
        order_by = "later"
        [errors]
        dead_letters = "{dead}"
    """)["states"]
    assert sorted(row["at"] for row in pipeline.rows("newest")) == list(range(80, 100))
    assert state.counts["rejected.undecodable"] == state.counts["rejected.is known"] == 1
    assert state.counts["dead_letters"] == len(pipeline.records(dead)) == 2
    assert state.counts["written.newest"] == 20


@pytest.mark.long
def test_a_key_waits_behind_a_parked_record_until_it_is_released(pipeline: Pipeline) -> None:
    topic, out = pipeline.topic("payments", 2), pipeline.topic("out", 2)
    text = f"""
        name = "parked-{pipeline.number}"
        [run]
        trigger = "once"
        [source.payments]
        topic = "{topic}"
        format = "json"
        schema = "n bigint, account string"
        [source.payments.expect]
        known = {{ that = "account in (select account from accounts)", otherwise = "park" }}
        [sink.out]
        from = "payments"
        topic = "{out}"
        key = "account"
        value = "cast(n as string)"
        ordered = true
        [errors]
        on_invalid = "drop"
    """
    # A rule may not hold a subquery over a view that is not there: rules are conditions on rows.
    text = text.replace("account in (select account from accounts)", "n <> 3")
    accounts = ["a", "b"]
    pipeline.send(
        topic,
        [
            (account, {"n": n, "account": account})
            for n in range(6)
            for account in accounts
            if (n, account) != (3, "b")
        ],
    )
    state = pipeline.run(text)["payments"]
    assert state.held == 3
    sent = [(record["key"], int(record["value"])) for record in pipeline.records(out)]
    assert [n for key, n in sent if key == b"a"] == [0, 1, 2]
    assert [n for key, n in sent if key == b"b"] == [0, 1, 2, 4, 5]
    # What comes now for the key waits, too.
    pipeline.send(topic, [("a", {"n": 6, "account": "a"}), ("b", {"n": 6, "account": "b"})])
    assert pipeline.run(text)["payments"].held == 4
    # The rule is mended and the key released: all of it goes out in order, with what is new.
    box = pipeline.folder / ".penstock" / f"parked-{pipeline.number}" / "releases" / "payments"
    box.mkdir(parents=True)
    (box / "one.json").write_text('{"keys": ["61"]}')
    pipeline.send(topic, [("a", {"n": 7, "account": "a"})])
    assert pipeline.run(text.replace("n <> 3", "n < 100"))["payments"].held == 0
    sent = [(record["key"], int(record["value"])) for record in pipeline.records(out)]
    assert [n for key, n in sent if key == b"a"] == list(range(8))
    assert [n for key, n in sent if key == b"b"] == [0, 1, 2, 4, 5, 6]


def test_a_record_is_tried_again_and_then_dead_lettered(pipeline: Pipeline) -> None:
    topic, dead = pipeline.topic("jobs"), pipeline.topic("dead")
    text = f"""
        name = "tiers-{pipeline.number}"
        [run]
        trigger = "200 ms"
        [source.jobs]
        topic = "{topic}"
        format = "json"
        schema = "n bigint"
        [source.jobs.expect]
        "third time" = {{ that = "n <> 1 or _record.attempt >= 2", otherwise = "retry" }}
        "never" = {{ that = "n <> 2", otherwise = "retry" }}
        [step.done]
        sql = "select n, _record.attempt as attempt, _record.offset as place from jobs"
        [sink.done]
        from = "done"
        table = "done"
        [errors]
        on_invalid = "drop"
        dead_letters = "{dead}"
        retry_delays = ["200 ms", "300 ms", "400 ms"]
    """
    pipeline.send(topic, [("a", {"n": 0}), ("a", {"n": 1}), ("a", {"n": 3}), ("b", {"n": 2})])
    runner = PipelineRunner(pipeline.write(text), pipeline.spark)
    runner.start()
    stop = threading.Event()
    watcher = threading.Thread(target=runner.wait, args=(stop,))
    watcher.start()
    try:
        patience = threading.Event()
        for _ in range(PATIENCE_SECONDS * 5):
            counts = runner.states()[0].counts
            if counts.get("dead_letters") and counts.get("written.done", 0) >= 3:
                break
            patience.wait(0.2)
    finally:
        stop.set()
        watcher.join()
        runner.stop()
    rows = sorted((row["n"], row["attempt"]) for row in pipeline.rows("done"))
    assert rows == [(0, 0), (1, 2), (3, 0)]
    (letter,) = pipeline.records(dead)
    assert (header(letter, "rule"), header(letter, "attempts")) == ("never", "4")
    assert runner.states()[0].held == 0


def test_a_rule_that_says_fail_ends_the_run_and_nothing_is_written(pipeline: Pipeline) -> None:
    topic = pipeline.topic("strict")
    text = f"""
        name = "strict-{pipeline.number}"
        [run]
        trigger = "once"
        [source.strict]
        topic = "{topic}"
        format = "json"
        schema = "n bigint"
        [source.strict.expect]
        small = {{ that = "n < 10", otherwise = "fail" }}
        [sink.lake]
        from = "strict"
        table = "lake"
        [errors]
        on_invalid = "drop"
    """
    pipeline.send(topic, [{"n": 1}, {"n": 11}])
    with pytest.raises(QueryFailed, match=rf"breaks rule 'small'.*{topic}-0 offset 1"):
        pipeline.run(text)
    assert not [*(pipeline.folder / "lake").rglob("*.*")]
    assert pipeline.run(text.replace("n < 10", "n < 100"))["strict"].counts["written.lake"] == 2
    assert RuleBroken.code == "invalid_record"


WINDOWS = """
name = "windows-{number}"
[run]
trigger = "once"
max_records = 100
[source.clicks]
topic = "{clicks}"
format = "json"
schema = "user string, at timestamp"
time = "at"
delay = "1 hour"
[source.users]
table = "users"
[step.named]
sql = "select c.*, u.city from clicks c left join users u on c.user = u.user"
[step.counts]
sql = '''
select window(at, '10 minutes').start as start, user, count(*) as clicks
from clicks group by 1, 2
'''
output = "update"
[step.busy]
sql = "select * from counts where clicks > 5"
[sink.rows]
from = "named"
table = "rows"
[sink.totals]
from = "counts"
table = "totals"
mode = "upsert"
keys = ["start", "user"]
[sink.busy]
from = "busy"
table = "busy"
mode = "upsert"
keys = ["start", "user"]
[errors]
dead_letters = "{dead}"
"""


@pytest.mark.long
def test_windows_joins_and_tables(pipeline: Pipeline) -> None:
    clicks, dead = pipeline.topic("clicks", 2), pipeline.topic("dead")
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(
        str(pipeline.folder / "users"), pa.table({"user": ["u0", "u1"], "city": ["Rome", "Oslo"]})
    )
    values = [
        {"user": f"u{number % 3}", "at": f"2026-01-01T00:{number % 60:02d}:00Z"}
        for number in range(240)
    ]
    pipeline.send(clicks, [*values, b"broken"])
    text = WINDOWS.format(number=pipeline.number, clicks=clicks, dead=dead)
    states = pipeline.run(text)
    assert set(states) == {"clicks", "counts"}
    assert len(pipeline.rows("rows")) == 240
    assert Counter(row["city"] for row in pipeline.rows("rows")) == {
        "Rome": 80,
        "Oslo": 80,
        None: 80,
    }
    expected = Counter((value["at"][14:15], value["user"]) for value in values)
    totals = {
        (f"{row['start'].minute // 10}", row["user"]): row["clicks"]
        for row in pipeline.rows("totals")
    }
    assert totals == dict(expected)
    assert len(pipeline.rows("busy")) == sum(count > 5 for count in expected.values())
    assert len(pipeline.records(dead)) == 1
    assert states["counts"].state_rows > 0


@pytest.mark.long
def test_python_steps_and_deduplication(pipeline: Pipeline) -> None:
    topic, out = pipeline.topic("events", 2), pipeline.topic("once")
    dead = pipeline.topic("dead")
    (pipeline.folder / "steps.py").write_text(
        "from pyspark.sql import functions as F\n"
        "def doubled(events):\n"
        "    return events.withColumn('n', F.col('n') * 2)\n"
    )
    values = [
        {"id": number % 50, "n": number % 50, "at": "2026-01-01T00:00:00Z"} for number in range(150)
    ]
    pipeline.send(topic, values)
    text = f"""
        name = "python-{pipeline.number}"
        [run]
        trigger = "once"
        max_records = 60
        [source.events]
        topic = "{topic}"
        format = "json"
        schema = "id bigint, n bigint, at timestamp"
        time = "at"
        delay = "1 hour"
        deduplicate = ["id"]
        [step.doubled]
        python = "steps.py:doubled"
        inputs = ["events"]
        expect = {{ "small" = "id < 40" }}
        [sink.out]
        from = "doubled"
        topic = "{out}"
        key = "cast(id as string)"
        value = "cast(n as string)"
        [errors]
        dead_letters = "{dead}"
    """
    pipeline.run(text)
    sent = sorted((int(record["key"]), int(record["value"])) for record in pipeline.records(out))
    assert sent == [(number, 2 * number) for number in range(40)]
    letters = [json.loads(record["value"])["id"] for record in pipeline.records(dead)]
    assert sorted(letters) == list(range(40, 50))
