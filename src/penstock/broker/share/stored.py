"""One share partition of a broker: what is decided in memory, and the row that makes it true.

What was decided in one turn of the loop is one save, and while a save is on its way the next
gathers. Nothing is told to anybody before it is saved. A save that fails, or that the control plane
refuses because another broker has saved the partition since, is the end of this object: what it
had in memory may not be true, and the partition is read again by whoever asks next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar, Final

from penstock.base.errors import RetriableError
from penstock.broker.coordination.core import Save, Saved
from penstock.broker.coordination.rows import KeyRows
from penstock.broker.coordination.saving import Lost, Outcome, Pending, Saver
from penstock.broker.coordination.timers import Timer
from penstock.broker.share.partition import SharePartition
from penstock.broker.share.record import encode_state
from penstock.control import KEY_ROW

KIND: Final = "share"


class ShareStateLost(RetriableError):
    """What was decided could not be stored, so it is not true, or not known to be."""

    code: ClassVar[str] = "coordinator_not_available"


class StoredShare:
    """See the module's text. Belongs to the event loop."""

    __slots__ = (
        "_current", "_next", "_on_lost", "_rows", "_saver", "key", "leader_epoch", "lost",
        "record_bytes", "share", "state_epoch", "timer",
    )  # fmt: skip

    def __init__(
        self,
        share: SharePartition,
        rows: KeyRows,
        *,
        state_epoch: int,
        leader_epoch: int,
        saver: Saver,
        expired: Callable[[StoredShare], None],
        on_lost: Callable[[StoredShare], None],
    ) -> None:
        self.share = share
        self.key = rows.key
        self.state_epoch = state_epoch
        self.leader_epoch = leader_epoch
        self.lost = False
        self.record_bytes = 0.0
        """What a record took in the last read; 0: not known."""
        self.timer = Timer(lambda: expired(self))
        self._rows = rows
        self._saver = saver
        self._on_lost = on_lost
        self._current: asyncio.Future[None] | None = None
        self._next: asyncio.Future[None] | None = None

    @property
    def saving(self) -> bool:
        """Whether anything waits to be saved."""
        return self._current is not None or self._next is not None

    def store(self) -> asyncio.Future[None]:
        """Save what is decided by now. The future ends when it is durable, or with an error.

        It may be shared: `asyncio.shield` it. Errors are PenstockErrors.
        """
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._next = loop.create_future()
            self._next.add_done_callback(_looked_at)
            if self.lost:
                loop.call_soon(self._fail, ShareStateLost(f"{self.key} is no longer held here"))
            elif self._current is None:
                loop.call_soon(self._send)
        return self._next

    async def all_stored(self) -> None:
        """Wait until all that is decided by now, and was to be stored, is durable.

        Raises:
            ShareStateLost: it is not.
        """
        waiting = self._next or self._current
        if waiting is not None:
            await asyncio.shield(waiting)
        if self.lost:
            raise ShareStateLost(f"{self.key} is no longer held here")

    def _send(self) -> None:
        if self._next is None or self._current is not None or self.lost:
            return
        self._current, self._next = self._next, None
        row = encode_state(self.state_epoch, self.leader_epoch, self.share.start, self.share.runs)
        save = Save(key=self.key, rows={KEY_ROW: row})
        self._saver.put(Pending(KIND, self._rows, save, self._reported))

    def _reported(self, outcome: Outcome) -> None:
        done, self._current = self._current, None
        if isinstance(outcome, Saved):
            if done is not None and not done.done():
                done.set_result(None)
            self._send()
            return
        reason = "another broker has it" if isinstance(outcome, Lost) else outcome.reason
        error = ShareStateLost(f"{self.key} was not saved: {reason}")
        if done is not None and not done.done():
            done.set_exception(error)
        self.give_up(error)

    def give_up(self, error: ShareStateLost) -> None:
        """Hold the partition no more; idempotent."""
        if not self.lost:
            self.lost = True
            self._on_lost(self)
        self._fail(error)

    def _fail(self, error: ShareStateLost) -> None:
        waiting, self._next = self._next, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)


def _looked_at(future: asyncio.Future[None]) -> None:
    """Nobody may wait for a save any more when it fails."""
    if not future.cancelled():
        future.exception()
