"""Links between two brokers: the same batches, promotion, reversal, and what is rejected."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from penstock.apps.cli import root
from penstock.base.errors import PenstockError
from penstock.client import Client
from penstock.control.rules.metadata import LINK_TOPIC_ID
from penstock.link.source import Origin
from penstock.link.topics import (
    LinkBehind,
    LinkImpossible,
    compare,
    create,
    delete,
    lag_of,
    promote,
    reverse,
    surplus,
)
from penstock.testing import Broker

SECONDS = 20.0


def wait_until(holds: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < until, f"not within {SECONDS} s: {what}"
        time.sleep(0.02)


def values(*texts: str) -> pa.Table:
    return pa.table({"value": [text.encode() for text in texts]})


def link(source: Client, target: Client, *topics: str) -> None:
    create(source, target, topics, Origin(address(source)))


def address(client: Client) -> str:
    [node] = client.metadata(()).nodes.values()
    return f"{node.host}:{node.port}"


def copied(source: Client, target: Client, topic: str) -> None:
    wait_until(
        lambda: all(lag.records == 0 for lag in lag_of(source, target, [topic])),
        f"{topic} is copied",
    )


def end_link(source: Client | None, target: Client, *topics: str) -> dict[str, str]:
    return promote(source, target, topics, timeout_seconds=SECONDS)


def leader_epoch(client: Client, topic: str) -> int:
    return client.describe_topic(topic).partitions[0].leader_epoch


def producers(client: Client, topic: str) -> list[tuple[int, ...]]:
    """Return producer id, epoch, last sequence and start of the open transaction, as a leader
    reports them."""
    [node] = client._session.nodes()
    body = {"topics": [{"name": topic, "partition_indexes": [0]}]}
    answer = client._session.call_node(node.node_id, "DescribeProducers", body)
    return sorted(
        (
            int(found.producer_id), int(found.producer_epoch), int(found.last_sequence),
            int(found.current_txn_start_offset),
        )
        for found in answer.topics[0].partitions[0].active_producers
    )  # fmt: skip


def texts(client: Client, topic: str, **options: Any) -> list[str]:
    column = client.read_arrow(topic, **options).column("value").to_pylist()
    return [value.decode() for value in column]


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[Client, Client]]:
    with Broker() as one, Broker() as other, one.client() as source, other.client() as target:
        yield source, target


def test_batches_settings_and_groups_equal_the_sources(clusters: tuple[Client, Client]) -> None:
    source, target = clusters
    source.create_topic("same", 2, {"retention.ms": "86400000000", "min.insync.replicas": "1"})
    for codec in ("none", "gzip", "zstd"):
        for partition in (0, 1):
            source.write_arrow(
                "same", values(*map(str, range(500))), codec=codec, partition=partition
            )
    source.commit_offsets("readers", {("same", 0): 3, ("same", 1): 0}, metadata="m")
    link(source, target, "same")
    copied(source, target, "same")
    for sums in compare(source, target, "same"):
        assert sums.equal
    for partition in (0, 1):
        theirs, ours = (side.fetch_raw("same", partition, 0) for side in clusters)
        assert theirs.data == ours.data
    configs = {entry.name: entry.value for entry in target.describe_configs("topic", "same")}
    assert configs["retention.ms"] == "86400000000"
    wait_until(
        lambda: [found.offset for found in target.committed("readers").values()] == [3, 0],
        "offsets are copied",
    )
    assert target.committed("readers")["same", 0].metadata == "m"


def test_a_difference_is_reported(clusters: tuple[Client, Client]) -> None:
    source, target = clusters
    for client, text in ((source, "a"), (target, "b")):
        client.create_topic("differs")
        client.write_arrow("differs", values(text))
    [sums] = compare(source, target, "differs")
    assert not sums.equal


def test_a_linked_topic_rejects_writes_until_its_promotion(
    clusters: tuple[Client, Client],
) -> None:
    source, target = clusters
    source.create_topic("closed")
    source.write_arrow("closed", values("a", "b"))
    link(source, target, "closed")
    copied(source, target, "closed")
    with pytest.raises(PenstockError, match=r"POLICY_VIOLATION.*penstock link promote"):
        target.write_arrow("closed", values("x"))
    with pytest.raises(PenstockError, match="POLICY_VIOLATION"):
        target.delete_records("closed", {0: 1})
    command = ["link", "promote", "closed", "--replication-factor", "3", "-b", address(target)]
    refused = CliRunner().invoke(root, command)  # before anything is changed
    assert "replication factor 3 is above the number of eligible brokers, 1" in str(
        refused.exception
    )
    end_link(source, target, "closed")
    target.write_arrow("closed", values("c"))
    source.write_arrow("closed", values("late"))
    assert texts(target, "closed") == ["a", "b", "c"]
    assert leader_epoch(target, "closed") > leader_epoch(source, "closed")
    with pytest.raises(LinkImpossible, match="closed"):
        end_link(source, target, "closed")


def test_transactions_and_producers_equal_the_sources(clusters: tuple[Client, Client]) -> None:
    source, target = clusters
    source.create_topic("txn")
    for number in range(4):
        producer = source.transactional(f"txn-{number % 2}")
        producer.begin()
        producer.write_arrow("txn", values(f"{number}"))
        (producer.abort if number == 2 else producer.commit)()
    dangling = source.transactional("txn-open")
    dangling.begin()
    dangling.write_arrow("txn", values("open"))
    link(source, target, "txn")
    copied(source, target, "txn")
    committed = texts(source, "txn", isolation="read_committed")
    assert committed == ["0", "1", "3"]
    assert texts(target, "txn", isolation="read_committed") == committed
    assert texts(target, "txn") == texts(source, "txn")
    assert producers(target, "txn") == producers(source, "txn")
    assert any(start >= 0 for *_, start in producers(target, "txn"))
    end_link(source, target, "txn")
    assert all(start < 0 for *_, start in producers(target, "txn"))
    target.write_arrow("txn", values("after"))
    assert texts(target, "txn", isolation="read_committed") == [*committed, "after"]


def test_new_producers_have_ids_that_no_source_has(clusters: tuple[Client, Client]) -> None:
    source, target = clusters
    for client in clusters:
        client.create_topic("warm")
        client.write_arrow("warm", values("x"))
    source.create_topic("ids")
    source.write_arrow("ids", values("a"))
    link(source, target, "ids")
    copied(source, target, "ids")
    end_link(source, target, "ids")
    with Client(address(target)) as fresh:
        fresh.write_arrow("ids", values("b"))
    assert texts(target, "ids") == ["a", "b"]
    known = {producer_id for producer_id, *_ in producers(source, "ids")}
    new = {producer_id for producer_id, *_ in producers(target, "ids")} - known
    assert new
    assert min(new) >= 1 << 40


def test_a_log_begins_where_the_sources_does(clusters: tuple[Client, Client]) -> None:
    source, target = clusters
    source.create_topic("tail")
    source.write_arrow("tail", values(*map(str, range(10))))
    source.delete_records("tail", {0: 10})
    source.write_arrow("tail", values("ten", "eleven"))
    link(source, target, "tail")
    copied(source, target, "tail")
    assert target.list_offsets("tail", "earliest") == {0: 10}
    source.delete_records("tail", {0: 11})
    wait_until(lambda: target.list_offsets("tail", "earliest") == {0: 11}, "the start follows")
    assert texts(target, "tail") == ["eleven"]


def test_promotion_waits_for_the_rest(clusters: tuple[Client, Client]) -> None:
    source, target = clusters
    source.create_topic("rest", 2)
    target.create_topic("rest", 2, {"link.source": "127.0.0.1:1"})
    source.write_arrow("rest", values("p1"), partition=1)
    with pytest.raises(LinkBehind, match="rest-1 by 1 records"):
        promote(source, target, ["rest"], timeout_seconds=0.2)
    with pytest.raises(PenstockError, match="POLICY_VIOLATION"):
        target.write_arrow("rest", values("x"))


def test_added_partitions_are_followed(clusters: tuple[Client, Client]) -> None:
    source, target = clusters
    source.create_topic("grows")
    link(source, target, "grows")
    wait_until(lambda: LINK_TOPIC_ID in target.own_configs("grows"), "the link reads the metadata")
    source.create_partitions("grows", 3)
    source.write_arrow("grows", values("new"), partition=2)
    assert [lag.target_end for lag in lag_of(source, target, ["grows"])] == [0, -1, -1]
    command = ["link", "status", "grows", "--verify", "-b", address(target), "--output", "json"]
    shown = CliRunner().invoke(root, command)
    assert [row["equal"] for row in json.loads(shown.stdout)] == [True, True, True]
    source.create_topic("wakes")
    link(source, target, "wakes")  # another link of this source reads the metadata again
    end_link(source, target, "grows")
    assert len(target.describe_topic("grows").partitions) == 3
    assert texts(target, "grows") == ["new"]


def test_a_topic_that_is_gone_or_new_at_the_source_is_reported(
    clusters: tuple[Client, Client],
) -> None:
    source, target = clusters
    for topic in ("gone", "again"):
        source.create_topic(topic)
        source.write_arrow(topic, values("a", "b"))
    link(source, target, "gone", "again")
    copied(source, target, "gone")
    copied(source, target, "again")
    for topic in ("gone", "again"):
        source.delete_topic(topic)
    source.create_topic("again")
    source.write_arrow("again", values("x", "y", "z"))
    command = ["link", "status", "gone", "again", "-b", address(target), "--output", "json"]
    shown = CliRunner().invoke(root, command)
    assert shown.exit_code == 1
    problems = {row["topic"]: row["problem"] for row in json.loads(shown.stdout)}
    assert "no topic 'gone'" in problems["gone"]
    assert "--source-lost" in problems["gone"]
    assert "created again at the source" in problems["again"]
    assert "link delete" in problems["again"]
    with pytest.raises(LinkImpossible, match=r"no topic 'gone'.*created again"):
        end_link(source, target, "gone", "again")
    source.create_topic("wakes-too")
    link(source, target, "wakes-too")  # the link reads the metadata again
    copied(source, target, "wakes-too")
    end_link(None, target, "gone", "again")
    assert texts(target, "again") == texts(target, "gone") == ["a", "b"]


def test_invalid_links_are_rejected_before_a_change(clusters: tuple[Client, Client]) -> None:
    source, target = clusters
    source.create_topic("new")
    source.create_topic("taken")
    target.create_topic("taken")
    with pytest.raises(LinkImpossible, match=r"already has topics taken"):
        link(source, target, "new", "taken")
    with pytest.raises(LinkImpossible, match="no topics missing"):
        link(source, target, "new", "missing")
    with pytest.raises(LinkImpossible, match="same cluster"):
        link(source, source, "new")
    assert "new" not in {topic.name for topic in target.list_topics()}
    with pytest.raises(LinkImpossible, match="taken are not linked"):
        delete(target, ["taken"])
    assert "taken" in {topic.name for topic in target.list_topics()}


def test_reversal_removes_what_only_the_old_source_has(clusters: tuple[Client, Client]) -> None:
    source, target = clusters
    source.create_topic("back")
    source.write_arrow("back", values("a", "b"))
    link(source, target, "back")
    copied(source, target, "back")
    end_link(source, target, "back")
    target.write_arrow("back", values("c"))
    source.write_arrow("back", values("lost", "lost too"))
    [part] = surplus(source, Origin(address(target)), ["back"])
    assert (part.start, part.records) == (2, 2)
    reverse(source, Origin(address(target)), ["back"])
    wait_until(lambda: texts(source, "back") == ["a", "b", "c"], "the common prefix remains")
    assert all(sums.equal for sums in compare(target, source, "back"))
    end_link(target, source, "back")
    with Client(address(source)) as fresh:  # the older producer misses its removed records
        fresh.write_arrow("back", values("d"))
    assert texts(source, "back") == ["a", "b", "c", "d"]


def test_reversal_compares_the_epochs_of_records(clusters: tuple[Client, Client]) -> None:
    source, target = clusters
    source.create_topic("idle")
    source.write_arrow("idle", values("a", "b"))
    link(source, target, "idle")
    copied(source, target, "idle")
    end_link(source, target, "idle")
    target.write_arrow("idle", values("c", "d", "e"))
    source.write_arrow("idle", values("lost"))
    for _ in range(2):  # two links that end without records raise the leader epoch
        source.alter_configs("topic", "idle", {"link.source": "127.0.0.1:1"})
        source.alter_configs("topic", "idle", delete=["link.source"])
    wait_until(lambda: leader_epoch(source, "idle") >= leader_epoch(target, "idle"), "the epoch")
    [part] = surplus(source, Origin(address(target)), ["idle"])
    assert (part.start, part.records) == (2, 1)


def test_a_link_survives_restarts_of_both_sides(tmp_path: Path) -> None:
    directories: Sequence[Path] = [tmp_path / "source", tmp_path / "target"]
    with Broker(directory=directories[0]) as one, Broker(directory=directories[1]) as other:
        with one.client() as source, other.client() as target:
            source.create_topic("kept")
            source.write_arrow("kept", values("a"))
            link(source, target, "kept")
            copied(source, target, "kept")
        other.restart()
        with one.client() as source, other.client() as target:
            source.write_arrow("kept", values("b"))
            copied(source, target, "kept")
        one.stop()
        with other.client() as target:
            assert texts(target, "kept") == ["a", "b"]
        one.start()
        with one.client() as source, other.client() as target:
            source.write_arrow("kept", values("c"))
            copied(source, target, "kept")
            assert compare(source, target, "kept")[0].equal
        one.stop()
        with other.client() as target:
            end_link(None, target, "kept")
            target.write_arrow("kept", values("d"))
        other.restart()
        with other.client() as target:
            assert texts(target, "kept") == ["a", "b", "c", "d"]


def test_an_unavailable_source_does_not_delay_the_stop_of_a_broker() -> None:
    with Broker() as broker, broker.client() as target:
        target.create_topic("waiting", 1, {"link.source": "127.0.0.1:1"})
        begun = time.monotonic()
        broker.stop()
        assert time.monotonic() - begun < 4.0


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({"link.source": "127.0.0.1:1", "diskless.enable": "true"}, "diskless"),
        ({"link.client.config": "relative.properties"}, "absolute path"),
        ({"link.epoch": "7"}, "only brokers change it"),
        ({"link.source.topic.id": "x"}, "only brokers change it"),
    ],
)
def test_impossible_links_are_rejected_by_the_broker(
    clusters: tuple[Client, Client], configs: dict[str, str], reason: str
) -> None:
    _, target = clusters
    with pytest.raises(PenstockError, match=reason):
        target.create_topic("impossible", 1, configs)
    assert "impossible" not in {topic.name for topic in target.list_topics()}
    target.create_topic("plain", exist_ok=True)
    with pytest.raises(PenstockError, match=reason):
        target.alter_configs("topic", "plain", configs)
