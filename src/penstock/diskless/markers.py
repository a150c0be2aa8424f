"""Submission of transaction markers to the writer.

With transaction version 1, a producer keeps its epoch in its next transaction. A coordinator may
time a marker out, write it again, and let the producer continue. If the first marker takes effect
later, it must not end the producer's next transaction. A marker therefore has the partition's end
at the time of the decision. It is ignored if the producer's open transaction was verified after
that (`records.idempotence.check_marker`). The ends are looked up once for all markers that are
submitted in one turn of the event loop.
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
    """A partition that gets a marker. Its high watermark is current after a lookup."""

    @property
    def high_watermark(self) -> int: ...

    def place_marker(self, marker: Marker, *, now_ms: int, made_at: int, done: Done) -> None:
        """Submit a marker to the writer; raises PenstockError."""
        ...


class _Waiting(NamedTuple):
    partition: MarkedPartition
    marker: Marker
    now_ms: int
    done: Done


class MarkerWriter:
    """Looks up the ends of partitions, then submits their markers. Callers limit the number."""

    def __init__(self, look_up: Callable[[Sequence[Any]], Awaitable[None]]) -> None:
        self._look_up = look_up
        self._waiting: list[_Waiting] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def write(self, partition: MarkedPartition, marker: Marker, now_ms: int, done: Done) -> None:
        """Submit a marker, now or after a lookup. Errors are raised, or passed to `done`."""
        if marker.transaction_version >= EPOCH_VERSION:
            partition.place_marker(marker, now_ms=now_ms, made_at=OFFSET_MAX, done=done)
            return
        if not self._waiting:
            task = asyncio.get_running_loop().create_task(self._place())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._waiting.append(_Waiting(partition, marker, now_ms, done))

    async def stop(self) -> None:
        """Cancel pending submissions. Their coordinator writes the markers again. Idempotent."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _place(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            await self._look_up([submission.partition for submission in waiting])
        except PenstockError as error:
            for submission in waiting:
                submission.done(error)
            return
        for partition, marker, now_ms, done in waiting:
            try:
                made_at = partition.high_watermark
                partition.place_marker(marker, now_ms=now_ms, made_at=made_at, done=done)
            except PenstockError as error:
                done(error)
