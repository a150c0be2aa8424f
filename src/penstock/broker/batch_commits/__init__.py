"""Exactly-once sink: appends the staged blobs of a Spark query's batch to the log once."""

from penstock.broker.batch_commits.commit import SinkContext
from penstock.broker.batch_commits.service import Committed, SinkService

__all__ = ["Committed", "SinkContext", "SinkService"]
