"""Penstock: a durable, Kafka-compatible event log for teams that work in Python and Spark."""

__version__ = "0.1.0"
