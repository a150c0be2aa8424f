"""What tests of other projects need: a broker, or a host agent, in the test's own process.

    from penstock.testing import Broker

    with Broker() as broker, broker.client() as client:
        broker.create_topic("orders")
        client.write_arrow("orders", table)

    from penstock.testing import Agent

    with Broker() as broker, Agent(broker.bootstrap) as agent:
        broker.create_topic("orders")
        with agent.client(topics=["orders"]) as producer:
            producer.publish(b"{}", topic="orders").result()

As a fixture, in a `conftest.py`: `pytest_plugins = ["penstock.testing.fixtures"]`.
"""

from penstock.testing.agent import Agent
from penstock.testing.broker import Broker

__all__ = ["Agent", "Broker"]
