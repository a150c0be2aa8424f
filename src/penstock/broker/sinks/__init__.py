"""The exactly-once sink: staged blobs become records of the log, once."""

from penstock.broker.sinks.parts import SinkParts
from penstock.broker.sinks.service import Committed, SinkService

__all__ = ["Committed", "SinkParts", "SinkService"]
