"""Page of pipelines, compared with the admin interface after a sink's commits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.request import urlopen

import pytest

from penstock.testing import Broker
from tests.apps.console.visitor import Visitor, guarded_broker
from tests.broker.batch_commits.sink_client import Part, client_of
from tests.security.access import allow


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run a broker to which the query `q/1` has committed a batch."""
    with guarded_broker(tmp_path_factory.mktemp("pipelines")) as broker:
        for topic in ("orders", "secrets"):
            broker.create_topic(topic, 2)
        sink = client_of(broker, "orders", "secrets")
        parts = [Part("orders", 0, ["a", "b"]), Part("secrets", 1, ["c"])]
        answer = sink.post("q/1", 0, [sink.stage("q-0", parts)])
        assert answer.status == 200, answer
        yield broker


def test_sinks_are_those_of_the_admin_interface(guarded: Broker) -> None:
    with urlopen(f"{guarded.admin_url}/v1/sinks") as response:
        [row] = json.load(response)
    page = Visitor(guarded.admin_url).get("/console/pipelines?q=q/1")
    assert f"q/1 {row['owner']}" in page.words
    assert f"orders , secrets 2 {row['batch']} {row['state']}" in page.words


def test_permissions_decide(guarded: Broker) -> None:
    alice = Visitor(guarded.admin_url, "alice")
    assert "q/1" not in alice.get("/console/pipelines").words
    with guarded.client() as client:
        client.create_acls(
            [
                allow("describe", "transactional_id", "q/1", "alice"),
                allow("describe", "topic", "orders", "alice"),
            ]
        )
    page = alice.get("/console/pipelines").words
    assert "q/1" in page
    assert "secrets" not in page
