"""What Spark reports of running queries, kept as one `QueryState` per query.

Theory of operation. Three parties write: Spark's listener bus (batches), the functions that write
a batch (counts, held records) and the runner (starts, restarts, ends). Each call replaces a frozen
state under one lock, so a reader gets states that belong together and never waits for Spark.

A query is known by its name from `started` on; queries of the same session that nobody started
here are not looked at. The bus is late: the last batch of a run that failed may be reported when
the next one is being started. Such a report changes the numbers and leaves the phase alone; the
run's id tells which it is.

Rows. Spark counts a row each time that a batch's frame is computed, so a batch that is written to
two sinks counts double. A `penstock` source can count no more than its offsets advanced (from 0
in a query's first batch, of which Spark tells no start), and the lesser of both is taken. Lag is
what the source's latest offsets are ahead of the batch's end offsets: what was there when the
batch was planned and was not taken into it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    SourceProgress,
    StreamingQueryProgress,
)

from penstock.base.errors import BugError, InvalidError
from penstock.spark.listener import ReportListener, positions_of
from penstock.spark.pipeline.causes import cause_of
from penstock.spark.pipeline.state import BATCHES, BUSY_MS, LATE, ROWS, QueryState
from penstock.spark.positions import Positions

QUERIES_MAX: Final = 1_000
REPORT_SECONDS: Final = 30.0
"""Time that Spark's last report of a query may take once the query has ended."""
_NO_WATERMARK: Final = "1970-01-01T00:00:00.000Z"
"""What Spark reports until a first event time was seen."""


class TooManyQueries(InvalidError):
    """More queries than one process keeps states of."""


class ProgressBook(ReportListener):
    """States of the queries of one pipeline; add it with `spark.streams.addListener`.

    Call `started` before the query's `start()`, which reports to the listener before it returns.
    All methods may be called from any thread.

    Args:
        take_in: called with a query's name before a finished batch of it is counted, from Spark's
            thread, to count what the batch wrote.
    """

    def __init__(self, take_in: Callable[[str], None] | None = None) -> None:
        self._take_in = take_in
        self._lock = threading.Condition()
        self._states: dict[str, QueryState] = {}
        self._runs: dict[str, str] = {}

    # What the runner and the sinks say

    def states(self) -> tuple[QueryState, ...]:
        """All queries in the order of their first start."""
        with self._lock:
            return tuple(self._states.values())

    def started(self, query_name: str, group_id: str) -> None:
        """A query is about to start, for the first time or again; its totals go on.

        Raises:
            TooManyQueries: there are `QUERIES_MAX` already.
        """
        with self._lock:
            before = self._states.get(query_name)
            if before is None and len(self._states) >= QUERIES_MAX:
                raise TooManyQueries(
                    f"query {query_name}: a pipeline has at most {QUERIES_MAX} queries; split it"
                )
            self._runs.pop(query_name, None)
            fresh = before or QueryState(query=query_name, group_id=group_id, phase="starting")
            self._states[query_name] = replace(
                fresh, group_id=group_id, phase="starting", error=None
            )

    def count(self, query_name: str, name: str, n: int) -> None:
        """Add to a total, such as `written.lake`. `rows` and `batches` are counted here already."""
        if n:
            self._change(query_name, lambda state: {"counts": _added(state, {name: n})})

    def held(self, query_name: str, n: int) -> None:
        """So many records wait now."""
        self._change(query_name, lambda state: {"held": n})

    def failed(self, query_name: str, error: BaseException | str) -> None:
        """The query has failed for good. Of Spark's stack traces the cause is kept."""
        text = error if isinstance(error, str) else cause_of(error)
        self._await_last_report(query_name)
        self._change(query_name, lambda state: {"phase": "failed", "error": text})

    def restarting(self, query_name: str, error: BaseException | str | None = None) -> None:
        """The query failed and will be started again; `error` stays visible until it is."""
        text = cause_of(error) if isinstance(error, BaseException) else error
        self._change(
            query_name,
            lambda state: {"phase": "restarting", "restarts": state.restarts + 1, "error": text},
        )

    def ended(self, query_name: str) -> None:
        """The query has come to its end or was stopped; one that failed stays failed.

        Like `failed`, it waits for Spark's last report, at most `REPORT_SECONDS`, so that the
        totals have the last batch.
        """
        self._await_last_report(query_name)
        self._change(
            query_name, lambda state: {} if state.phase == "failed" else {"phase": "ended"}
        )

    # What Spark says

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Remember which run the coming reports are of."""
        with self._lock:
            if event.name is not None and event.name in self._states:
                self._runs[event.name] = str(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Take a finished batch in."""
        progress = event.progress
        if progress.name is None or not self._knows(progress.name):
            return
        if self._take_in is not None:
            self._take_in(progress.name)
        with self._lock:
            state = self._states[progress.name]
            changes = _batch(state, progress)
            if self._is_current(state, str(progress.runId)):
                changes["phase"] = "running"
            self._states[progress.name] = replace(state, **changes)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing came; what is at rest has no rate."""
        run = str(event.runId)
        with self._lock:
            for name, current in self._runs.items():
                state = self._states[name]
                if current == run and state.phase in ("starting", "running", "idle"):
                    self._states[name] = replace(state, phase="idle")

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """All reports of this run are in; what it means, the runner knows."""
        run = str(event.runId)
        with self._lock:
            self._runs = {name: current for name, current in self._runs.items() if current != run}
            self._lock.notify_all()

    def _knows(self, name: str) -> bool:
        with self._lock:
            return name in self._states

    def _await_last_report(self, name: str) -> None:
        with self._lock:
            self._lock.wait_for(lambda: name not in self._runs, REPORT_SECONDS)
            self._runs.pop(name, None)

    def _is_current(self, state: QueryState, run: str) -> bool:
        if state.phase not in ("starting", "running", "idle"):
            return False
        return self._runs.setdefault(state.query, run) == run

    def _change(self, name: str, change: Callable[[QueryState], dict[str, Any]]) -> None:
        with self._lock:
            state = self._states.get(name)
            if state is None:
                raise BugError(f"query {name!r}: reported on before it was started")
            self._states[name] = replace(state, **change(state))


def _batch(state: QueryState, progress: StreamingQueryProgress) -> dict[str, Any]:
    """What a finished batch changes."""
    rows = sum(map(_rows, progress.sources))
    batch_ms = progress.batchDuration
    late = sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators)
    watermark = (progress.eventTime or {}).get("watermark", _NO_WATERMARK)
    return {
        "batch_id": progress.batchId,
        "batch_rows": rows,
        "batch_ms": batch_ms,
        "lag_records": _lag(progress.sources),
        "state_rows": sum(operator.numRowsTotal for operator in progress.stateOperators),
        "state_bytes": sum(operator.memoryUsedBytes for operator in progress.stateOperators),
        "watermark": None if watermark == _NO_WATERMARK else watermark,
        "counts": _added(state, {ROWS: rows, BATCHES: 1, BUSY_MS: batch_ms, LATE: late}),
    }


def _added(state: QueryState, more: dict[str, int]) -> dict[str, int]:
    return {**state.counts, **{name: state.counts.get(name, 0) + n for name, n in more.items()}}


def _rows(source: SourceProgress) -> int:
    end = positions_of(source.endOffset)
    if end is None:
        return source.numInputRows
    # A query's first batch reports no start.
    return min(source.numInputRows, _ahead(end, positions_of(source.startOffset)))


def _lag(sources: list[SourceProgress]) -> int | None:
    """Records behind, over all sources that say so; None when none does."""
    pairs = [(positions_of(item.latestOffset), positions_of(item.endOffset)) for item in sources]
    known = [_ahead(latest, end) for latest, end in pairs if latest and end]
    return sum(known) if known else None


def _ahead(front: Positions, back: Positions | None) -> int:
    # A partition that is new since `back` starts at 0.
    return sum(
        max(0, position.offset - ((back.offset(at) if back else None) or 0))
        for at, position in front.partitions.items()
    )
