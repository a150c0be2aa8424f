"""Periodic checks of an agent's sink, and requests about producers, with time limits.

A health check must be answered at once, even while the sink hangs. So the sink is checked
periodically, by one check at a time with a time limit, and callers get the result of the last
check. A check that hangs is not repeated: the next period waits for the same check.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.host import limits
from penstock.host.errors import SinkUnavailable
from penstock.host.port import ChunkSink, Introduction

INTRODUCE_MS: Final = 4_000
"""Maximum time in milliseconds for the sink's answer about a producer.

It is shorter than a client's limit for the answer to HELLO, so the client gets the reason.
"""
SINK_CHECK_MS: Final = 3_000
"""Maximum time in milliseconds for a check of the sink."""
SINK_CHECK_PAUSE_MS: Final = 1_000
"""Pause in milliseconds between two checks of the sink."""

logger = logging.getLogger(__name__)

_SECONDS: Final = SINK_CHECK_MS / 1000
_PAUSE_SECONDS: Final = SINK_CHECK_PAUSE_MS / 1000


class SinkWatch:
    """Periodic checks of one sink, from `start` to `stop`."""

    def __init__(self, sink: ChunkSink) -> None:
        self._sink = sink
        self._task: asyncio.Task[None] | None = None
        self._check: asyncio.Task[None] | None = None  # also longer than one look
        self.trouble = ""
        """Reason why the sink does not accept frames; empty if it does."""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        tasks = {task for task in (self._task, self._check) if task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _watch(self) -> None:
        while True:
            before, self.trouble = self.trouble, await self._look()
            if self.trouble and not before:
                logger.warning("the sink does not accept data: %s", self.trouble)
            elif before and not self.trouble:
                logger.warning("the sink accepts data again")
            await pause(_PAUSE_SECONDS)

    async def _look(self) -> str:
        if self._check is None:
            self._check = asyncio.get_running_loop().create_task(self._sink.check())
        done, _ = await asyncio.wait({self._check}, timeout=_SECONDS)
        if not done:
            return str(late(self._sink, SINK_CHECK_MS))
        check, self._check = self._check, None
        try:
            check.result()
        except PenstockError as error:
            return str(error)[: limits.REASON_CHARS_MAX]
        except Exception:
            logger.exception("the sink %s could not be checked", self._sink.name)
            return f"the {self._sink.name} sink could not be checked; the agent's log has the cause"
        return ""


async def introduce(sink: ChunkSink, producer_id: int, topics: Sequence[str]) -> Introduction:
    """Introduce a producer to the sink.

    Raises:
        SinkUnavailable: the sink does not respond in time.
        PenstockError: as `ChunkSink.introduce`.
    """
    try:
        async with asyncio.timeout(INTRODUCE_MS / 1000):
            return await sink.introduce(producer_id, topics)
    except TimeoutError:
        raise late(sink, INTRODUCE_MS) from None


def late(sink: ChunkSink, timeout_ms: int) -> SinkUnavailable:
    """Return the error for a sink that has not responded in time."""
    on = f": no answer from {sink.stands_on}" if sink.stands_on else ""
    return SinkUnavailable(f"the {sink.name} sink did not answer within {timeout_ms} ms{on}")
