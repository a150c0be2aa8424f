"""Work that cores want done, one piece after the other, so that no turn of the loop is long.

What is small is done in a turn of its own; the rest in a thread, beside which the loop goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from penstock.broker.coordination.core import Compute, Computed
from penstock.broker.coordination.limits import WORK_INLINE_MAX

logger = logging.getLogger(__name__)


class Worker:
    """Does the work of one core; there is one piece per key at most. Belongs to the loop."""

    def __init__(self, report: Callable[[Computed], None]) -> None:
        self._report = report
        self._wanted: deque[Compute] = deque()
        self._task: asyncio.Task[None] | None = None

    def put(self, wanted: Compute) -> None:
        self._wanted.append(wanted)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Begin nothing further, and wait for what is under way. Idempotent."""
        self._wanted.clear()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._wanted:
                wanted = self._wanted.popleft()
                self._report(await self._done(wanted))
        finally:
            self._task = None

    async def _done(self, wanted: Compute) -> Computed:
        key, ticket, work = wanted.key, wanted.ticket, wanted.work
        try:
            small = work.size <= WORK_INLINE_MAX
            result = work() if small else await asyncio.to_thread(work)
        except Exception as error:  # whoever waits is told, whatever is wrong here
            logger.exception("what was to be computed for %r failed", key)
            return Computed(key=key, ticket=ticket, reason=str(error) or type(error).__name__)
        return Computed(key=key, ticket=ticket, result=result)
