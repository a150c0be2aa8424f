"""Markers on their way to the writer: those of version 1 say where the partition ended before.

In version 1 of transactions a producer's next one has the epoch of the last. A marker whose commit
takes effect long after its coordinator has given it up, has written another, and has let the
producer go on must not end the next one. So the partition is looked up once its transaction is
decided: what the producer writes for the next is verified behind that
(`records.idempotence.check_marker`).

All that are written in one turn of the loop are looked up together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.base.errors import PenstockError
from penstock.records.aborted import OFFSET_MAX
from penstock.records.transactions import EPOCH_VERSION

if TYPE_CHECKING:
    from penstock.records.appends import Done
    from penstock.records.transactions import Marker


class MarkedPartition(Protocol):
    """A partition that a marker goes to; it knows where it ends once it was looked up."""

    @property
    def high_watermark(self) -> int: ...

    def place_marker(self, marker: Marker, *, now_ms: int, made_at: int, done: Done) -> None:
        """Hand it to the writer, or raise PenstockError."""
        ...


class _Waiting(NamedTuple):
    partition: MarkedPartition
    marker: Marker
    now_ms: int
    done: Done


class MarkerWriter:
    """See the module's text. Belongs to the event loop; who writes markers bounds how many wait."""

    def __init__(self, look_up: Callable[[Sequence[Any]], Awaitable[None]]) -> None:
        self._look_up = look_up
        self._waiting: list[_Waiting] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def write(self, partition: MarkedPartition, marker: Marker, now_ms: int, done: Done) -> None:
        """Have a marker placed; raises PenstockError, or `done` is told of it."""
        if marker.transaction_version >= EPOCH_VERSION:
            partition.place_marker(marker, now_ms=now_ms, made_at=OFFSET_MAX, done=done)
            return
        if not self._waiting:
            task = asyncio.get_running_loop().create_task(self._place())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._waiting.append(_Waiting(partition, marker, now_ms, done))

    async def stop(self) -> None:
        """Place no more: another broker's coordinator does. Idempotent."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _place(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            await self._look_up([one.partition for one in waiting])
        except PenstockError as error:
            for one in waiting:
                one.done(error)
            return
        for partition, marker, now_ms, done in waiting:
            try:
                made_at = partition.high_watermark
                partition.place_marker(marker, now_ms=now_ms, made_at=made_at, done=done)
            except PenstockError as error:
                done(error)
