"""Listener to Spark's reports of streaming queries; it keeps one `QueryState` per query.

Spark's listener bus reports batches. The runner reports starts, restarts and ends, and the counts
of finished batches from the journal. Each report replaces an immutable state under one lock.

A query is known by its name after `started`; reports of other queries of the session are ignored.
The bus is slow: it may report the last batch of a failed run while the next run starts. Such a
report changes the numbers but not the phase. It is recognised by the id of its run.

Spark counts a row each time that a batch's frame is computed, so a batch that is written to two
sinks counts double. Therefore the number of rows is limited to the advance of the source's offsets.
Spark reports no start for a query's first batch; its advance counts from offset 0. The lag is the
source's latest offsets minus the batch's end offsets.
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
from penstock.spark.pipeline.causes import cause_of
from penstock.spark.pipeline.state import BATCHES, BUSY_MS, LATE, ROWS, QueryState
from penstock.spark.reads.listener import ReportListener, positions_of
from penstock.spark.reads.positions import Positions

QUERIES_MAX: Final = 1_000
REPORT_SECONDS: Final = 30.0
"""Longest wait for Spark's last report of an ended query."""
_NO_WATERMARK: Final = "1970-01-01T00:00:00.000Z"
"""Watermark that Spark reports before it has read an event time."""


class TooManyQueries(InvalidError):
    """Pipeline with more than `QUERIES_MAX` queries."""


class ProgressBook(ReportListener):
    """States of the queries of one pipeline; add it with `spark.streams.addListener`.

    Call `started` before the query's `start()`, which reports to the listener before it returns.
    All methods may be called from any thread.

    Args:
        take_in: called in Spark's thread with a query's name, before a finished batch is counted.
            It adds the batch's counts from the journal.
    """

    def __init__(self, take_in: Callable[[str], None] | None = None) -> None:
        self._take_in = take_in
        self._lock = threading.Condition()
        self._states: dict[str, QueryState] = {}
        self._runs: dict[str, str] = {}

    # Reports of the runner

    def states(self) -> tuple[QueryState, ...]:
        """Return the states of all queries, in the order of their first start."""
        with self._lock:
            return tuple(self._states.values())

    def started(self, query_name: str, group_id: str) -> None:
        """Set the phase `starting` of a query that is about to start; keep its earlier totals.

        Raises:
            TooManyQueries: there are `QUERIES_MAX` queries already.
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
        """Add `n` to a total such as `written.lake`.

        Do not use it for `rows` and `batches`, which are counted from Spark's reports.
        """
        if n:
            self._change(query_name, lambda state: {"counts": _added(state, {name: n})})

    def held(self, query_name: str, n: int) -> None:
        self._change(query_name, lambda state: {"held": n})

    def failed(self, query_name: str, error: BaseException | str) -> None:
        """Set the phase `failed` of a query that failed permanently, and the cause of its error."""
        text = error if isinstance(error, str) else cause_of(error)
        self._await_last_report(query_name)
        self._change(query_name, lambda state: {"phase": "failed", "error": text})

    def restarting(self, query_name: str, error: BaseException | str | None = None) -> None:
        """Set the phase `restarting` of a failed query; show its error until it has restarted."""
        text = cause_of(error) if isinstance(error, BaseException) else error
        self._change(
            query_name,
            lambda state: {"phase": "restarting", "restarts": state.restarts + 1, "error": text},
        )

    def ended(self, query_name: str) -> None:
        """Set the phase `ended` of a query that ended or was stopped, unless it has failed.

        Wait for Spark's last report of the query, at most `REPORT_SECONDS`, so that the totals
        include its last batch. `failed` waits too.
        """
        self._await_last_report(query_name)
        self._change(
            query_name, lambda state: {} if state.phase == "failed" else {"phase": "ended"}
        )

    # Reports of Spark

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        with self._lock:
            if event.name is not None and event.name in self._states:
                self._runs[event.name] = str(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
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
        run = str(event.runId)
        with self._lock:
            for name, current in self._runs.items():
                state = self._states[name]
                if current == run and state.phase in ("starting", "running", "idle"):
                    self._states[name] = replace(state, phase="idle")

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
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
                raise BugError(f"query {name!r}: reported before `started` was called")
            self._states[name] = replace(state, **change(state))


def _batch(state: QueryState, progress: StreamingQueryProgress) -> dict[str, Any]:
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
    pairs = [(positions_of(item.latestOffset), positions_of(item.endOffset)) for item in sources]
    known = [_ahead(latest, end) for latest, end in pairs if latest and end]
    return sum(known) if known else None


def _ahead(front: Positions, back: Positions | None) -> int:
    # A partition that is new since `back` starts at 0.
    return sum(
        max(0, position.offset - ((back.offset(at) if back else None) or 0))
        for at, position in front.partitions.items()
    )
