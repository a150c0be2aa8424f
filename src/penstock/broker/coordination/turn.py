"""Shared state of the cores of all kinds of groups: timers, time, and the effects of one event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.broker.coordination.core import Effect, Refused, Reply
from penstock.broker.coordination.timers import Timers


class Turn:
    """Effects and time of the event being handled, and the timers of all groups."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.effects: list[Effect] = []
        self.now_ms = 0
        self.count: Callable[[], int] = _none
        """Number of groups of all kinds."""

    def begin(self, now_ms: int) -> list[Effect]:
        """Begin to handle an event; return the list to which its effects are added."""
        self.now_ms = now_ms
        self.effects = []
        return self.effects

    def reply(self, token: int, response: Any) -> None:
        self.effects.append(Reply(token, response))

    def refuse(self, token: int, error: str, message: str = "", *, member_id: str = "") -> None:
        self.reply(token, Refused(error=error, message=message, member_id=member_id))


def _none() -> int:
    return 0
