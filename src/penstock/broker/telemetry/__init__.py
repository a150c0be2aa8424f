"""Metrics of clients, which push them to the broker (KIP-714).

`subscriptions.py` is what operators ask for, as config resources; `instances.py` decides which
pushes of which client are taken; `otlp.py` reads them; `series.py` keeps the newest values, which
the admin endpoint shows; `service.py` is what handlers ask.

Source: KIP-714; Kafka's `ClientMetricsManager`.
"""

from __future__ import annotations
