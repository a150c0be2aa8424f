"""Calls to the control plane about many partitions: one of a kind is under way, the next takes all
that is asked for meanwhile, in parts that the control plane takes.

A call that fails is made again after a while, whatever the error: who waits for its answer can do
nothing before it is there.
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
    """Pending calls: one value for each key, the last one counts. Belongs to the event loop."""

    def __init__(
        self,
        what: str,
        ask: Callable[[Sequence[tuple[K, V]]], Awaitable[Sequence[A]]],
        answered: Callable[[K, V, A], None],
    ) -> None:
        """`ask` makes a call, whose answers are in the order of what is asked; `what` names it."""
        self._what = what
        self._ask = ask
        self._answered = answered
        self._waiting: dict[K, V] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, key: K, value: V) -> None:
        """Ask for this, with the next call."""
        self._waiting[key] = value
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def drop(self, key: K) -> None:
        """Drop a call that has no caller any more."""
        self._waiting.pop(key, None)

    async def close(self) -> None:
        """Ask no more."""
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
