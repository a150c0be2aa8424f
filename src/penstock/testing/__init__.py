"""Broker and host agent for tests of other projects, inside the test's own process.

    with Broker() as broker, broker.client() as client:
        broker.create_topic("orders")
        client.write_arrow("orders", table)

    with Broker() as broker, Agent(broker.bootstrap) as agent:
        broker.create_topic("orders")
        with agent.client(topics=["orders"]) as producer:
            producer.publish(b"{}", topic="orders").result()

For pytest fixtures, put `pytest_plugins = ["penstock.testing.fixtures"]` into `conftest.py`.
"""

from penstock.testing.agent import Agent
from penstock.testing.broker import Broker

__all__ = ["Agent", "Broker"]
