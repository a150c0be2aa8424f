"""Migration of a cluster: plan, run, cut-over and the way back, between two brokers.

`compat/test_links.py` does the same with Apache Kafka as the source.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from penstock.apps.cli import root
from penstock.client import Client
from penstock.link.migration import cut_over, denials
from penstock.link.source import Origin
from penstock.link.topics import create, linked_topics
from penstock.testing import Broker

Sides = tuple[Broker, Broker, Client, Client]


@pytest.fixture
def sides() -> Iterator[Sides]:
    with Broker() as one, Broker() as other, one.client() as source, other.client() as target:
        yield one, other, source, target


def command(sides: Sides, *words: str) -> Result:
    one, other, *_ = sides
    places = ["--source", one.bootstrap, "-b", other.bootstrap]
    return CliRunner().invoke(root, ["migrate", *words, *places])


def values(*texts: str) -> pa.Table:
    return pa.table({"value": [text.encode() for text in texts], "key": [b"k"] * len(texts)})


def test_a_cluster_moves_and_returns(sides: Sides, tmp_path: Path) -> None:
    _, _, source, target = sides
    record = str(tmp_path / "record.json")
    for name in ("a", "b"):
        source.create_topic(name, 2, {"retention.ms": "86400000000"})
        source.write_arrow(name, values("1", "2", "3"), partition=0)
        source.commit_offsets("readers", {(name, 0): 2})
    source.alter_quotas({"client-id": "c"}, {"producer_byte_rate": 1e6})
    planned = command(sides, "plan", "--output", "json")
    assert planned.exit_code == 0, planned.output
    inventory = json.loads(planned.stdout)
    assert [row["topic"] for row in inventory["topics"]] == ["a", "b"]
    assert [(row["group"], row["offsets"]) for row in inventory["groups"]] == [("readers", 2)]
    assert inventory["quotas"] == 1
    assert not inventory["problems"]
    assert not target.list_topics()

    done = command(sides, "run", "--wait-seconds", "20")
    assert "2 topics linked, 0 ACLs and 1 quota copied" in done.output
    again = command(sides, "run")
    assert "0 topics linked" in again.output
    source.write_arrow("a", values("4"), partition=0)
    over = command(sides, "cut-over", "--writers-stopped", "--record", record)
    assert over.exit_code == 0, over.output
    assert target.list_offsets("a") == source.list_offsets("a") == {0: 4, 1: 0}
    assert target.committed("readers")["a", 0].offset == 2
    assert json.loads(Path(record).read_text())["pause_ms"] <= 5_000

    target.write_arrow("a", values("5", "6"), partition=0)
    target.commit_offsets("readers", {("a", 0): 5})
    back = command(sides, "back", "--writers-stopped", "--record", record, "--output", "json")
    assert json.loads(back.stdout) == [{"topic": "a", "partition": 0, "records": 2}]
    column = source.read_arrow("a").column("value").to_pylist()
    assert column == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert source.committed("readers")["a", 0].offset == 5
    twice = command(sides, "back", "--writers-stopped", "--record", record)
    assert twice.exit_code == 1
    assert "a-0 of the source ends at 6, not 4" in str(twice.exception)


def test_a_plan_lists_all_problems_and_changes_nothing(sides: Sides) -> None:
    _, _, source, target = sides
    for name in ("both", "other", "free"):
        source.create_topic(name)
    for name in ("both", "other"):
        target.create_topic(name)
    planned = command(sides, "plan")
    assert planned.exit_code == 1
    for name in ("both", "other"):
        assert f"problem: topic {name}: the target has a topic of this name" in planned.output
    assert command(sides, "run").exit_code == 1
    assert {topic.name for topic in target.list_topics()} == {"both", "other"}
    over = command(sides, "cut-over", "--writers-stopped", "--record", "unused.json")
    assert "no topic is linked" in str(over.exception)
    assert not Path("unused.json").exists()


def test_a_failed_cut_over_allows_writes_to_the_source_again() -> None:
    secured = Broker({"authorizer.class.name": "acls", "super.users": "User:ANONYMOUS"})
    with secured as one, Broker() as other, one.client() as source, other.client() as target:
        for name in ("moved", "stays"):
            source.create_topic(name)
        create(source, target, ["moved", "stays"], Origin(one.bootstrap))

        def abort() -> None:
            assert source.list_acls() == denials(["moved"])
            raise KeyboardInterrupt

        def over(stop_writers: Callable[[], None]) -> None:
            cut_over(
                source, target, ["moved"], stop_writers=stop_writers, deny_writes=True,
                timeout_seconds=10.0,
            )  # fmt: skip

        with pytest.raises(KeyboardInterrupt):
            over(abort)
        assert not source.list_acls()
        assert sorted(linked_topics(target)) == ["moved", "stays"]
        over(lambda: None)
        assert source.list_acls() == denials(["moved"])
        assert list(linked_topics(target)) == ["stays"]
