"""Metrics of a running pipeline; values are read from its queries' states at each scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, get_args

from penstock.base.metrics import Metric, Sample
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

LABELS: Final = ("pipeline", "query")
MILLISECONDS: Final = 1_000
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)


def _counter(name: str, doc: str, *more: str) -> Metric:
    labels = (*LABELS, *more)
    return Metric(name=f"penstock_pipeline_{name}", kind="counter", doc=doc, labels=labels)


def _gauge(name: str, doc: str, *more: str) -> Metric:
    labels = (*LABELS, *more)
    return Metric(name=f"penstock_pipeline_{name}", kind="gauge", doc=doc, labels=labels)


PHASE: Final = _gauge("phase", "1 for the phase that the query is in, 0 for the others.", "phase")
ROWS_READ: Final = _counter("rows_total", "Rows read from the query's sources.")
ROWS_REJECTED: Final = _counter(
    "rejected_total", "Rows that a rule rejected or that could not be decoded.", "reason"
)
ROWS_WARNED: Final = _counter("warned_total", "Rows that broke a rule with `warn`.", "rule")
ROWS_DEAD: Final = _counter("dead_letters_total", "Records written to the dead-letter topic.")
ROWS_LATE: Final = _counter("late_total", "Rows behind the watermark, dropped by a stateful step.")
VALUES_SHREDDED: Final = _counter(
    "shredded_total", "Encrypted values that were read as null, as their subject's key is deleted."
)
ROWS_WRITTEN: Final = _counter("written_total", "Rows written to a sink.", "sink")
BATCH_COUNT: Final = _counter("batches_total", "Batches finished.")
BATCH_TIME: Final = _counter("batch_seconds_total", "Total time of finished batches.")
LAST_BATCH: Final = _gauge("last_batch_seconds", "Time that the last batch took.")
LAST_BATCH_ROWS: Final = _gauge("last_batch_rows", "Rows that the last batch read.")
RATE: Final = _gauge(
    "rows_per_second",
    "Rows read in a second of the last batch; 0 when idle, of all batches in the end.",
)
LAG: Final = _gauge("lag_records", "Records that the last batch left unread when it was planned.")
STATE_ROWS: Final = _gauge("state_rows", "Rows in the state store.")
STATE_BYTES: Final = _gauge("state_bytes", "Memory that the state store uses.")
HELD: Final = _gauge("held_records", "Held records: parked, or waiting for a retry.")
RESTARTS: Final = _counter("restarts_total", "Restarts of the query.")


_FAMILIES: Final = {ROWS_REJECTED: REJECTED, ROWS_WARNED: WARNED, ROWS_WRITTEN: WRITTEN}


def samples(pipeline: str, states: Iterable[QueryState]) -> Iterator[Sample]:
    for state in states:
        at = (pipeline, state.query)
        for metric, value in _values(state).items():
            yield Sample(metric, value, at)
        if state.lag_records is not None:
            yield Sample(LAG, state.lag_records, at)
        for phase in PHASES:
            yield Sample(PHASE, int(phase == state.phase), (*at, phase))
        for metric, family in _FAMILIES.items():
            for name, number in counts_of(state, family).items():
                yield Sample(metric, number, (*at, name))


def _values(state: QueryState) -> dict[Metric, float]:
    return {
        ROWS_DEAD: state.counts.get(DEAD_LETTERS, 0),
        ROWS_READ: state.counts.get(ROWS, 0),
        ROWS_LATE: state.counts.get(LATE, 0),
        VALUES_SHREDDED: state.counts.get(SHREDDED, 0),
        BATCH_COUNT: state.counts.get(BATCHES, 0),
        BATCH_TIME: state.counts.get(BUSY_MS, 0) / MILLISECONDS,
        LAST_BATCH: state.batch_ms / MILLISECONDS,
        LAST_BATCH_ROWS: state.batch_rows,
        RATE: state.rows_per_second,
        STATE_ROWS: state.state_rows,
        STATE_BYTES: state.state_bytes,
        HELD: state.held,
        RESTARTS: state.restarts,
    }
