"""The agent for tests."""

from __future__ import annotations

import pytest
import requests

from penstock.base.errors import PenstockError
from penstock.testing import Agent, Broker

WAIT_SECONDS = 60


def test_chunks_reach_the_log_of_a_broker() -> None:
    with Broker() as broker, Agent(broker.bootstrap) as agent:
        broker.create_topic("orders", partitions=2)
        with agent.client(topics=["orders"]) as producer:
            producer.publish(b"one", topic="orders", partition=1).result(WAIT_SECONDS)
        with broker.client() as client:
            table = client.read_arrow("orders")
    assert table.select(["partition", "offset", "value"]).to_pylist() == [
        {"partition": 1, "offset": 0, "value": b"one"}
    ]


def test_an_agent_of_its_own_keeps_chunks_in_memory_and_starts_again() -> None:
    with Agent(http=True) as agent:
        assert requests.get(f"{agent.http_url}/readyz", timeout=WAIT_SECONDS).status_code == 200
        with agent.client() as producer:
            producer.send(b"before", timeout=WAIT_SECONDS)
            agent.stop()
            assert not agent.socket.exists()
            agent.start()
            producer.send(b"after", timeout=WAIT_SECONDS)
    assert not agent.directory.exists()


def test_an_agent_that_cannot_start_says_why_and_leaves_nothing() -> None:
    agent = Agent(settings={"host.sink": "nowhere"})
    with pytest.raises(PenstockError, match=r"host\.sink"), agent:
        pass
    assert not agent.directory.exists()
