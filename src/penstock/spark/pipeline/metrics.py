"""Metrics of a running pipeline; values are read from its queries' states at each scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, get_args

from penstock.base.metrics import Metrics, Sample, counter, counters, gauge, gauges
from penstock.spark.pipeline.progress import counts_of
from penstock.spark.pipeline.state import (
    BATCHES,
    BUSY_MS,
    DEAD_LETTERS,
    LATE,
    REJECTED,
    ROWS,
    SHREDDED,
    WARNED,
    WRITTEN,
    Phase,
    QueryState,
)

MILLISECONDS: Final = 1_000
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)


class QueryMetrics(Metrics, prefix="penstock_pipeline_", labels=("pipeline", "query")):
    dead_letters = counter("dead_letters_total", "Records written to the dead-letter topic.")
    rows = counter("rows_total", "Rows read from the query's sources.")
    late = counter("late_total", "Rows behind the watermark, which a stateful step dropped.")
    shredded = counter(
        "shredded_total",
        "Encrypted values that were read as null, because their subject's key was deleted.",
    )
    batches = counter("batches_total", "Batches finished.")
    batch_seconds: float = counter("batch_seconds_total", "Total time of finished batches.")
    last_batch_seconds: float = gauge("last_batch_seconds", "Time that the last batch took.")
    last_batch_rows = gauge("last_batch_rows", "Rows that the last batch read.")
    rows_per_second: float = gauge(
        "rows_per_second",
        "Rows per second of the last batch; 0 when idle; of all batches after the query ended.",
    )
    state_rows = gauge("state_rows", "Rows in the state store.")
    state_bytes = gauge("state_bytes", "Memory that the state store uses.")
    held = gauge("held_records", "Held records: parked, or waiting for a retry.")
    restarts = counter("restarts_total", "Restarts of the query.")
    lag_records: int | None = gauge(
        "lag_records", "Records that the last batch left for later when it was planned."
    )
    phase: dict[str, int] = gauges(
        "phase", "1 for the current phase of the query, 0 for the others.", "phase"
    )
    rejected: dict[str, int] = counters(
        "rejected_total", "Rows that a rule rejected or that could not be decoded.", "reason"
    )
    warned: dict[str, int] = counters(
        "warned_total", "Rows that broke a rule whose action is `warn`.", "rule"
    )
    written: dict[str, int] = counters("written_total", "Rows written to a sink.", "sink")


def samples(pipeline: str, states: Iterable[QueryState]) -> Iterator[Sample]:
    for state in states:
        metrics, counts = QueryMetrics(), state.counts
        metrics.dead_letters = counts.get(DEAD_LETTERS, 0)
        metrics.rows = counts.get(ROWS, 0)
        metrics.late = counts.get(LATE, 0)
        metrics.shredded = counts.get(SHREDDED, 0)
        metrics.batches = counts.get(BATCHES, 0)
        metrics.batch_seconds = counts.get(BUSY_MS, 0) / MILLISECONDS
        metrics.last_batch_seconds = state.batch_ms / MILLISECONDS
        metrics.last_batch_rows = state.batch_rows
        metrics.rows_per_second = state.rows_per_second
        metrics.state_rows = state.state_rows
        metrics.state_bytes = state.state_bytes
        metrics.held = state.held
        metrics.restarts = state.restarts
        metrics.lag_records = state.lag_records
        metrics.phase = {phase: phase == state.phase for phase in PHASES}
        metrics.rejected = counts_of(state, REJECTED)
        metrics.warned = counts_of(state, WARNED)
        metrics.written = counts_of(state, WRITTEN)
        yield from metrics.samples(pipeline, state.query)
