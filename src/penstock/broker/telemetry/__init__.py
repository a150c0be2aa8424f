"""Metrics that clients push to the broker (KIP-714), as in Kafka's `ClientMetricsManager`."""

from __future__ import annotations
