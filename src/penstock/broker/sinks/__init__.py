"""The exactly-once sink: staged blobs become records of the log, once."""

from penstock.broker.sinks.service import Committed, SinkService

__all__ = ["Committed", "SinkService"]
