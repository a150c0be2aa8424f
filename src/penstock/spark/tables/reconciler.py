"""Reconciler of tables: decides which queries the materialiser starts and stops.

It is a core without I/O or clock. A topic requests a table by `table.format`. `TableReconciler`
compares these requests with the running queries and returns the changes:

- A changed topic configuration or a recreated topic restarts the query.
- A failed query restarts after a growing pause. If only an operator can correct the cause, it
  restarts after a change of the topic's configuration, or when the job is run again.
- One job maintains at most `tables_max` tables. Running tables have priority, then names in
  alphabetical order.
- Two topics cannot share a location.
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
"""State of a table. `waiting`: the job is at its limit of tables. `blocked`: another topic uses the
location. `stopped`: an operator has to correct the cause.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTable:
    """Topic that requests a table, with the table's location and settings.

    `problem` is the reason why the table cannot be maintained, or None.
    """

    topic: str
    topic_id: str
    location: str
    commit_interval_ms: int
    codec: str | None = None
    partitions: tuple[int, ...] = ()
    problem: str | None = None

    def same_table(self, other: WantedTable) -> bool:
        """Return whether the running query can stay: nothing but the partitions has changed."""
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
    """Queries to stop first, and queries to start afterwards."""

    stop: tuple[str, ...] = ()
    start: tuple[WantedTable, ...] = ()


@dataclass(slots=True)
class TableReconciler:
    """Tables of one job; `states` has the state of each topic's table."""

    tables_max: int = TABLES_MAX_DEFAULT
    states: dict[str, TableState] = field(default_factory=dict)

    def changes(self, wanted: Mapping[str, WantedTable], now: float) -> Changes:
        """Return the queries to stop and to start for the requested tables, and record their
        states.

        `now` is monotonic seconds.
        """
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
                self._note(table, "blocked", f"topic {holder} already uses {table.location}")
            elif self._others(table.topic) >= self.tables_max:
                self._note(
                    table, "waiting",
                    f"this job already maintains {self.tables_max} tables, its limit. Raise "
                    "tables_max (option --tables-max)",
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
        """Record that a query failed; with `by_hand` it is not retried until an operator acts."""
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
        """Record that a query made progress or was idle; this resets its failure count."""
        state = self.states.get(topic)
        if state is not None and state.failures:
            self.states[topic] = replace(state, failures=0, problem=None)

    def done(self, topic: str) -> None:
        """Record that a query has written all records that existed, and ended."""
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
    """Return the location of a topic's table: `given`, or a directory of `root` if it is empty.

    Raises:
        InvalidOption: the location is a relative path, which depends on the working directory.
    """
    if not given:
        return f"{root.rstrip('/')}/{topic}"
    if "://" not in given and not given.startswith("/"):
        raise InvalidOption(
            "table.location", given, f"topic {topic}: must be an absolute path or a URI"
        )
    return given.rstrip("/")
