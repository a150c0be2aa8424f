"""A point of a transaction at which processes are killed: what the test writes and brokers read.

A plan is a file beside all brokers of a cluster. Each broker says of every point that it reaches
what it is, and looks there; whoever comes to the planned point first takes the plan away, and
sends its signals. What was reached is kept, so that a run without kills shows all points there are.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

SELF = 0
"""In a plan, the process id of whoever reaches the point."""
ANYBODY = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """At which point, the how manieth time that one broker reaches it, who gets which signal.

    `by` is the process that must reach it; `ANYBODY`: whichever does first.
    """

    point: str
    count: int
    by: int
    signals: Sequence[tuple[int, int]]
    name: str


class PlanFiles:
    """The files of a cluster: what is planned, and what was reached."""

    def __init__(self, directory: Path) -> None:
        self._planned = directory / "planned.json"
        self._taken = directory / "taken.json"
        self._trace = directory / "trace"

    # The test's side

    def put(
        self, point: str, count: int, signals: Sequence[tuple[int, int]], *, by: int = ANYBODY
    ) -> None:
        """Plan a kill; `signals` are process ids and signal numbers."""
        self.clear()
        draft = self._planned.with_suffix(".draft")
        plan = Plan(point=point, count=count, by=by, signals=signals, name=uuid.uuid4().hex)
        draft.write_text(json.dumps(asdict(plan)))
        draft.rename(self._planned)

    def clear(self) -> None:
        """Plan nothing, and forget what was reached."""
        for path in (self._planned, self._taken, self._trace):
            path.unlink(missing_ok=True)

    @property
    def taken(self) -> bool:
        """Whether the point was reached."""
        return self._taken.exists()

    def reached(self) -> list[str]:
        """The points that any broker has reached since the last `clear`, in their order."""
        return self._trace.read_text().splitlines() if self._trace.exists() else []

    # The brokers' side

    def note(self, point: str) -> None:
        """A broker has come to a point."""
        with self._trace.open("a") as trace:
            trace.write(point + "\n")

    def read(self) -> Plan | None:
        """What is planned."""
        try:
            return Plan(**json.loads(self._planned.read_text()))
        except FileNotFoundError:
            return None

    def take(self) -> bool:
        """Whether the plan is the caller's to carry out: nobody else has been there before."""
        try:
            os.rename(self._planned, self._taken)
        except FileNotFoundError:
            return False
        return True
