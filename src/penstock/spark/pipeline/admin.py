"""HTTP page of a running pipeline: status, metrics, liveness, readiness.

    GET /status    the run and all of its queries, as JSON (keys: `status_of`)
    GET /metrics   the Prometheus text format
    GET /livez     200; 503 after a query has failed permanently
    GET /readyz    200 when every query has started; 503 while a query is starting or restarting,
                   or after it has failed

By default it listens on loopback. It has no authentication.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, get_args

from penstock.base.metrics import Metrics, Sample, counter, counters, gauge, gauges, render
from penstock.spark.pipeline.progress import States, counts_of, described
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

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response


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


NOT_READY: Final[frozenset[Phase]] = frozenset({"starting", "restarting", "failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Facts about the process that runs a pipeline, shown on its status page."""

    pipeline: str
    file: str
    bootstrap: str
    state_directory: str
    version: str
    pid: int
    started_ms: int
    master: str
    broker_admin: str | None = None
    """Admin address of the brokers, if the pipeline names one."""
    dead_letter_topic: str | None = None


def status_of(run: Run, states: States) -> dict[str, Any]:
    """Return the body of `/status`.

    It has the fields of `Run`, `running` (always true), and `queries`, each as `progress.described`
    returns it.
    """
    return {**asdict(run), "running": True, "queries": [described(state) for state in states]}


def build_app(run: Run, states: Callable[[], States]) -> Starlette:
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from penstock.base.http_routes import METRICS_TYPE

    async def status(request: Request) -> Response:
        return JSONResponse(status_of(run, states()))

    async def metrics(request: Request) -> Response:
        text = render(samples(run.pipeline, states()))
        return Response(text, headers={"content-type": METRICS_TYPE})

    def probe(bad: frozenset[Phase], *, at_least: int) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            found = {state.query: state.phase for state in states()}
            good = len(found) >= at_least and not bad & set(found.values())
            body = {"status": "ok" if good else "failing", "queries": found}
            return JSONResponse(body, 200 if good else 503)

        return endpoint

    return Starlette(
        routes=[
            Route("/status", status),
            Route("/metrics", metrics),
            Route("/livez", probe(frozenset({"failed"}), at_least=0)),
            Route("/readyz", probe(NOT_READY, at_least=1)),
        ]
    )
