"""Which tables there should be, and what to do about it: the core of the materialiser.

Topics say it themselves, with `table.format` and its neighbours; `TableReconciler` compares that
with what runs and answers with starts and stops. It asks nobody and starts nothing, and is told the
time.

Rules. A topic's query runs as long as the topic wants a table; a change of its configuration, or
another topic of the same name, stops and starts it. A query that failed is started again after a
growing pause, unless what failed can only be mended by hand: then it waits for a change of the
topic's configuration or for a new run. At most `tables_max` tables are kept by one job; those
that run go first, then the names' order decides, and the others wait and say so. Two topics
cannot share a location.
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
"""`waiting`: for a place in this job; `blocked`: by another topic's table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTable:
    """A topic that wants a table, and where it wants it; `problem` is why it cannot be."""

    topic: str
    topic_id: str
    location: str
    commit_interval_ms: int
    codec: str | None = None
    partitions: tuple[int, ...] = ()
    problem: str | None = None

    def same_table(self, other: WantedTable) -> bool:
        """Whether a query that keeps this one may go on; partitions come by themselves."""
        return replace(self, partitions=()) == replace(other, partitions=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """How it stands with one topic's table."""

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
    """What a job keeps; `states` are by topic."""

    tables_max: int = TABLES_MAX_DEFAULT
    states: dict[str, TableState] = field(default_factory=dict)

    def changes(self, wanted: Mapping[str, WantedTable], now: float) -> Changes:
        """What to stop and to start so that the tables wanted are kept; notes it as done."""
        stop = self._drop(wanted)
        due = [wanted[name] for name in sorted(wanted) if self._due(wanted[name], now)]
        places = {
            state.wanted.location: topic
            for topic, state in self.states.items()
            if state.phase in {"running", "retrying", "done"}
        }
        start: list[WantedTable] = []
        for table in due:
            holder = places.setdefault(table.location, table.topic)
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
        """A query ended with an error; `by_hand` says that trying again cannot help."""
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
        """A query committed or found nothing to do: an earlier failure is forgotten."""
        state = self.states.get(topic)
        if state is not None and state.failures:
            self.states[topic] = replace(state, failures=0, problem=None)

    def done(self, topic: str) -> None:
        """A query that was to take what is there has taken it."""
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
    """Where a topic's table is.

    Raises:
        InvalidOption: a location that depends on the directory that the job was started in.
    """
    if not given:
        return f"{root.rstrip('/')}/{topic}"
    if "://" not in given and not given.startswith("/"):
        raise InvalidOption(
            "table.location", given, f"topic {topic}: must be an absolute path or a URI"
        )
    return given.rstrip("/")
