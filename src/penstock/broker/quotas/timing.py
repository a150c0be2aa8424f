"""Measurement of the event-loop time of a coroutine: its own turns, without its waiting time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Timed(Generic[T]):
    """Awaitable that runs a coroutine and charges the duration of each turn."""

    def __init__(
        self,
        work: Coroutine[Any, Any, T],
        *,
        charge: Callable[[float], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._work = work
        self._charge = charge
        self._monotonic = monotonic

    def __await__(self) -> Generator[Any, Any, T]:
        work = self._work
        step: Callable[[], Any] = partial(work.send, None)
        while True:
            began = self._monotonic()
            try:
                waits_for = step()
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._charge(self._monotonic() - began)
            try:
                sent = yield waits_for
            except BaseException as error:
                step = partial(work.throw, error)
            else:
                step = partial(work.send, sent)
