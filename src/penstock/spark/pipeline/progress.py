"""Progress display of a pipeline: a live table on a terminal, else JSON lines.

A thread samples the queries' states every `LOOK_SECONDS`, and shows the differences from the sample
before. Rendering is a pure function of two samples. Batches that finish between two samples share
one line, which has the facts of the last batch and the totals of all.

    {"time_ms": 1790000000000, "pipeline": "orders", "event": "batch", "query": "orders",
     "group": "orders.orders", "phase": "running", "batch_id": 7, "batch_rows": 1000,
     "batch_ms": 180, "rows_per_second": 5555.6, "lag_records": 0, "state_rows": 0,
     "state_bytes": 0, "watermark": null, "held_records": 0, "restarts": 0, "error": null,
     "batches": 8, "rows": 8000, "rejected": {"undecodable": 3}, "warned": {}, "dead_letters": 3,
     "late": 0, "shredded": 0, "written": {"lake": 7997}}

`event` is `batch`, or the phase that a query has entered: `restarting`, `failed` or `ended`. In an
event `batch`, `rows_per_second` is the rate of that batch; in other lines it is as in `QueryState`.
The values from `batches` on are totals since the process started.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.spark.pipeline.state import (
    BATCHES,
    DEAD_LETTERS,
    LATE,
    MILLISECONDS,
    REJECTED,
    ROWS,
    SHREDDED,
    WARNED,
    WRITTEN,
    Phase,
    QueryState,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

LOOK_SECONDS: Final = 0.1
STOP_SECONDS: Final = 15.0
TOLD_PHASES: Final[tuple[Phase, ...]] = ("restarting", "failed", "ended")
UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_STYLES: Final[dict[Phase, str]] = {
    "starting": "yellow",
    "running": "green",
    "idle": "dim",
    "restarting": "yellow",
    "ended": "dim",
    "failed": "bold red",
}

States = tuple[QueryState, ...]


def described(state: QueryState) -> dict[str, Any]:
    """Return a state as JSON, with the keys of progress lines and of the status page."""
    return {
        "query": state.query,
        "group": state.group_id,
        "phase": state.phase,
        "batch_id": state.batch_id,
        "batch_rows": state.batch_rows,
        "batch_ms": state.batch_ms,
        "rows_per_second": round(state.rows_per_second, 1),
        "lag_records": state.lag_records,
        "state_rows": state.state_rows,
        "state_bytes": state.state_bytes,
        "watermark": state.watermark,
        "held_records": state.held,
        "restarts": state.restarts,
        "error": state.error,
        "batches": state.counts.get(BATCHES, 0),
        "rows": state.counts.get(ROWS, 0),
        "rejected": counts_of(state, REJECTED),
        "warned": counts_of(state, WARNED),
        "dead_letters": state.counts.get(DEAD_LETTERS, 0),
        "late": state.counts.get(LATE, 0),
        "shredded": state.counts.get(SHREDDED, 0),
        "written": counts_of(state, WRITTEN),
    }


def counts_of(state: QueryState, family: str) -> dict[str, int]:
    """Return the totals whose names begin with `family`, by the rest of the name."""
    return {
        name.removeprefix(family): number
        for name, number in state.counts.items()
        if name.startswith(family)
    }


def lines(before: States, now: States, *, pipeline: str, now_ms: int) -> list[str]:
    """Return the differences between two samples as JSON lines: batches, then new phases."""
    known = {state.query: state for state in before}
    texts: list[str] = []
    for state in now:
        last = known.get(state.query)
        events = []
        if state.counts.get(BATCHES, 0) != (last.counts.get(BATCHES, 0) if last else 0):
            events.append("batch")
        if state.phase in TOLD_PHASES and (last is None or last.phase != state.phase):
            events.append(state.phase)
        for event in events:
            head = {"time_ms": now_ms, "pipeline": pipeline, "event": event}
            line = head | described(state)
            if event == "batch":  # the batch's own rate, even if the query is idle by now
                line["rows_per_second"] = round(state.batch_rows_per_second, 1)
            texts.append(json.dumps(line))
    return texts


def table(states: Sequence[dict[str, Any]], *, title: str | None = None) -> Table:
    """Return a table of queries, each a result of `described`, with their errors below it.

    Columns of `_OPTIONAL` without a value are left out, so that the table fits into 80 characters.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("query", "phase"):
        made.add_column(name, overflow="fold")
    columns = {name: [show(state) for state in states] for name, show in _NUMBERS.items()}
    columns = {
        name: cells for name, cells in columns.items() if name not in _OPTIONAL or any(cells)
    }
    for name in columns:
        made.add_column(name, justify="right", no_wrap=True)
    errors = Text()
    for index, state in enumerate(states):
        phase: Phase = state["phase"]
        cells = [Text(cells[index]) for cells in columns.values()]
        made.add_row(Text(state["query"]), Text(phase, style=_STYLES.get(phase, "")), *cells)
        if state["error"]:
            errors.append(f"{state['query']}: {state['error']}\n", style="red")
    made.caption = errors if errors.plain else None
    made.caption_justify = "left"
    made.caption_style = ""
    return made


def _state_cell(state: dict[str, Any]) -> str:
    if not state["state_rows"]:
        return ""
    return f"{state['state_rows']:,} / {size(state['state_bytes'])}"


_NUMBERS: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "batch": lambda state: "" if state["batch_id"] is None else f"{state['batch_id']:,}",
    "rows/s": lambda state: f"{state['rows_per_second']:,.0f}",
    "lag": lambda state: "" if state["lag_records"] is None else f"{state['lag_records']:,}",
    "batch time": lambda state: duration(state["batch_ms"]) if state["batches"] else "",
    "rows": lambda state: f"{state['rows']:,}",
    "state": _state_cell,
    "held": lambda state: f"{state['held_records']:,}" if state["held_records"] else "",
    "rejected": lambda state: f"{sum(state['rejected'].values()):,}",
    "restarts": lambda state: f"{state['restarts']:,}" if state["restarts"] else "",
}


_OPTIONAL: Final = ("state", "held", "restarts")


def summary(state: QueryState) -> str:
    """Return the totals of a query since its start as a sentence."""
    counts = state.counts
    parts = [f"{counts.get(ROWS, 0):,} records read in {counts.get(BATCHES, 0):,} batches"]
    parts += [f"{number:,} written to {name}" for name, number in counts_of(state, WRITTEN).items()]
    for name, number in (
        ("rejected", sum(counts_of(state, REJECTED).values())),
        ("sent to dead letters", counts.get(DEAD_LETTERS, 0)),
        ("too late", counts.get(LATE, 0)),
    ):
        parts += [f"{number:,} {name}"] if number else []
    return f"{state.query}: {', '.join(parts)}"


def duration(milliseconds: int) -> str:
    if milliseconds < MILLISECONDS:
        return f"{milliseconds} ms"
    return f"{milliseconds / MILLISECONDS:,.1f} s"


def size(count_bytes: float) -> str:
    for unit in UNITS[:-1]:
        if count_bytes < 1024:
            return f"{count_bytes:.0f} B" if unit == "B" else f"{count_bytes:.1f} {unit}"
        count_bytes /= 1024
    return f"{count_bytes:.1f} {UNITS[-1]}"


class Display(Protocol):
    """Output of a pipeline's progress."""

    def show(self, states: States) -> None: ...

    def close(self) -> None: ...


class LineDisplay:
    """Progress output as JSON lines, each written at once."""

    def __init__(
        self, pipeline: str, write: Callable[[str], None], *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._pipeline = pipeline
        self._write = write
        self._clock = clock
        self._before: States = ()

    def show(self, states: States) -> None:
        for line in lines(
            self._before, states, pipeline=self._pipeline, now_ms=self._clock.now_ms()
        ):
            self._write(line)
        self._before = states

    def close(self) -> None:
        """Do nothing, because lines are written at once."""


class TableDisplay:
    """Progress output as a table at the foot of a terminal, and the totals at the end."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._before: States = ()
        self._live: Live | None = None

    def show(self, states: States) -> None:
        from rich.live import Live

        if states == self._before:
            return
        self._before = states
        shown = table([described(state) for state in states], title=self._title)
        if self._live is None:
            self._live = Live(shown, console=self._console, auto_refresh=False)
            self._live.start(refresh=True)
        else:
            self._live.update(shown, refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
            for state in self._before:
                self._console.print(summary(state), highlight=False, markup=False)


class Watcher:
    """Thread that shows the states of a pipeline until its `with` block ends."""

    def __init__(self, states: Callable[[], States], display: Display) -> None:
        self._states = states
        self._display = display
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-progress", daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(STOP_SECONDS)
        if not self._thread.is_alive():
            self._display.show(self._states())
        self._display.close()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self._display.show(self._states())
