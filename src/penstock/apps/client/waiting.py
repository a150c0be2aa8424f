"""Lines on stderr that report a command's long waits and their causes.

    client.waits() ──┐
                     ├─> Silence.look(now, …) ──> a line, or none      every LOOK_SECONDS
    progress, idle ──┘

`Silence` decides and has no clock. A wait is a failed call that is being retried, a call without an
answer, or a lack of new data (`idle`). It begins when `look` first sees it, and ends with the next
progress. The first line is due after `first_seconds`, later lines every `every_seconds`. A command
that may be idle uses long polls; these count as unanswered only after half of `first_seconds`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.base.errors import PenstockError
from penstock.base.system import SYSTEM_CLOCK
from penstock.client.client import Client, Waits
from penstock.client.errors import BrokerBusy, BrokerFailed, TimedOut
from penstock.client.replicas import SHORT_CALLS
from penstock.client.session import Unanswered

LOOK_SECONDS: Final = 0.1
STOP_SECONDS: Final = 5.0


def named_brokers(ids: Sequence[int]) -> str:
    """Return the brokers' ids as words: `broker 1`, or `brokers 1, 2 and 3`."""
    first, last = ", ".join(map(str, sorted(ids)[:-1])), max(ids)
    return f"brokers {first} and {last}" if first else f"broker {last}"


@dataclass(slots=True, kw_only=True)
class Silence:
    """Core that decides when a line about a wait is due, and what it says.

    `subject` is the command's object, as `topic orders`. `idle` is the cause to report if no call
    is outstanding, as `no new records`; it is empty for commands that always wait for a call.
    """

    first_seconds: float
    every_seconds: float
    subject: str = ""
    idle: str = ""
    _progress: int = field(default=0, init=False)
    _asked: dict[Unanswered, float] = field(default_factory=dict, init=False)
    _since: float | None = field(default=None, init=False)
    _said: float | None = field(default=None, init=False)

    def look(self, now: float, waits: Waits, progress: int) -> str | None:
        """Return the line that is due at `now` (seconds), or None.

        `waits` are the client's outstanding calls and its last failure; `progress` is any number
        that grows with progress, such as the records read.
        """
        known, self._asked = self._asked, {}
        for wait in waits.unanswered:
            self._asked[wait] = known.get(wait, now)
        patience = self.first_seconds / 2 if self.idle else 0.0
        stuck = [wait for wait in known if wait in self._asked and now - known[wait] >= patience]
        moved, self._progress = progress != self._progress, progress
        cause = waits.trouble or self.idle
        if not waits.trouble and stuck:
            stuck.sort(key=lambda wait: (wait.where, wait.number))
            cause = ", ".join(f"{wait.where} does not answer {wait.call}" for wait in stuck)
        if moved or not cause:
            self._since = self._said = None
            return None
        if self._since is None:
            self._since = now
        last, pause = (
            (self._since, self.first_seconds)
            if self._said is None
            else (self._said, self.every_seconds)
        )
        if now - last < pause:
            return None
        self._said = now
        about = f" ({self.subject})" if self.subject else ""
        return f"% waiting for {now - self._since:.0f} s{about}: {cause}"

    def progressed(self) -> None:
        """End the current wait after progress; the next line is due after another long wait."""
        self._since = self._said = None
        self._asked = {}


@contextmanager
def working(
    task: str, *, first_seconds: float, every_seconds: float, say: Callable[[str], None]
) -> Iterator[None]:
    """Report `task` while a block runs: first after `first_seconds`, then every `every_seconds`."""
    ended = threading.Event()

    def watch() -> None:
        seconds, pause = 0.0, first_seconds
        while not ended.wait(pause):
            seconds, pause = seconds + pause, every_seconds
            say(f"% {task} ({seconds:.0f} s so far)")

    thread = threading.Thread(target=watch, name="penstock-working", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(STOP_SECONDS)


class WatchedClient(Client):
    """Client that reports long waits for brokers on stderr, while its `with` block runs.

    A thread writes the lines. With each it also asks the brokers for unavailable dependencies and
    reports these. Errors of brokers that leave the block get these dependencies as notes. The
    command increases `progress`, and sets `busy` while it waits for something else than a broker,
    such as input.
    """

    def __init__(
        self, bootstrap: str, *, silence: Silence, say: Callable[[str], None], **options: Any
    ) -> None:
        super().__init__(bootstrap, **options)
        self._bootstrap = bootstrap
        self._security = options.get("security")
        self.silence = silence
        self.progress = 0
        self.busy = False
        self._say = say
        self._stop = threading.Event()
        self._watch = threading.Thread(target=self._run, name="penstock-waiting", daemon=True)

    def __enter__(self) -> WatchedClient:
        self._watch.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
        for error in raised:
            if isinstance(error, (BrokerBusy, BrokerFailed, TimedOut)):
                for cause in self.causes():
                    error.add_note(cause)

    def causes(self) -> list[str]:
        """Return the unavailable dependencies that brokers report, each with the brokers' ids."""
        try:
            with Client(self._bootstrap, security=self._security, **SHORT_CALLS) as client:
                states = client.broker_states().values()
        except PenstockError:
            return []
        brokers: dict[str, list[int]] = {}
        for state in states:
            if state.unavailable:
                brokers.setdefault(state.unavailable, []).append(state.node.node_id)
        return [f"{named_brokers(ids)}: {cause}" for cause, ids in brokers.items()]

    def close(self) -> None:
        self._stop.set()
        if self._watch.is_alive():
            self._watch.join(STOP_SECONDS)
        super().close()

    def _run(self) -> None:
        while not self._stop.wait(min(LOOK_SECONDS, self.silence.first_seconds)):
            if self.busy:
                self.silence.progressed()
                continue
            line = self.silence.look(SYSTEM_CLOCK.monotonic(), self.waits(), self.progress)
            if line is not None:
                self._say(line)
                idle = self.silence.idle
                for cause in () if idle and line.endswith(idle) else self.causes():
                    self._say(f"% {cause}")
