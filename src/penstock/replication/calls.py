"""Calls to the control plane that combine requests about many partitions.

One call of a kind runs at a time. The next call has all requests that arrived meanwhile, up to the
number that the control plane accepts. A call that fails is repeated after a pause, whatever the
error, because its callers cannot proceed without the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Final, Generic, TypeVar

from penstock.base.errors import PenstockError
from penstock.base.pause import pause
from penstock.control.limits import EPOCH_PARTITIONS_PER_CALL_MAX

logger = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 0.2

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")


class Calls(Generic[K, V, A]):
    """Pending requests of one kind by key; a later one replaces an earlier one with the same key.

    Belongs to the event loop.
    """

    def __init__(
        self,
        what: str,
        ask: Callable[[Sequence[tuple[K, V]]], Awaitable[Sequence[A]]],
        answered: Callable[[K, V, A], None],
    ) -> None:
        """Create the calls.

        `ask` performs one call and returns the answers in the order of the requests. `answered`
        handles each answer. `what` names the requests in log messages.
        """
        self._what = what
        self._ask = ask
        self._answered = answered
        self._waiting: dict[K, V] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, key: K, value: V) -> None:
        """Add a request to the next call."""
        self._waiting[key] = value
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def drop(self, key: K) -> None:
        """Drop a request whose answer is not needed any more."""
        self._waiting.pop(key, None)

    async def close(self) -> None:
        """Cancel the running call, and start no others."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._waiting:
            asked = list(islice(self._waiting.items(), EPOCH_PARTITIONS_PER_CALL_MAX))
            for key, _ in asked:
                del self._waiting[key]
            try:
                answers = await self._ask(asked)
            except Exception as error:
                logger.warning(
                    "%s of %d partitions failed: %s", self._what, len(asked), error,
                    exc_info=not isinstance(error, PenstockError),
                )  # fmt: skip
                self._waiting = dict(asked) | self._waiting
                await pause(_AGAIN_SECONDS)
                continue
            for (key, value), answer in zip(asked, answers, strict=True):
                try:
                    self._answered(key, value, answer)
                except Exception:
                    logger.exception("%s: handling a response failed", self._what)
