"""Exactly-once sink: appends staged blobs of a query's batch to the log once."""

from penstock.broker.batch_commits.context import SinkContext
from penstock.broker.batch_commits.service import Committed, SinkService

__all__ = ["Committed", "SinkContext", "SinkService"]
