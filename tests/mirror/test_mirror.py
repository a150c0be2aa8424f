"""Mirrors of one direction: records, topics, groups, MirrorMaker's formats, and refusals."""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer

from penstock.base.errors import CorruptError, PenstockError
from penstock.base.settings import by_name
from penstock.client import Client
from penstock.connect import positions
from penstock.connect.running import Stop
from penstock.connect.status import StatusFile, read_status
from penstock.mirror.batches import ORIGIN
from penstock.mirror.groups import Groups
from penstock.mirror.mirror_file import MirrorOptions, SourceOptions, TargetOptions, load
from penstock.mirror.running import MirrorRun, run
from penstock.mirror.syncs import Pair, Syncs, rows_of
from penstock.mirror.topics import MirrorRefused, clusters_of
from penstock.mirror.watching import Watch
from penstock.testing import Broker
from tests.mirror.bed import mirror, mirror_file, rows, run_command, wait_for

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def source() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def target() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def written(source: Broker) -> list[dict[str, object]]:
    """The records of topic `orders`: all codecs, headers, nulls, and an aborted transaction."""
    with source.client() as client:
        client.create_topic("orders", 3, {"retention.ms": "86400000"})
        for number, codec in enumerate(CODECS):
            names = [f"{codec}-{index}".encode() for index in range(400)]
            table = pa.table({
                "key": pa.array([None if index % 7 == 0 else name
                                 for index, name in enumerate(names)], pa.binary()),
                "value": pa.array([None if index % 11 == 0 else name * 30
                                   for index, name in enumerate(names)], pa.binary()),
                "timestamp": pa.array([1_700_000_000_000 - 60_000 * index
                                       for index in range(400)], pa.timestamp("ms", "UTC")),
                "headers": [[{"key": "n", "value": b"%d" % number}] * (index % 3)
                            for index in range(400)],
            })  # fmt: skip
            client.write_arrow("orders", table, codec=codec)
        producer = client.transactional("aborting")
        producer.begin()
        producer.write_arrow("orders", pa.table({"value": [b"aborted"] * 10}), partition=1)
        producer.abort()
        return rows(client, "orders")


def contents(records: list[dict[str, object]]) -> list[tuple[object, ...]]:
    return [
        (row["partition"], row["timestamp"], row["key"], row["value"], row["headers"])
        for row in records
    ]


def cluster_id(client: Client) -> str:
    return client.metadata(()).cluster_id or ""


def test_records_and_settings_arrive_once(
    tmp_path: Path, source: Broker, target: Broker, written: list[dict[str, object]]
) -> None:
    file = mirror_file(tmp_path, "dr", source, target)
    assert mirror(file).records == len(written) == 2_000
    assert mirror(file).records == 0
    with source.client() as left, target.client() as right:
        origin = {"key": ORIGIN, "value": cluster_id(left).encode()}
        expected = [{**row, "headers": [*row["headers"], origin]} for row in written]  # type: ignore[misc]
        assert contents(rows(right, "orders")) == contents(expected)
        settings = {entry.name: entry.value for entry in right.describe_configs("topic", "orders")}
        assert settings["retention.ms"] == "86400000"


def test_prefixed_topics_keep_records_unchanged(
    tmp_path: Path, source: Broker, target: Broker, written: list[dict[str, object]]
) -> None:
    keys = ('alias = "a"', 'alias = "b"')
    mirror(mirror_file(tmp_path, "forth", source, target, "prefix", *keys))
    mirror(mirror_file(tmp_path, "back", target, source, "prefix", *reversed(keys)))
    with source.client() as left, target.client() as right:
        assert contents(rows(right, "a.orders")) == contents(written)
        assert "a.orders" not in {topic.name for topic in left.list_topics()}
        assert "b.a.orders" not in {topic.name for topic in left.list_topics()}


def test_settings_and_partitions_follow(tmp_path: Path, source: Broker, target: Broker) -> None:
    with source.client() as left, target.client() as right:
        left.create_topic("b.orders", 1, exist_ok=True)
        file = mirror_file(tmp_path, "following", source, target)
        mirror(file)
        left.create_partitions("b.orders", 2)
        left.alter_configs("topic", "b.orders", {"cleanup.policy": "compact"})
        left.write_arrow("b.orders", pa.table({"key": [b"k"], "value": [b"new"]}), partition=1)
        mirror(file)
        assert [row["value"] for row in rows(right, "b.orders")] == [b"new"]
        settings = {e.name: e.value for e in right.describe_configs("topic", "b.orders")}
        assert settings["cleanup.policy"] == "compact"


def test_a_linked_topic_is_mirrored_without_its_link(
    tmp_path: Path, source: Broker, target: Broker
) -> None:
    file = mirror_file(tmp_path, "links", source, target)
    file.write_text(file.read_text().replace('"b[.]orders"', '"linked"'))
    with source.client() as left, target.client() as right:
        left.create_topic("linked", 1, {"link.source": "127.0.0.1:1"})
        mirror(file)
        right.write_arrow("linked", pa.table({"value": [b"accepted"]}))
        assert [row["value"] for row in rows(right, "linked")] == [b"accepted"]


def test_groups_are_at_most_one_batch_behind(
    tmp_path: Path, source: Broker, target: Broker, written: list[dict[str, object]]
) -> None:
    del written
    with source.client() as left, target.client() as right:
        ends = left.list_offsets("orders")
        left.commit_offsets("g", {("orders", 0): 100, ("orders", 1): ends[1], ("orders", 2): 0})
        mirror(mirror_file(tmp_path, "groups", source, target))
        there = {place[1]: entry.offset for place, entry in right.committed("g").items()}
        wanted = {row["value"] for row in rows(left, "orders")
                  if row["partition"] != 0 or row["offset"] < 100}  # fmt: skip
        mirrored = rows(right, "orders")
        before = [row for row in mirrored if row["offset"] < there[row["partition"]]]
        assert {row["value"] for row in before} <= wanted
        assert sum(row["partition"] == 1 for row in before) == sum(
            row["partition"] == 1 for row in mirrored
        )
        key, value = right.read_arrow(
            "source.checkpoints.internal", columns=("key", "value")
        ).to_pylist()[0].values()  # fmt: skip
        assert key == b"\0\x01g\0\x06orders" + bytes(4)
        assert value == struct.pack(">hqq", 0, 100, there[0]) + bytes(2)


def test_groups_are_not_ahead_of_local_records_of_the_target(
    tmp_path: Path, source: Broker, target: Broker, written: list[dict[str, object]]
) -> None:
    """Records of the target that no mirror has copied to the source yet are not skipped."""
    del written
    file = mirror_file(tmp_path, "local", source, target)
    with source.client() as left, target.client() as right:
        right.create_topic("orders", 3)
        right.write_arrow("orders", pa.table({"value": [b"local"]}), partition=1)
        ends = left.list_offsets("orders")
        left.commit_offsets("g", {("orders", p): end for p, end in ends.items()})
        mirror(file)
        offsets = right.list_offsets("orders")
        group = {place[1]: entry.offset for place, entry in right.committed("g").items()}
        assert group == {0: offsets[0] - 1, 1: 0, 2: offsets[2] - 1}  # a marker is at the end
        right.write_arrow("orders", pa.table({"value": [b"local"]}), partition=2)
        left.write_arrow("orders", pa.table({"value": [b"v"] * 3}), partition=2)
        left.commit_offsets("g", {("orders", 2): left.list_offsets("orders")[2]})
        mirror(file)
        assert right.committed("g")["orders", 2].offset == offsets[2]
        right.delete_records("orders", {2: offsets[2] + 1, 1: 1})
        left.write_arrow("orders", pa.table({"value": [b"v"] * 3}), partition=2)
        left.commit_offsets("g", {("orders", 2): left.list_offsets("orders")[2]})
        mirror(file)
        assert right.committed("g")["orders", 2].offset == right.list_offsets("orders")[2] - 1


def test_groups_are_not_set_back(
    tmp_path: Path, source: Broker, target: Broker, written: list[dict[str, object]]
) -> None:
    del written
    with source.client() as left, target.client() as right:
        left.commit_offsets("g", {("orders", 1): left.list_offsets("orders")[1]})
        file = mirror_file(tmp_path, "ahead", source, target)
        mirror(file)
        end = right.list_offsets("orders")[1]
        right.commit_offsets("g", {("orders", 1): end})
        mirror(file)
        assert right.committed("g")["orders", 1].offset == end


def test_groups_with_members_are_left_alone(
    tmp_path: Path, source: Broker, target: Broker, written: list[dict[str, object]]
) -> None:
    del written
    target.create_topic("orders", 3)
    options = {"group.id": "g", "enable.auto.commit": False, "bootstrap.servers": target.bootstrap}
    consumer = Consumer(options)
    try:
        consumer.subscribe(["orders"])
        wait_for(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()))
        with source.client() as left, target.client() as right:
            left.commit_offsets("g", {("orders", 1): left.list_offsets("orders")[1]})
            status = mirror(mirror_file(tmp_path, "members", source, target))
            assert status.facts["active_groups"] == ["g"]
            assert ("orders", 1) not in right.committed("g")
    finally:
        consumer.close()


def test_checkpoints_that_were_not_written_are_written_later(
    tmp_path: Path, source: Broker, target: Broker, written: list[dict[str, object]]
) -> None:
    del written
    spec = load(mirror_file(tmp_path, "later", source, target))
    mirror(spec.document.file)
    with source.client() as left, target.client() as right:
        clusters, pairs = clusters_of(left, right), Syncs()
        pairs.load(right, spec.syncs_topic)
        before = len(checkpoints(right))
        left.commit_offsets("g", {("orders", 2): 1})
        groups = Groups(spec, left, right, clusters, pairs, None)
        name = spec.checkpoints_topic
        right.alter_configs("topic", name, {"max.message.bytes": "1"})
        with pytest.raises(PenstockError):
            groups.transfer()
        right.alter_configs("topic", name, {}, delete=["max.message.bytes"])
        groups.transfer()
        assert len(checkpoints(right)) > before
        after = len(checkpoints(right))
        groups.transfer()
        assert len(checkpoints(right)) == after


def checkpoints(client: Client) -> list[dict[str, object]]:
    found: list[dict[str, object]] = client.read_arrow(
        "source.checkpoints.internal", columns=("key", "value")
    ).to_pylist()
    return found


def test_pairs_of_several_topics_are_loaded(target: Broker) -> None:
    place, pairs = ("orders", 0), Syncs()
    with target.client() as client:
        for topic, ups in (("first", (10, 20, 30)), ("second", (40,))):
            client.create_topic(topic, 1)
            found = [(place, Pair(up, up)) for up in ups]
            client.write_arrow(topic, rows_of(found))
            pairs.load(client, topic)
    assert pairs.downstream(place, 50) == 40


def test_positions_have_more_records_than_positions(
    target: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "POSITIONS_MAX", 2)
    with target.client() as client:
        assert positions.existing(client, "mirror.dr") == {}
        assert positions.load(client, "mirror.dr", -1) == {}
        topic = positions.positions_topic("mirror.dr")
        for offset in range(5):
            client.write_arrow(topic, positions.rows_of({"at/orders/0": offset}))
        assert positions.existing(client, "mirror.dr") == {"at/orders/0": 4}
        client.write_arrow(topic, positions.rows_of({"at/orders/1": 0, "at/orders/2": 0}))
        with pytest.raises(CorruptError, match="more than 2 positions"):
            positions.load(client, "mirror.dr", -1)


def test_a_plan_lists_what_a_run_changes(
    tmp_path: Path, source: Broker, target: Broker, written: list[dict[str, object]]
) -> None:
    del written
    file = mirror_file(tmp_path, "planned", source, target)
    with source.client() as left:
        left.set_password("erin", "the password of erin")
    plan = run_command("plan", file, 0)
    assert "create topic orders with 3 partitions" in plan
    assert "user erin has no password in the target" in plan
    mirror(file)
    with target.client() as right:
        right.alter_configs("topic", "orders", {"retention.ms": "3600000"})
        assert "retention.ms" not in run_command("plan", file, 0)
        mirror(file)
        settings = {e.name: e.value for e in right.describe_configs("topic", "orders")}
        assert settings["retention.ms"] == "3600000"
    assert "no problems" in run_command("validate", file, 0)
    assert "STOPPED" in run_command("status", file, 0)
    with Broker() as other:
        file = mirror_file(tmp_path, "planned", other, target)
        assert "another name" in run_command("validate", file, 1)


def test_the_guide_lists_every_key() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/mirroring.md").read_text()
    table = guide.partition("## Keys of the file")[2]
    listed = set(re.findall(r"`((?:source|target|mirror)[.][a-z_]+)`", table))
    sections = {"source": SourceOptions, "target": TargetOptions, "mirror": MirrorOptions}
    assert listed == {f"{name}.{key}" for name, cls in sections.items() for key in by_name(cls)}


def test_a_cluster_is_not_mirrored_into_itself(tmp_path: Path, source: Broker) -> None:
    with pytest.raises(MirrorRefused, match="same cluster"):
        mirror(mirror_file(tmp_path, "loop", source, source))


def test_other_clusters_need_another_name(
    tmp_path: Path, source: Broker, target: Broker, written: list[dict[str, object]]
) -> None:
    del written
    mirror(mirror_file(tmp_path, "dr", source, target))
    with Broker() as other, pytest.raises(MirrorRefused, match="another name"):
        mirror(mirror_file(tmp_path, "dr", other, target))


def test_stopped_partitions_are_named(tmp_path: Path, target: Broker) -> None:
    with Broker(process=True) as source:
        source.create_topic("orders", 2)
        spec = load(mirror_file(tmp_path, "stopping", source, target))
        status, stop = StatusFile(spec.name, "mirror", spec.state), Stop()
        with Watch(spec, status) as watch:
            running = threading.Thread(
                target=run, args=(MirrorRun(spec=spec, watch=watch, stop=stop),)
            )
            running.start()
            wait_for(lambda: status.status.state == "RUNNING")
            source.kill()
            wait_for(lambda: "orders-1" in str(cause(spec.state)))
            source.start()
            wait_for(lambda: status.status.state == "RUNNING")
            stop.set()
            running.join()
        assert status.status.state == "STOPPED"


def cause(state: Path) -> str | None:
    found = read_status(state)
    return None if found is None else found.cause
