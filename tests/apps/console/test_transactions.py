"""Pages of transactions and queues, compared with what clients and commands return."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException, Producer

from penstock.client import Client
from penstock.testing import Broker
from tests.apps.conftest import Run
from tests.apps.console.example import HOSTILE
from tests.apps.console.visitor import Visitor, guarded_broker
from tests.apps.test_queues import CONFIGS, ENABLE, take, until
from tests.security.access import allow


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with guarded_broker(tmp_path_factory.mktemp("transactions")) as broker:
        broker.create_topic("paid", 2)
        yield broker


@pytest.fixture(scope="module")
def visitor(guarded: Broker) -> Visitor:
    return Visitor(guarded.admin_url)


@pytest.fixture
def client(guarded: Broker) -> Iterator[Client]:
    with guarded.client() as client:
        yield client


def open_transaction(broker: Broker, name: str) -> Producer:
    """Return confluent-kafka's producer with an open transaction in partition 1 of `paid`."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("paid", b"x", partition=1)
    producer.flush(30)
    return producer


def test_an_open_transaction_is_shown_and_aborted(
    guarded: Broker, visitor: Visitor, client: Client
) -> None:
    producer = open_transaction(guarded, "shop/till")
    described = client.describe_transaction("shop/till")
    listed = visitor.get("/console/transactions?state=Ongoing&q=till")
    assert f"shop/till Ongoing {described.producer_id} 1" in listed.words
    page = visitor.get("/console/transactions/shop%2Ftill")
    assert "State Ongoing" in page.words
    assert f"Producer epoch {described.producer_epoch} Timeout 1 min" in page.words
    assert "paid partition 1" in page.words
    abort = "/console/transaction-abort/shop%2Ftill"
    assert "its records in 1 partition become invisible" in visitor.get(abort).words
    assert "type 'shop/till' to confirm" in visitor.post(abort, {"confirm": "till"}).message
    done = visitor.post(abort, {"confirm": "shop/till"})
    assert done.message == "The transaction of shop/till was aborted, and its producer is fenced."
    assert client.describe_transaction("shop/till").producer_epoch > described.producer_epoch
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)
    assert client.read_arrow("paid", isolation="read_committed").num_rows == 0
    assert "There is no open transaction" in visitor.get(abort).words
    assert visitor.get("/console/transactions/missing").status == 404


def test_transactions_need_permissions(guarded: Broker, client: Client) -> None:
    producer = open_transaction(guarded, "mine")
    open_transaction(guarded, "theirs").abort_transaction(30)
    alice = Visitor(guarded.admin_url, "alice")
    client.create_acls([allow("describe", "transactional_id", "mine", "alice")])
    listed = alice.get("/console/transactions").words
    assert "mine Ongoing" in listed
    assert "theirs" not in listed
    assert alice.get("/console/transactions/theirs").status == 403
    page = alice.get("/console/transactions/mine")
    assert "None that you may see." in page.words
    assert "Abort" not in page.words
    assert alice.get("/console/transaction-abort/mine").status == 403
    producer.commit_transaction(30)


def test_a_queue_with_its_records_by_state_and_its_dead_letters(
    guarded: Broker, visitor: Visitor, client: Client, bare: Run
) -> None:
    client.create_topic("work", partitions=2)
    client.create_topic("dlq.work", partitions=2, configs={ENABLE: "true"})
    client.alter_configs("group", "g/1", CONFIGS)
    client.write_arrow("work", pa.table({"value": [b"a", b"b", b"c", b"d"]}), partition=1)
    with client.queue("g/1", "work") as queue:
        taken = take(queue)
        taken.reject([0, 2])
        until(client, "dlq.work", 2)
        client.write_arrow("work", pa.table({"value": [b"e"]}), partition=0)
        words = ("-b", guarded.bootstrap, "queue", "describe", "g/1", "--output", "json")
        printed = json.loads(bare(*words).out)
        page = visitor.get("/console/queues/g%2F1")
        figures = f"Available {printed['available']} Acquired {printed['acquired']} Archiving 0"
        assert figures in page.words
        assert (printed["available"], printed["acquired"], printed["dead_letters"]) == (1, 2, 2)
        assert "Dead letters not redriven 2" in page.words
        assert "work 1 1 4 0 2 0" in page.words
        assert "penstock queue redrive --dry-run -- g/1" in page.words
        listed = visitor.get("/console/queues").words
        assert "g/1 Stable 1 5 dlq.work" in listed
        taken.ack()
    assert bare("-b", guarded.bootstrap, "queue", "redrive", "--", "g/1").status == 0
    after = visitor.get("/console/queues/g%2F1").words
    assert "Dead letters not redriven 0" in after
    assert "penstock queue redrive" not in after


def test_queues_need_permissions(guarded: Broker, client: Client) -> None:
    bob = Visitor(guarded.admin_url, "bob")
    assert bob.get("/console/queues/g%2F1").status == 403
    client.create_acls([allow("describe", "group", "g/1", "bob")])
    page = bob.get("/console/queues/g%2F1")
    assert "none that you may see" in page.words
    assert "The queue has no state yet" in page.words
    assert "g/1" in bob.get("/console/queues").words


def test_hostile_names_are_text(guarded: Broker, visitor: Visitor) -> None:
    open_transaction(guarded, HOSTILE).abort_transaction(30)
    page = visitor.get("/console/transactions?q=onerror")
    assert HOSTILE in page.words
    assert "<img" not in page.text
