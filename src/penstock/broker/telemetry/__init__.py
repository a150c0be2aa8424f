"""Metrics that clients push to the broker (KIP-714), as Kafka's `ClientMetricsManager`."""

from __future__ import annotations
