"""`penstock serve` that kills itself, as `kill -9` would, at a step of a topic's switch.

python -m tests.broker.diskless.dying STEP serve …
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from penstock.apps.cli import main
from penstock.broker.state import BrokerState
from penstock.diskless.service import DisklessService
from penstock.diskless.switching import TopicCopy

STEPS = ("begun", "copied", "fenced", "tail copied", "committed", "refreshed")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(step: str) -> None:
    catch_up, renew = TopicCopy.catch_up, TopicCopy.renew
    commit, refresh = DisklessService.switch_topic, BrokerState.refresh
    committed: list[bool] = []

    async def dying_catch_up(copy: TopicCopy, *, at_once: bool = False) -> int:
        if step == ("fenced" if at_once else "begun"):
            die()
        size_bytes = await catch_up(copy, at_once=at_once)
        if step == "copied":
            die()
        return size_bytes

    async def dying_renew(copy: TopicCopy) -> None:
        await renew(copy)
        if step == "tail copied":
            die()

    async def dying_commit(service: DisklessService, *arguments: Any) -> None:
        await commit(service, *arguments)
        if step == "committed":
            die()
        committed.append(True)

    async def dying_refresh(state: BrokerState) -> None:
        await refresh(state)
        if step == "refreshed" and committed:
            die()

    setattr(TopicCopy, "catch_up", dying_catch_up)  # noqa: B010  (a method, by its name)
    setattr(TopicCopy, "renew", dying_renew)  # noqa: B010
    setattr(DisklessService, "switch_topic", dying_commit)  # noqa: B010
    setattr(BrokerState, "refresh", dying_refresh)  # noqa: B010


if __name__ == "__main__":
    arm(sys.argv.pop(1))
    main()
