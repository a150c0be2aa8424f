"""`penstock queue` against a real broker: depth, oldest, peek, and dead letters put back once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.client import Client, Queue
from penstock.testing import Broker
from tests.apps.conftest import Run

ENABLE = "errors.deadletterqueue.group.enable"
CONFIGS = {
    "share.auto.offset.reset": "earliest",
    "errors.deadletterqueue.topic.name": "dlq.work",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def rows_of(bare: Run, broker: Broker) -> Any:
    """Runs `penstock queue … --output json`."""

    def run(*words: str) -> Any:
        ran = bare("-b", broker.bootstrap, "queue", *words, "--output", "json")
        assert ran.status == 0, ran.err
        return json.loads(ran.out)

    return run


def take(queue: Queue) -> Any:
    for _ in range(100):
        taken = queue.take()
        if len(taken):
            return taken
    raise AssertionError("nothing came")


def until(client: Client, topic: str, count: int) -> list[dict[str, Any]]:
    for _ in range(500):
        found: list[dict[str, Any]] = client.read_arrow(topic).to_pylist()
        if len(found) >= count:
            return found
    raise AssertionError(found)


def test_a_queue_from_its_first_record_to_its_dead_letters(
    broker: Broker, bare: Run, rows_of: Any
) -> None:
    with broker.client() as client:
        client.create_topic("work", partitions=2)
        client.create_topic("dlq.work", partitions=2, configs={ENABLE: "true"})
        client.alter_configs("group", "g/1", CONFIGS)
        headers = [[{"key": "h", "value": b"x"}], [], [], []]
        client.write_arrow(
            "work",
            pa.table({"key": [b"k", None, None, None], "value": [b"a", b"b", b"c", b"d"],
                      "headers": headers}),
            partition=1,
        )  # fmt: skip
        with client.queue("g/1", "work") as queue:
            taken = take(queue)
            taken.reject([0, 2])
            letters = until(client, "dlq.work", 2)
            assert [letter["value"] for letter in letters] == [b"a", b"c"]
            listed = {row["group"]: row for row in rows_of("list")}
            assert listed["g/1"]["dead_letter_topic"] == "dlq.work"
            found = rows_of("describe", "g/1")
            assert (found["available"], found["acquired"], found["archiving"]) == (0, 2, 0)
            assert found["dead_letters"] == 2
            [row] = rows_of("oldest", "g/1")
            assert (row["topic"], row["partition"], row["offset"]) == ("work", 1, 1)
            assert 0 <= row["age_ms"] < 600_000
            assert [row["value"] for row in rows_of("peek", "g/1", "-n", "2")] == ["b", "c"]
            taken.ack()
            assert rows_of("oldest", "g/1") == []
        peeked = rows_of("peek", "g/1", "--dead-letters")
        assert [(row["came_from"], row["value"]) for row in peeked] == [
            ("work-1@0", "a"), ("work-1@2", "c")
        ]  # fmt: skip
        assert peeked[0]["message"] == "Offset rejected by client."

        again = client.read_arrow("dlq.work", partitions=[1]).slice(0, 1)
        client.write_arrow("dlq.work", again.select(["key", "value", "headers"]), partition=1)
        would = rows_of("redrive", "g/1", "--dry-run")
        assert (would["records"], would["doubles"]) == (2, 1)
        assert rows_of("redrive", "g/1", "--limit", "1")["records"] == 1
        done = rows_of("redrive", "g/1")
        assert (done["topics"], done["doubles"]) == ({"work": 1}, 1), "a double, of the first run"
        assert rows_of("redrive", "g/1")["records"] == 0
        back = client.read_arrow("work", partitions=[1], start={1: 4},
                                 isolation="read_committed").to_pylist()  # fmt: skip
        assert [(row["key"], row["value"]) for row in back] == [(b"k", b"a"), (None, b"c")]
        first = {header["key"]: header["value"] for header in back[0]["headers"]}
        assert first.pop("h") == b"x"
        assert first.pop("penstock.redrive.from") == b"dlq.work-1@0"
        assert set(first) == {"penstock.redrive.by", "penstock.redrive.at"}
        assert rows_of("describe", "g/1")["dead_letters"] == 0
    shown = bare("-b", broker.bootstrap, "queue", "describe", "g/1")
    # Two records, and the markers of two transactions.
    assert "4 available, 0 acquired, 0 dead letters in dlq.work" in shown.out


def test_what_is_not_there_is_said(broker: Broker, bare: Run) -> None:
    ran = bare("-b", broker.bootstrap, "queue", "describe", "nobody")
    assert (ran.status, "has no stored state" in ran.err) == (1, True)
    ran = bare("-b", broker.bootstrap, "queue", "redrive", "nobody")
    assert (ran.status, "has no dead letter topic" in ran.err) == (1, True)
    ran = bare("-b", broker.bootstrap, "queue", "describe", "g", "--admin", "127.0.0.1:1")
    assert (ran.status, "--admin" in ran.err) == (3, True)
