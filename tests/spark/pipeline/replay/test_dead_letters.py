"""Dead letters put back to where they came from: each once, and written down."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from deltalake import DeltaTable

from penstock.base.errors import PenstockError
from penstock.spark.errors import InvalidRows
from penstock.spark.pipeline.replay import dead_letters
from penstock.spark.pipeline.replay.dead_letters import (
    Busy,
    DeadLetters,
    Filters,
    OffsetRange,
    locked,
)
from penstock.spark.sink.log_sink import LogSink
from penstock.spark.tables import DeltaSink
from tests.spark.pipeline.conftest import Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

TEXT = """
name = "again-{number}"
[run]
trigger = "once"
restarts = 0
[source.orders]
topic = "{orders}"
format = "json"
schema = "n bigint"
[source.orders.expect]
"small" = "n < 100"
[source.others]
topic = "{others}"
format = "json"
schema = "n bigint"
[sink.lake]
from = "orders"
table = "lake"
[errors]
dead_letters = "{dead}"
"""


class Shop:
    """A pipeline with letters: 6 of rule `small` and 1 undecodable of one topic, 1 of another."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.orders, self.others = pipeline.topic("orders", 2), pipeline.topic("others")
        self.dead = pipeline.topic("dead", 2)
        self.text = TEXT.format(
            number=pipeline.number, orders=self.orders, others=self.others, dead=self.dead
        )
        keys = ["a", "b", None]
        rows = [(keys[n % 3], {"n": n}) for n in [*range(10), *range(100, 106)]]
        pipeline.send(self.orders, [*rows, ("a", b"broken")])
        pipeline.send(self.others, [b"worse"])
        self.spec = pipeline.write(self.text)
        pipeline.run(self.text)

    def dead_letters(self) -> DeadLetters:
        return DeadLetters(self.spec, self.pipeline.spark)

    def values(self, topic: str) -> Counter[bytes]:
        return Counter(record["value"] for record in self.pipeline.records(topic))

    def audit(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (
            DeltaTable(str(self.spec.run.state / "replays")).to_pyarrow_table().to_pylist()
        )
        return found


def headers(record: dict[str, Any]) -> dict[str, str]:
    return {header["key"]: header["value"].decode() for header in record["headers"]}


def large(first: int = 100, last: int = 105) -> Counter[bytes]:
    return Counter(b'{"n": %d}' % n for n in range(first, last + 1))


def test_dead_letters_are_replayed_once_and_recorded(pipeline: Pipeline) -> None:
    shop = Shop(pipeline)
    dead_letters = shop.dead_letters()
    found = dead_letters.look(Filters())
    groups = {
        (group["rule"], group["topic"]): (group["letters"], group["going"])
        for group in found.groups
    }
    assert groups == {
        ("small", shop.orders): (6, 6),
        ("undecodable", shop.orders): (1, 1),
        ("undecodable", shop.others): (1, 1),
    }
    assert found.going == 8
    assert len(found.examples) == 5
    before = pipeline.records(shop.orders)
    assert not (shop.spec.run.state / "replays").exists()

    (done,) = dead_letters.replay(Filters(rule="small"), by="ada")
    assert (done.records, done.resumed) == (6, False)
    back = pipeline.records(shop.orders)
    new = [copy for copy in back if copy not in before]
    assert Counter(copy["value"] for copy in new) == large()
    assert len(back) == len(before) + 6
    for key in (b"a", b"b"):
        in_log = [copy["value"] for copy in new if copy["key"] == key]
        assert in_log == sorted(in_log)
    old = {original["value"]: original for original in before}
    for copy in new:
        first = old[copy["value"]]
        told = headers(copy)
        assert copy["key"] == first["key"]
        assert copy["partition"] == first["partition"]
        assert (told["penstock.replay.id"], told["penstock.replay.by"]) == (done.id, "ada")
        assert told["penstock.replay.attempt"] == "1"
        assert told["penstock.replay.from"].startswith(f"{shop.dead}-")
        assert not any(name.startswith("penstock.error.") for name in told)
    rows = shop.audit()
    places = {(row["letter_partition"], row["letter_offset"]) for row in rows}
    assert len(rows) == len(places) == 6
    assert {(row["rule"], row["topic"], row["by"], row["replay_id"]) for row in rows} == {
        ("small", shop.orders, "ada", done.id)
    }
    assert {(row["partition"], row["offset"]) for row in rows} == {
        (original["partition"], original["offset"])
        for original in before
        if original["value"] in large()
    }
    assert dead_letters.replay(Filters(rule="small"), by="ada") == ()


@pytest.mark.long
def test_dead_letters_are_replayed_again_on_request(pipeline: Pipeline) -> None:
    shop = Shop(pipeline)
    dead_letters = shop.dead_letters()
    before = pipeline.records(shop.orders)
    dead_letters.replay(Filters(rule="small"), by="ada")
    # What went back once is left out, unless it is asked for.
    (small,) = dead_letters.look(Filters(rule="small")).groups
    assert (small["letters"], small["replayed"], small["going"]) == (6, 6, 0)
    assert dead_letters.replay(Filters(rule="small", limit=2, again=True), by="bob")[0].records == 2
    assert len(pipeline.records(shop.orders)) == len(before) + 8
    # The pipeline rejects them again; those letters are new ones, of a second attempt.
    pipeline.run(shop.text)
    assert dead_letters.look(Filters(rule="small")).going == 8
    dead_letters.replay(Filters(rule="small"), by="ada")
    attempts = Counter(row["attempt"] for row in shop.audit())
    assert attempts == {1: 6 + 2, 2: 8}
    # The rule is mended: everything goes through.
    pipeline.run(shop.text.replace("n < 100", "n < 1000"))
    assert {row["n"] for row in pipeline.rows("lake")} == {*range(10), *range(100, 106)}


@pytest.mark.long
def test_filters(pipeline: Pipeline) -> None:
    shop = Shop(pipeline)
    dead_letters = shop.dead_letters()

    def going(**filters: Any) -> int:
        return dead_letters.look(Filters(**filters)).going

    assert going(topic=shop.others) == 1
    assert going(rule="undecodable") == 2
    assert going(rule="no such rule") == 0
    assert going(limit=3) == 3
    dead = pipeline.records(shop.dead)
    newest = max(letter["timestamp"] for letter in dead)
    at_ms = int(newest.timestamp() * 1000) if hasattr(newest, "timestamp") else newest
    assert going(since_ms=at_ms) >= 1
    assert going(since_ms=at_ms + 1) == 0
    for partition in (0, 1):
        here = [letter["offset"] for letter in dead if letter["partition"] == partition]
        if here:
            whole = OffsetRange(partition=partition, first=min(here), last=max(here))
            assert going(offsets=(whole,)) == len(here)
            last = OffsetRange(partition=partition, first=max(here), last=max(here))
            assert going(offsets=(last,)) == 1
    # Letters of other pipelines in the same topic are not ours.
    other = pipeline.write(shop.text.replace('name = "again', 'name = "other'))
    assert DeadLetters(other, pipeline.spark).look(Filters()).going == 0


@pytest.mark.long
@pytest.mark.parametrize("where", ["after the log", "before the log", "after the audit"])
def test_an_interrupted_replay_is_finished_first(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    shop = Shop(pipeline)
    dead_letters = shop.dead_letters()

    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        if where == "before the log":
            broken.setattr(LogSink, "write", stop)
        elif where == "after the log":
            broken.setattr(DeltaSink, "write", stop)
        else:
            broken.setattr(DeadLetters, "_finish", stop)
        with pytest.raises(KeyboardInterrupt):
            dead_letters.replay(Filters(rule="small"), by="ada")
    # Letters that come meanwhile are not part of it.
    pipeline.send(shop.orders, [{"n": 500}])
    pipeline.run(shop.text)
    first, second = shop.dead_letters().replay(Filters(), by="bob")
    assert (first.records, first.resumed) == (6, True)
    assert second.resumed is False
    back = [
        record["value"]
        for record in pipeline.records(shop.orders)
        if headers(record).get("penstock.replay.id") == first.id
    ]
    assert Counter(back) == large()
    by = Counter(row["by"] for row in shop.audit())
    # What the interrupted one had put back was rejected again meanwhile, and goes as a new letter.
    assert by["ada"] == 6
    assert by["bob"] == second.records == (3 if where == "before the log" else 3 + 6)


@pytest.mark.long
def test_what_cannot_go_back_is_refused_and_stands_in_nobodys_way(pipeline: Pipeline) -> None:
    shop = Shop(pipeline)
    dead_letters = shop.dead_letters()
    pipeline.client.delete_topic(shop.others)
    with pytest.raises(InvalidRows, match=f"has no topic {shop.others}"):
        dead_letters.replay(Filters(), by="ada")
    assert shop.values(shop.orders)[b"broken"] == 1
    (done,) = dead_letters.replay(Filters(topic=shop.orders), by="ada")
    assert (done.records, done.resumed) == (7, False)
    assert shop.values(shop.orders)[b"broken"] == 2
    with (
        locked(shop.spec.run.state / "replaying" / "lock", "a replay"),
        pytest.raises(Busy, match="as process"),
    ):
        dead_letters.replay(Filters(), by="ada")


def test_a_pipeline_without_dead_letters_is_told(pipeline: Pipeline) -> None:
    topic = pipeline.topic("orders")
    text = TEXT.format(number=pipeline.number, orders=topic, others=topic, dead="x")
    text = text.split("[errors]")[0] + '[errors]\non_invalid = "drop"\n'
    spec = pipeline.write(text.replace('"small" = "n < 100"', ""))
    with pytest.raises(dead_letters.NoDeadLetters, match=r"errors\.dead_letters"):
        DeadLetters(spec, pipeline.spark)
    assert issubclass(dead_letters.NoDeadLetters, PenstockError)
