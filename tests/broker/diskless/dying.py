"""`penstock serve` that kills itself with `kill -9` at a step of a topic's switch.

python -m tests.broker.diskless.dying STEP[,SIGNAL[,FENCE_SECONDS]] serve …

With SIGSTOP it pauses once at the step, until SIGCONT. FENCE_SECONDS limits how long this process
fences producers while it waits for other brokers.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from penstock.apps.cli import main
from penstock.broker.metadata import ClusterMetadata
from penstock.broker.migration import leader, participant
from penstock.broker.migration import leader as follower
from penstock.control.operations.diskless import DisklessPlane
from penstock.diskless.topics.migration import MigrationPart, TopicCopy

STEPS = ("begun", "copied", "fenced", "tail copied", "committed", "refreshed")
"""Steps of a broker that leads all partitions."""

JOINED_STEPS = (
    "told copying",
    "begun",
    "copied",
    "told ready",
    "fenced",
    "tail copied",
    "told fenced",
    "over",
)
"""Steps of a participating broker."""

ASKED_STEPS = ("opened", "all ready", "fenced", "all fenced", "committed", "refreshed")
"""Steps of the coordinating broker."""

Named = Callable[..., str]
"""Function from a call's arguments to its step."""


class Death:
    """End of the process at its step."""

    def __init__(self, step: str, number: signal.Signals) -> None:
        self.reached: set[str] = set()
        self._step = step
        self._number = number

    def at(self, step: str) -> None:
        first = step not in self.reached
        self.reached.add(step)
        if first and step == self._step:
            os.kill(os.getpid(), self._number)

    def around(
        self, owner: type, name: str, *, before: Named | None = None, after: Named | None = None
    ) -> None:
        """Wrap an async method to end before or after its step."""
        method = getattr(owner, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            if before is not None:
                self.at(before(*arguments, **named))
            result = await method(*arguments, **named)
            if after is not None:
                self.at(after(*arguments, **named))
            return result

        setattr(owner, name, call)


def arm(step: str, number: signal.Signals = signal.SIGKILL) -> None:
    death = Death(step, number)

    def copying(_: TopicCopy, *, at_once: bool = False) -> str:
        return "fenced" if at_once else "begun"

    def refreshed(_: ClusterMetadata) -> str:
        return "refreshed" if "committed" in death.reached else ""

    def reported(_: follower.MigrationFollower, state: str, reason: str = "") -> str:
        return f"told {state}"

    death.around(TopicCopy, "catch_up", before=copying, after=lambda *_, **__: "copied")
    death.around(TopicCopy, "renew", after=lambda *_: "tail copied")
    death.around(MigrationPart, "commit", after=lambda *_: "committed")
    death.around(ClusterMetadata, "refresh", after=refreshed)
    death.around(DisklessPlane, "open_migration", after=lambda *_: "opened")
    death.around(follower.MigrationFollower, "_report", after=reported)
    death.around(follower.MigrationFollower, "_finish", before=lambda *_: "over")
    death.around(leader.MigrationLeader, "_ready", after=lambda *_: "all ready")
    death.around(leader.MigrationLeader, "_fenced", after=lambda *_: "all fenced")


def fence_for(seconds: float) -> None:
    for module in (leader, follower, participant):
        setattr(module, "SWITCH_FENCE_SECONDS", seconds)  # noqa: B010  (a constant, by its name)


if __name__ == "__main__":
    wanted, _, more = sys.argv.pop(1).partition(",")
    name, _, limit = more.partition(",")
    arm(wanted, signal.Signals[name or "SIGKILL"])
    if limit:
        fence_for(float(limit))
    main()
