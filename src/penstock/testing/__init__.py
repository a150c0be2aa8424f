"""What tests of other projects need: a broker in the test's own process.

    from penstock.testing import Broker

    with Broker() as broker, broker.client() as client:
        broker.create_topic("orders")
        client.write_arrow("orders", table)

As a fixture, in a `conftest.py`: `pytest_plugins = ["penstock.testing.fixtures"]`.
"""

from penstock.testing.broker import Broker

__all__ = ["Broker"]
