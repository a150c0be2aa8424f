"""Reconciler of tables: the core of the materialiser, without I/O or clock.

Topics request tables by `table.format`; `TableReconciler` compares that with what runs and returns
starts and stops. A change of a topic's configuration, or a recreated topic, restarts its query. A
failed query is restarted after a growing pause, or, if only an operator can fix it, after a change
of the topic's configuration or a new run. One job keeps at most `tables_max` tables; running ones
have priority, then the names' order. Two topics cannot share a location.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from penstock.base.retry import Backoff
from penstock.spark.errors import InvalidOption

TABLES_MAX_DEFAULT: Final = 32
RETRY_BACKOFF: Final = Backoff(first_ms=2_000, ceiling_ms=120_000)
DELTA: Final = "delta"

Phase = Literal["running", "retrying", "stopped", "waiting", "blocked", "done"]
"""State of a table. `waiting`: over the job's limit; `blocked`: by another topic's table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTable:
    """Topic that requests a table, and its location; `problem` is why it cannot be kept."""

    topic: str
    topic_id: str
    location: str
    commit_interval_ms: int
    codec: str | None = None
    partitions: tuple[int, ...] = ()
    problem: str | None = None

    def same_table(self, other: WantedTable) -> bool:
        """Whether a query that keeps this one may continue; partitions are added by themselves."""
        return replace(self, partitions=()) == replace(other, partitions=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """State of one topic's table."""

    wanted: WantedTable
    phase: Phase
    problem: str | None = None
    failures: int = 0
    retry_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Queries to stop, and then queries to start."""

    stop: tuple[str, ...] = ()
    start: tuple[WantedTable, ...] = ()


@dataclass(slots=True)
class TableReconciler:
    """Tables of a job; `states` are by topic."""

    tables_max: int = TABLES_MAX_DEFAULT
    states: dict[str, TableState] = field(default_factory=dict)

    def changes(self, wanted: Mapping[str, WantedTable], now: float) -> Changes:
        """Return and note the stops and starts for the requested tables."""
        stop = self._drop(wanted)
        due = [wanted[name] for name in sorted(wanted) if self._due(wanted[name], now)]
        topics_by_location = {
            state.wanted.location: topic
            for topic, state in self.states.items()
            if state.phase in {"running", "retrying", "done"}
        }
        start: list[WantedTable] = []
        for table in due:
            holder = topics_by_location.setdefault(table.location, table.topic)
            if table.problem is not None:
                self._note(table, "stopped", table.problem)
            elif holder != table.topic:
                self._note(table, "blocked", f"{table.location} is the table of topic {holder}")
            elif self._others(table.topic) >= self.tables_max:
                self._note(
                    table, "waiting",
                    f"this job keeps {self.tables_max} tables already; raise its limit or run "
                    "another job with other topics",
                )  # fmt: skip
            else:
                before = self.states.get(table.topic)
                failures = before.failures if before is not None else 0
                self.states[table.topic] = TableState(
                    wanted=table, phase="running", failures=failures
                )
                start.append(table)
        return Changes(stop=tuple(stop), start=tuple(start))

    def failed(self, topic: str, problem: str, *, by_hand: bool, now: float) -> None:
        """Note that a query ended with an error; `by_hand` means that a retry cannot help."""
        state = self.states.get(topic)
        if state is None:
            return
        failures = state.failures + 1
        self.states[topic] = TableState(
            wanted=state.wanted,
            phase="stopped" if by_hand else "retrying",
            problem=problem,
            failures=failures,
            retry_at=now + RETRY_BACKOFF.pause_seconds(failures),
        )

    def worked(self, topic: str) -> None:
        """Note that a query committed or was idle: an earlier failure is forgotten."""
        state = self.states.get(topic)
        if state is not None and state.failures:
            self.states[topic] = replace(state, failures=0, problem=None)

    def done(self, topic: str) -> None:
        """Note that a query has written all present records and ended."""
        state = self.states.get(topic)
        if state is not None:
            self.states[topic] = replace(state, phase="done", failures=0, problem=None)

    def _drop(self, wanted: Mapping[str, WantedTable]) -> list[str]:
        stop: list[str] = []
        for topic, state in list(self.states.items()):
            now_wanted = wanted.get(topic)
            if now_wanted is not None and state.wanted.same_table(now_wanted):
                continue
            del self.states[topic]
            if state.phase == "running":
                stop.append(topic)
        return stop

    def _due(self, table: WantedTable, now: float) -> bool:
        state = self.states.get(table.topic)
        if state is None or state.phase in {"waiting", "blocked"}:
            return True
        return state.phase == "retrying" and now >= state.retry_at

    def _others(self, topic: str) -> int:
        return sum(
            state.phase in {"running", "retrying"}
            for name, state in self.states.items()
            if name != topic
        )

    def _note(self, table: WantedTable, phase: Phase, problem: str) -> None:
        self.states[table.topic] = TableState(wanted=table, phase=phase, problem=problem)


def location_of(root: str, topic: str, given: str) -> str:
    """Return the location of a topic's table.

    Raises:
        InvalidOption: a location that depends on the job's working directory.
    """
    if not given:
        return f"{root.rstrip('/')}/{topic}"
    if "://" not in given and not given.startswith("/"):
        raise InvalidOption(
            "table.location", given, f"topic {topic}: must be an absolute path or a URI"
        )
    return given.rstrip("/")
