"""HTTP page of a running mirror: metrics, status, liveness.

GET /metrics   the Prometheus text format
GET /status    the status, as in the status file
GET /livez     200 while the process responds
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.base.metrics import Metrics, Sample, counter, gauge, gauges, render
from penstock.base.system import SYSTEM_CLOCK
from penstock.connect.status import STATES

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from penstock.mirror.watching import Watch


class MirrorMetrics(Metrics, prefix="penstock_mirror_", labels=("mirror",)):
    records = counter("records_total", "Records that were committed since the process started.")
    transactions = counter(
        "transactions_total", "Transactions that were committed since the process started."
    )
    retries = counter("retries_total", "Attempts that failed and were followed by another one.")
    last_commit_age_seconds: float | None = gauge(
        "last_commit_age_seconds", "Time since the last committed transaction."
    )
    lag: dict[tuple[str, str], int] = gauges(
        "lag_offsets", "Offsets of a source partition that are not mirrored yet.",
        "topic", "partition",
    )  # fmt: skip
    stopped: dict[tuple[str, str], int] = gauges(
        "partition_stopped", "1 if a partition has stopped, 0 if it is mirrored.",
        "topic", "partition",
    )  # fmt: skip
    state: dict[str, int] = gauges(
        "state", "1 for the current state of the mirror, 0 for the others.", "state"
    )


def samples(watch: Watch, now_ms: int) -> Iterator[Sample]:
    """Return the metrics of a mirror."""
    found, metrics = watch.status.status, MirrorMetrics()
    metrics.records, metrics.transactions = found.records, found.batches
    metrics.retries = found.retries
    metrics.last_commit_age_seconds = found.commit_age_seconds(now_ms)
    lags = watch.lags.copy()  # the watch's thread adds partitions
    stopped = dict.fromkeys(lags, 0) | dict.fromkeys(watch.stopped, 1)
    metrics.lag = {(topic, str(index)): lag for (topic, index), lag in lags.items()}
    metrics.stopped = {(topic, str(index)): count for (topic, index), count in stopped.items()}
    metrics.state = {state: state == found.state for state in STATES}
    return metrics.samples(found.connector)


def build_app(watch: Watch) -> Starlette:
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    from penstock.base.http_routes import METRICS_TYPE, json_response

    async def metrics(request: Request) -> Response:
        text = render(samples(watch, SYSTEM_CLOCK.now_ms()))
        return Response(text, headers={"content-type": METRICS_TYPE})

    async def status(request: Request) -> Response:
        return json_response(watch.status.status)

    async def livez(request: Request) -> Response:
        return Response("ok")

    return Starlette(
        routes=[Route("/metrics", metrics), Route("/status", status), Route("/livez", livez)]
    )
