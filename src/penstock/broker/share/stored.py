"""Share partition in memory, with its stored row.

One save stores all decisions of an event-loop turn; decisions that are made while a save is under
way share the next save. A response waits for its save. If a save fails, or is rejected because
another broker has changed the row, the object is closed, because its state may be wrong. The next
request reads the row again.
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
    """Changes of a share partition were not stored, or the outcome is unknown."""

    code: ClassVar[str] = "coordinator_not_available"


class StoredShare:
    """Share partition in memory, and its saves. Belongs to the event loop."""

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
        """Bytes per record in the last read; 0 before any."""
        self.timer = Timer(lambda: expired(self))
        self._rows = rows
        self._saver = saver
        self._on_lost = on_lost
        self._current: asyncio.Future[None] | None = None
        self._next: asyncio.Future[None] | None = None

    @property
    def saving(self) -> bool:
        return self._current is not None or self._next is not None

    def store(self) -> asyncio.Future[None]:
        """Save all changes so far; return a future that ends with the save or its error.

        The future may be shared, so wrap it in `asyncio.shield`. Errors are PenstockErrors.
        """
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._next = loop.create_future()
            self._next.add_done_callback(_retrieve_error)
            if self.lost:
                loop.call_soon(self._fail, ShareStateLost(f"share partition {self.key} is closed"))
            elif self._current is None:
                loop.call_soon(self._send)
        return self._next

    async def all_stored(self) -> None:
        """Wait until all changes so far are durable.

        Raises:
            ShareStateLost: a save failed, or this object is closed.
        """
        waiting = self._next or self._current
        if waiting is not None:
            await asyncio.shield(waiting)
        if self.lost:
            raise ShareStateLost(f"share partition {self.key} is closed")

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
        reason = "another broker changed it" if isinstance(outcome, Lost) else outcome.reason
        error = ShareStateLost(f"share partition {self.key} was not saved: {reason}")
        if done is not None and not done.done():
            done.set_exception(error)
        self.close(error)

    def close(self, error: ShareStateLost) -> None:
        if not self.lost:
            self.lost = True
            self._on_lost(self)
        self._fail(error)

    def _fail(self, error: ShareStateLost) -> None:
        waiting, self._next = self._next, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)


def _retrieve_error(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
