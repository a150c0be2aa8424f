"""Fixtures of brokers for the tests of alerts."""

from tests.broker.conftest import start_broker
from tests.broker.lag.conftest import scene

__all__ = ["scene", "start_broker"]
