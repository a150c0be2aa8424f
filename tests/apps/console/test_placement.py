"""Pages of replicas and of a topic's storage, on three brokers, compared with clients."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from html import unescape
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.apps.console.forms import Form, InvalidField
from penstock.apps.console.pages.reassigning import read_ids
from penstock.apps.console.pages.storage import Switches
from penstock.client import Client
from penstock.testing import Broker
from tests.apps.conftest import Run
from tests.apps.console.visitor import Visitor, guarded_broker
from tests.apps.test_host import until
from tests.postgres import PostgresServer
from tests.security.access import allow

pytestmark = pytest.mark.timeout(120)
ROWS = 40
PREFERRED: Mapping[tuple[str, int], tuple[int, ...]] = {
    ("all", 0): (1, 2, 3),
    ("pair", 0): (1, 2),
    ("pair", 1): (2, 1),
    ("single", 0): (1,),
    ("moved", 0): (1,),
    ("moved", 1): (3,),
}
"""Replicas of the cluster's topics; the first of each leads."""


class Brokers:
    """Three brokers. The third runs in a process, which can be suspended."""

    def __init__(self, brokers: list[Broker], client: Client) -> None:
        self.first, _, self.third = brokers
        self.client = client
        self.visitor = Visitor(self.first.admin_url)

    @contextmanager
    def third_suspended(self) -> Iterator[None]:
        """Suspend the third broker, which stays registered."""
        assert self.third.pid is not None
        os.kill(self.third.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.third.pid, signal.SIGCONT)

    def replicas(self, topic: str) -> list[tuple[int, ...]]:
        partitions = self.client.metadata([topic]).topics[topic].partitions
        return [partition.replicas for partition in partitions]

    def adding(self, topic: str) -> tuple[int, ...]:
        """Return the brokers that copy the topic's first partition, as the first broker knows."""
        assert self.first.server is not None
        return self.first.server.cluster.image.topics[topic].partitions[0].adding

    def write(self, topic: str) -> None:
        self.client.write_arrow(topic, pa.table({"value": [b"x" * 100] * ROWS}), partition=0)


@pytest.fixture(scope="module")
def cluster(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Brokers]:
    shared = {
        "control.url": postgres.schema(),
        "diskless.storage.url": tmp_path_factory.mktemp("objects").as_uri(),
        "replication.listener": "127.0.0.1:0",
        "broker.session.timeout.ms": 60_000,
    }
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(Broker({**shared, "node.id": node}, process=node == 3))
            for node in (1, 2, 3)
        ]
        client = stack.enter_context(brokers[0].client())
        until(lambda: len(client.metadata([]).nodes) == 3)
        made = Brokers(brokers, client)
        for name in dict.fromkeys(name for name, _ in PREFERRED):
            rows = [replicas for place, replicas in PREFERRED.items() if place[0] == name]
            create(brokers[0], name, rows)
            made.write(name)
        yield made


def create(broker: Broker, name: str, replicas: list[tuple[int, ...]]) -> None:
    """Create a topic with these replicas of its partitions."""
    topic = NewTopic(name, len(replicas), replica_assignment=[list(row) for row in replicas])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([topic])[name].result(30)


def test_a_reassignment_is_previewed_ordered_shown_and_cancelled(cluster: Brokers) -> None:
    visitor, client = cluster.visitor, cluster.client
    path = "/console/topics/single/reassign"
    preview = f"{path}?preview=yes&partitions=0&replicas=1,3"
    page = visitor.get(preview)
    size = client.partition_sizes()["single", 0] / 1024
    assert f"single 0 1 1, 3 {size:.1f} KiB adds 3" in page.words
    assert f"1 partition moves. Copied between brokers: {size:.1f} KiB." in page.words
    fields = {"partitions": "0", "replicas": "1,3", "confirm": "single"}
    with cluster.third_suspended():
        wrong = {**fields, "confirm": "all", "preview": "yes"}
        refused = visitor.post(path, wrong, page=preview)
        assert refused.status == 400
        assert refused.message == "type 'single' to confirm; the field has 'all'"
        assert "1 partition moves" in refused.words
        assert cluster.adding("single") == ()
        done = visitor.post(path, fields, page=preview)
        assert done.message == "1 partition of single ordered to move."
        assert cluster.adding("single") == (3,)
        assert "Reassignments in progress" in visitor.get("/console/topics/single").words
        assert "single Cancel 0 1 1 3 – " in visitor.get("/console/reassignments").words
        assert "single 0 1 copying" in visitor.get("/console/brokers/3/replicas?q=single").words
        cancel = f"{path}-cancel"
        assert "1 partition keeps its present replicas" in visitor.get(cancel).words
        assert visitor.post(cancel, {}).message == "1 reassignment of single cancelled."
        assert cluster.adding("single") == ()
        assert "No reassignment of this topic is in progress" in visitor.get(cancel).words
    until(lambda: client.reassignments() == {})
    assert cluster.replicas("single") == [(1,)]


def test_a_form_of_a_reassignment_names_wrong_values(cluster: Brokers) -> None:
    path = "/console/topics/pair/reassign?preview=yes"
    for query, message in (
        ("partitions=2", "Partitions '2': '2' must be a number of at most 1"),
        ("brokers=1,9", "Brokers: broker 9 is not registered"),
        ("factor=many", "Replicas 'many' must be a whole number"),
    ):
        page = cluster.visitor.get(f"{path}&{query}")
        assert page.status == 400
        assert message in page.message
    page = cluster.visitor.get(f"{path}&factor=4")
    assert "Not possible: pair-0 cannot have 4 replicas: 3 brokers may get replicas" in page.words
    assert "to confirm" not in page.words
    link = re.search(r'href="(/console/topics/pair/reassign\?[^"]*sort=[^"]*)"', page.text)
    assert link is not None
    assert "Not possible: pair-1" in cluster.visitor.get(unescape(link[1])).words
    assert "broker 9 is not registered" in cluster.visitor.get(f"{path}&replicas=9").words
    assert "they have these replicas already" not in page.words
    assert "Nothing:" in cluster.visitor.get(path).words


def test_replicas_behind_are_counted_by_their_leader(cluster: Brokers) -> None:
    path = "/console/brokers/3/replicas?q=all"
    until(lambda: "all 0 1 follower 0 in sync" in cluster.visitor.get(path).words)
    with cluster.third_suspended():
        cluster.write("all")
        assert f"all 0 1 follower {ROWS} in sync" in cluster.visitor.get(path).words
    until(lambda: "all 0 1 follower 0 in sync" in cluster.visitor.get(path).words)


def test_a_broker_is_drained_as_the_command_plans_it(cluster: Brokers, bare: Run) -> None:
    visitor, client = cluster.visitor, cluster.client
    client.delete_topic("all")  # cannot move, so the command rejects the drain as a whole
    words = ("-b", cluster.first.bootstrap, "broker", "drain", "2", "--dry-run", "--output", "json")
    # Some brokers learn later that the topic is deleted.
    outcomes = iter(lambda: bare(*words), None)
    planned = next(json.loads(ran.out) for ran in outcomes if ran.status == 0)
    create(cluster.first, "all", [(1, 2, 3)])
    drain = "/console/brokers/2/drain"
    page = visitor.get(drain)
    assert len(planned) == 2
    for move in planned:
        replicas = ", ".join(map(str, move["replicas"]))
        assert f"{move['topic']} {move['partition']} " in page.words
        assert f" {replicas} " in page.words
    assert "1 partition cannot move, and stays where it is" in page.words
    assert "type '2' to confirm" in visitor.post(drain, {"confirm": "3"}).message
    assert client.excluded_brokers() == frozenset()
    done = visitor.post(drain, {"confirm": "2"})
    assert done.message.startswith("Broker 2: 2 replicas ordered to move away. 1 partition cannot")
    until(lambda: client.excluded_brokers() == {2})
    until(lambda: not client.reassignments())
    until(
        lambda: all(
            cluster.replicas(move["topic"])[move["partition"]] == tuple(move["replicas"])
            for move in planned
        )
    )
    assert "reachable no new replicas" in visitor.get("/console/brokers/2").words
    undo = "/console/brokers/2/undrain"
    assert "No replica is moving away" in visitor.get(undo).words
    assert visitor.post(undo, {}).message == "Broker 2 may get new replicas."
    until(lambda: client.excluded_brokers() == frozenset())
    assert "Broker 2 is not drained" in visitor.get(undo).words
    assert visitor.get("/console/brokers/9/drain").status == 404


def test_a_topic_is_switched_to_the_object_store_and_back_with_progress(cluster: Brokers) -> None:
    visitor, client = cluster.visitor, cluster.client
    path, before = "/console/topics/moved/storage", client.read_arrow("moved").num_rows
    until(lambda: "Copied to the object store" in visitor.get(path).words)
    fields = {"to": "diskless", "confirm": "moved"}
    assert visitor.post(path, {**fields, "to": "disks"}).status == 400
    assert visitor.post(path, {**fields, "confirm": "pair"}).status == 400
    with cluster.third_suspended():  # which leads a partition, so the others wait for it
        done = visitor.post(path, fields, page="/console/topics/pair/storage")
        assert done.message == "The switch of topic moved has started."
        page = visitor.get(path)
        assert "The topic moves to the object store State of broker 1" in page.words
        assert "to confirm" not in page.words
    until(lambda: "Storage diskless" in visitor.get(path).words)
    assert client.read_arrow("moved").num_rows == before
    page = visitor.get(path)
    assert "Replicas: partition 0 on broker 1; partition 1 on broker 3." in page.words
    visitor.post(path, {"to": "disks", "confirm": "moved"})
    until(lambda: "Copied to the object store" in visitor.get(path).words)
    until(lambda: cluster.replicas("moved") == [(1,), (3,)])
    assert client.read_arrow("moved").num_rows == before


def test_a_stopped_broker_is_shown_and_can_be_drained(cluster: Brokers) -> None:
    visitor = cluster.visitor
    cluster.third.stop()
    gone = re.compile(r"3 – – – \d+ ([1-9]\d*) \1 not registered")  # all replicas out of sync
    until(lambda: gone.search(visitor.get("/console/brokers").words))
    assert "Start it, or drain it" in visitor.get("/console/brokers/3").words
    behind = visitor.get("/console/brokers/3/replicas?show=behind").words
    assert "all 0 1 follower – out of sync" in behind
    plan = visitor.get("/console/brokers/3/drain").words
    assert "moved 1 3 1 – adds 1; removes 3" in plan or "moved 1 3 2 – adds 2; removes 3" in plan
    assert "1 partition cannot move" in plan


async def test_the_reason_of_a_late_failure_is_kept() -> None:
    switches, topic_id = Switches(shown_seconds=0.0), uuid4()
    fails = asyncio.Event()

    async def switch() -> None:
        await fails.wait()
        raise InvalidField("the disk is full")

    assert not await switches.start(topic_id, "disks", switch())
    assert switches.is_running(topic_id, "disks")
    assert switches.failure(topic_id, "disks") == ""
    fails.set()
    async with asyncio.timeout(10):
        while switches.is_running(topic_id, "disks"):
            await asyncio.sleep(0)
    assert switches.failure(topic_id, "disks") == "the disk is full"
    assert switches.failure(topic_id, "diskless") == ""
    await switches.start(topic_id, "disks", asyncio.sleep(0))
    assert switches.failure(topic_id, "disks") == ""


def test_acts_need_their_permissions(tmp_path_factory: pytest.TempPathFactory) -> None:
    with guarded_broker(tmp_path_factory.mktemp("placement")) as broker:
        with broker.client() as client:
            client.create_topic("orders", 1)
            client.create_topic("hidden", 1)
            acls = [("describe", "cluster", "kafka-cluster"), ("describe", "topic", "orders")]
            client.create_acls([allow(*acl, "alice") for acl in acls])
            client.create_acls([allow("alter", "cluster", "kafka-cluster", "bob")])
        alice, bob = (Visitor(broker.admin_url, user) for user in ("alice", "bob"))
        for path in (
            "/console/brokers/1/drain",
            "/console/brokers/1/undrain",
            "/console/topics/orders/reassign",
            "/console/topics/orders/reassign-cancel",
            "/console/topics/orders/storage",
        ):
            assert alice.get(path).status == 403, path
        held = alice.get("/console/brokers/1/replicas").words
        assert "orders 0 1 leader" in held
        assert "hidden" not in held
        topic = alice.get("/console/topics/orders").words
        assert "Reassign" not in topic
        assert "Switch storage" not in topic
        assert "Drain" not in alice.get("/console/brokers/1").words
        assert bob.get("/console/topics/orders/reassign").status == 403
        page = bob.get("/console/brokers/1/drain")
        assert "2 partitions of topics that you may not see are included" in page.words
        assert "orders" not in page.words
        refused = bob.post("/console/brokers/1/drain", {"confirm": "1"})
        assert refused.status == 403, "excluding a broker needs alter_configs"
        with broker.client() as client:
            assert client.excluded_brokers() == frozenset()


@pytest.mark.parametrize(
    ("text", "ids"), [("", []), ("3", [3]), ("2, 0-1", [2, 0, 1]), (" 1 - 2 ,", [1, 2])]
)
def test_lists_of_ids(text: str, ids: list[int]) -> None:
    assert read_ids(text, "Brokers", 9) == ids


@pytest.mark.parametrize("text", ["x", "-1", "3-1", "10", "1-", "1--2", "1 2"])
def test_wrong_lists_of_ids_are_refused(text: str) -> None:
    with pytest.raises(InvalidField, match="Brokers"):
        read_ids(text, "Brokers", 9)
    with pytest.raises(InvalidField, match="at most"):
        Form({"factor": [text]}).number("factor", "Replicas", 9)
