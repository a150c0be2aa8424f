"""Transaction markers on their way to the writer.

In version 1 of transactions a producer keeps its epoch in the next transaction. A marker that takes
effect after its coordinator has timed it out, written another and released the producer must not
end that next transaction. So a marker records the partition's end at the decision; later batches
are verified after it (`records.idempotence.check_marker`). The partitions of all markers of one
turn of the event loop are looked up together.
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
    """A partition that a marker is written to; its end is known after a lookup."""

    @property
    def high_watermark(self) -> int: ...

    def place_marker(self, marker: Marker, *, now_ms: int, made_at: int, done: Done) -> None:
        """Submit the marker to the writer; raises PenstockError."""
        ...


class _Waiting(NamedTuple):
    partition: MarkedPartition
    marker: Marker
    now_ms: int
    done: Done


class MarkerWriter:
    """Looks partitions up, then submits their markers. Callers bound the number of markers."""

    def __init__(self, look_up: Callable[[Sequence[Any]], Awaitable[None]]) -> None:
        self._look_up = look_up
        self._waiting: list[_Waiting] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def write(self, partition: MarkedPartition, marker: Marker, now_ms: int, done: Done) -> None:
        """Submit a marker; errors are raised, or passed to `done`."""
        if marker.transaction_version >= EPOCH_VERSION:
            partition.place_marker(marker, now_ms=now_ms, made_at=OFFSET_MAX, done=done)
            return
        if not self._waiting:
            task = asyncio.get_running_loop().create_task(self._place())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._waiting.append(_Waiting(partition, marker, now_ms, done))

    async def stop(self) -> None:
        """Stop submitting; another coordinator takes over. Idempotent."""
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
