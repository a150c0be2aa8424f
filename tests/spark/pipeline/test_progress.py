"""Progress as lines and as a table, of states that are written down here."""

from __future__ import annotations

import io
import json
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from penstock.spark.pipeline.progress import (
    LineDisplay,
    States,
    TableDisplay,
    Watcher,
    described,
    duration,
    lines,
    size,
    summary,
    table,
)
from penstock.spark.pipeline.state import Phase, QueryState

PATIENCE_SECONDS = 30
ORDERS = QueryState(
    query="orders",
    group_id="shop.orders",
    phase="running",
    batch_id=7,
    batch_rows=1_000,
    batch_ms=180,
    lag_records=12,
    held=2,
    counts={
        "rows": 8_000,
        "batches": 8,
        "busy_ms": 1_500,
        "rejected.undecodable": 3,
        "rejected.amount is positive": 4,
        "warned.old": 1,
        "dead_letters": 7,
        "written.lake": 7_993,
    },
)
WINDOWS = QueryState(
    query="per_minute",
    group_id="shop.per_minute",
    phase="restarting",
    state_rows=40_000,
    state_bytes=5 << 20,
    watermark="2026-01-01T00:00:00.000Z",
    restarts=2,
    error="topic x: at most 3",
)


class Clock:
    def now_ms(self) -> int:
        return 17

    def monotonic(self) -> float:
        return 0.0


def told(before: States, now: States) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(before, now, pipeline="shop", now_ms=5)]


def later(state: QueryState, *, batches: int = 1, **changes: Any) -> QueryState:
    counts = {**state.counts, "batches": state.counts.get("batches", 0) + batches}
    return replace(state, counts=counts, **changes)


def test_a_state_as_json() -> None:
    assert described(ORDERS) == {
        "query": "orders",
        "group": "shop.orders",
        "phase": "running",
        "batch_id": 7,
        "batch_rows": 1_000,
        "batch_ms": 180,
        "rows_per_second": 5_555.6,
        "lag_records": 12,
        "state_rows": 0,
        "state_bytes": 0,
        "watermark": None,
        "held_records": 2,
        "restarts": 0,
        "error": None,
        "batches": 8,
        "rows": 8_000,
        "rejected": {"undecodable": 3, "amount is positive": 4},
        "warned": {"old": 1},
        "dead_letters": 7,
        "late": 0,
        "shredded": 0,
        "written": {"lake": 7_993},
    }


def test_a_line_for_each_finished_batch() -> None:
    (line,) = told((), (ORDERS,))
    assert (line["event"], line["time_ms"], line["pipeline"]) == ("batch", 5, "shop")
    assert line == line | described(ORDERS)
    assert told((ORDERS,), (ORDERS,)) == []
    assert told((ORDERS,), (replace(ORDERS, phase="idle"),)) == []
    other = replace(ORDERS, query="other")
    found = told((ORDERS, other), (later(ORDERS, batch_id=8), other))
    assert [(item["query"], item["batch_id"]) for item in found] == [("orders", 8)]


@pytest.mark.parametrize("phase", ["restarting", "failed", "ended"])
def test_a_line_for_phases_that_matter(phase: Phase) -> None:
    after = later(ORDERS, phase=phase, error="why")
    events = [(item["event"], item["error"]) for item in told((ORDERS,), (after,))]
    assert events == [("batch", "why"), (phase, "why")]
    assert told((after,), (after,)) == []


def test_the_rate_of_a_query_that_has_ended_is_that_of_all_its_batches() -> None:
    counts = {"batches": 2, "rows": 3_000, "busy_ms": 1_500}
    last = replace(ORDERS, batch_rows=1_000, batch_ms=1_000, counts=counts, phase="ended")
    batch, ended = told((), (last,))
    assert (batch["rows_per_second"], ended["rows_per_second"]) == (1_000.0, 2_000.0)
    assert shown(last)[3].startswith("orders ended 7 2,000")
    assert described(replace(last, counts={}))["rows_per_second"] == 0.0


@pytest.mark.parametrize("phase", ["starting", "running", "idle"])
def test_no_line_for_other_phases(phase: Phase) -> None:
    assert told((WINDOWS,), (replace(WINDOWS, phase=phase),)) == []


def shown(*states: QueryState, width: int = 160) -> list[str]:
    out = io.StringIO()
    made = table([described(state) for state in states], title="pipeline shop")
    Console(file=out, width=width, force_terminal=False).print(made)
    return [" ".join(line.split()) for line in out.getvalue().splitlines() if line.strip()]


def test_a_table_of_a_plain_query_fits_into_80_characters() -> None:
    busy = {**ORDERS.counts, "rows": 1_234_567}
    found = shown(replace(ORDERS, held=0, counts=busy, batch_id=123, lag_records=99_999), width=80)
    assert found[1] == "query phase batch rows/s lag batch time rows rejected"
    assert found[3] == "orders running 123 5,556 99,999 180 ms 1,234,567 7"


def test_a_summary() -> None:
    assert summary(ORDERS) == (
        "orders: 8,000 records read in 8 batches, 7,993 written to lake, 7 rejected,"
        " 7 sent to dead letters"
    )
    assert summary(WINDOWS) == "per_minute: 0 records read in 0 batches"


def test_a_table() -> None:
    found = shown(ORDERS, WINDOWS)
    assert found[0] == "pipeline shop"
    assert found[1] == ("query phase batch rows/s lag batch time rows state held rejected restarts")
    assert found[3] == "orders running 7 5,556 12 180 ms 8,000 2 7"
    assert found[4] == "per_minute restarting 0 0 40,000 / 5.0 MiB 0 2"
    assert found[5:] == ["per_minute: topic x: at most 3"]


def test_names_are_no_markup() -> None:
    assert shown(replace(ORDERS, query="[red]x"))[3].startswith("[red]x running")


def test_a_table_without_queries() -> None:
    assert shown()[0] == "pipeline shop"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (duration(0), "0 ms"),
        (duration(999), "999 ms"),
        (duration(4_240), "4.2 s"),
        (size(1_023), "1023 B"),
        (size(1_024), "1.0 KiB"),
        (size(3.5 * (1 << 20)), "3.5 MiB"),
        (size(1 << 50), "1024.0 TiB"),
    ],
)
def test_units(text: str, expected: str) -> None:
    assert text == expected


class Script:
    """A runner whose states are what the test says."""

    def __init__(self, *states: QueryState) -> None:
        self.now: States = states

    def states(self) -> States:
        return self.now


def until(holds: Any) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end
        threading.Event().wait(0.01)


def test_a_watcher_reports_all_batches() -> None:
    script = Script(ORDERS)
    written: list[str] = []
    with Watcher(script.states, LineDisplay("shop", written.append, clock=Clock())):
        until(lambda: len(written) == 1)
        script.now = (later(ORDERS, batch_id=8),)
        until(lambda: len(written) == 2)
        # What comes at the very end is told on the way out.
        script.now = (later(ORDERS, batches=2, batch_id=9, phase="ended"),)
    found = [json.loads(line) for line in written]
    assert [item["batches"] for item in found] == [8, 9, 10, 10]
    assert [item["event"] for item in found] == ["batch", "batch", "batch", "ended"]
    assert {item["time_ms"] for item in found} == {17}


def test_a_watcher_lets_errors_through() -> None:
    with (
        pytest.raises(ValueError, match="mine"),
        Watcher(Script(ORDERS).states, LineDisplay("shop", lambda line: None)),
    ):
        raise ValueError("mine")


def test_a_live_table_on_a_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=160, color_system=None)
    script = Script(ORDERS)
    with Watcher(script.states, TableDisplay(console, "pipeline shop")):
        until(lambda: "5,556" in out.getvalue())
        script.now = (replace(ORDERS, batch_rows=77, batch_ms=1_000),)
        until(lambda: " 77 " in out.getvalue())
        script.now = (replace(ORDERS, phase="failed", error="no such table"),)
    last = out.getvalue().rpartition("pipeline shop")[2]
    assert "orders: no such table" in last
    assert last.endswith(f"\x1b[?25h{summary(ORDERS)}\n"), "the cursor is shown again before it"
