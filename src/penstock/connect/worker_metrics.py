"""Metrics of a worker's connectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.base.metrics import Metrics, Sample, counter, gauge, gauges
from penstock.connect.status import STATES

if TYPE_CHECKING:
    from penstock.connect.worker import Worker

RETAINED: Final = "slot_retained_bytes"
"""Fact of a source that reads a replication slot."""


class ConnectorMetrics(Metrics, prefix="penstock_connect_", labels=("connector", "direction")):
    records = counter("records_total", "Rows that were committed since the process started.")
    batches = counter("batches_total", "Batches that were committed since the process started.")
    dead_letters = counter("dead_letters_total", "Rows that were written to the dead-letter topic.")
    skipped = counter("skipped_total", "Rows that cannot be processed and were skipped.")
    retries = counter("retries_total", "Attempts that failed and were followed by another one.")
    restarts = counter("restarts_total", "Processes that were started after the first one.")
    last_commit_age_seconds: float | None = gauge(
        "last_commit_age_seconds", "Time since the last committed batch."
    )
    slot_retained_bytes: int | None = gauge(
        "slot_retained_bytes", "Size of the log that the replication slot of a source retains."
    )
    state: dict[str, int] = gauges(
        "state", "1 for the current state of the connector, 0 for the others.", "state"
    )


def samples(worker: Worker, now_ms: int) -> Iterator[Sample]:
    """Yield the metrics of all connectors that run on this worker or are assigned to it."""
    for name in sorted(worker.entries):
        found, metrics = worker.status(name), ConnectorMetrics()
        metrics.records, metrics.batches = found.records, found.batches
        metrics.dead_letters, metrics.skipped = found.dead_letters, found.skipped
        metrics.retries = found.retries
        metrics.restarts = max(0, worker.entries[name].starts - 1)
        metrics.last_commit_age_seconds = found.commit_age_seconds(now_ms)
        retained = found.facts.get(RETAINED)
        metrics.slot_retained_bytes = retained if isinstance(retained, int) else None
        metrics.state = {state: state == found.state for state in STATES}
        yield from metrics.samples(name, found.direction)
