"""Handlers of Kafka's APIs: one module per group of APIs, imported at its first request."""
