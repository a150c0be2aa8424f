"""Worker that runs the computations of a core one at a time: large ones in a thread."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.broker.coordination.core import Compute, Computed

WORK_INLINE_MAX: Final = 2_000
"""Size of the largest computation that runs on the event loop: a few milliseconds."""

logger = logging.getLogger(__name__)


class Worker:
    def __init__(self, report: Callable[[Computed], None]) -> None:
        self._report = report
        self._queue: deque[Compute] = deque()
        self._task: asyncio.Task[None] | None = None

    def put(self, compute: Compute) -> None:
        self._queue.append(compute)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Discard queued computations and wait for the running one. Idempotent."""
        self._queue.clear()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._queue:
                compute = self._queue.popleft()
                self._report(await self._done(compute))
        finally:
            self._task = None

    async def _done(self, compute: Compute) -> Computed:
        key, ticket, work = compute.key, compute.ticket, compute.work
        try:
            small = work.size <= WORK_INLINE_MAX
            result = work() if small else await asyncio.to_thread(work)
        except Exception as error:  # the core must get an outcome in any case
            logger.exception("the computation for %r failed", key)
            return Computed(key=key, ticket=ticket, reason=str(error) or type(error).__name__)
        return Computed(key=key, ticket=ticket, result=result)
