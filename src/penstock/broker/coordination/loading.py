"""Loading of keys: on demand for requests, and in rounds for all keys of this broker.

| a round                                                          | a key                        |
|------------------------------------------------------------------|------------------------------|
| starts with each cluster epoch and invalidates all loaded keys   | is read first if requested   |
| lists all keys and reads those that are not loaded               | is read with others, in turn |
| is complete: a key that is not known here is not stored          | needs no further read        |

One read of many keys is under way at a time. Known keys are compared with the rows that are found:
if another broker has coordinated a key in between, its rows have other versions.

All keys are loaded, because sessions run and groups are listed even if members never return. A
failure fails the waiting requests; the next request resumes the round.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from penstock.base.errors import PenstockError
from penstock.broker.coordination.ownership import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    NotCoordinator,
)
from penstock.control import CoordinationRecord

LOAD_KEYS_MAX: Final = 500
LOADS_WAITING_MAX: Final = 10_000
"""Requests that may wait for the load of their key; more get COORDINATOR_LOAD_IN_PROGRESS."""

logger = logging.getLogger(__name__)


class FoundKey(Struct, frozen=True, kw_only=True):
    rows: Sequence[CoordinationRecord] = ()
    has_offsets: bool = False


NOTHING = FoundKey()


class Source(Protocol):
    async def keys(self) -> Collection[str]: ...

    async def read(self, keys: Sequence[str]) -> Mapping[str, FoundKey]:
        """Return the stored rows of some keys; keys that are not stored are absent."""
        ...


class Loads:
    """Rounds of loading of one runtime; belongs to the event-loop thread."""

    def __init__(
        self,
        source: Source,
        *,
        owns: Callable[[str], bool],
        known: Callable[[], Collection[str]],
        before: Callable[[Sequence[str]], Mapping[str, Any]],
        take: Callable[[str, FoundKey, Any], None],
        completed: Callable[[], None],
    ) -> None:
        """Take the callbacks of the runtime.

        `before(keys)` returns a version of each known key, and `take(key, found, version)` takes
        over the rows that were read after it.
        """
        self._source = source
        self._owns = owns
        self._known = known
        self._before = before
        self._take = take
        self._completed = completed
        self._round = 0
        self._complete = False
        self._loaded: set[str] = set()
        self._backlog: list[str] | None = None
        self._requested: dict[str, asyncio.Future[None]] = {}
        self._all: asyncio.Future[None] | None = None
        self._waiting = 0
        self._task: asyncio.Task[None] | None = None

    def ready(self, key: str | None) -> bool:
        """Whether a key is loaded; for None, whether all keys are."""
        return self._complete or key in self._loaded

    def begin(self) -> None:
        """Begin a new round: loaded keys may have changed their owner since."""
        self._round += 1
        self._complete = False
        self._loaded.clear()
        self._backlog = None
        self.start()

    async def load(self, key: str | None) -> None:
        """Wait until a key is loaded; for None, until all keys are.

        Raises:
            CoordinatorLoading: too many requests wait.
            NotCoordinator: the key belongs to another broker now.
            PenstockError: the key cannot be read.
        """
        if self._waiting >= LOADS_WAITING_MAX:
            raise CoordinatorLoading(
                f"{self._waiting} requests wait for keys that are being loaded"
            )
        self._waiting += 1
        try:
            while not self.ready(key):
                self.start()
                await asyncio.shield(self._future(key))
        finally:
            self._waiting -= 1

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _future(self, key: str | None) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        if key is None:
            if self._all is None:
                self._all = loop.create_future()
            return self._all
        future = self._requested.get(key)
        if future is None:
            future = self._requested[key] = loop.create_future()
        return future

    def start(self) -> None:
        """Resume the round unless it is complete. Idempotent."""
        if self._task is None and not self._complete:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while not self._complete:
                await self._step()
            for future in self._requested.values():
                _resolve(future)
            self._requested.clear()
            _resolve(self._all)
            self._all = None
        except PenstockError as error:
            logger.warning("the keys of this coordinator cannot be read: %s", error)
            self._fail(error)
        except BaseException:
            self._fail(CoordinatorNotAvailable("the coordinator stopped loading"))
            raise
        finally:
            self._task = None

    async def _step(self) -> None:
        if self._requested:
            await self._read(list(self._requested)[:LOAD_KEYS_MAX])
        elif self._backlog is None:
            number = self._round
            listed = await self._source.keys()
            if number == self._round:
                left = {*listed, *self._known()} - self._loaded
                self._backlog = sorted(filter(self._owns, left), reverse=True)
        elif self._backlog:
            backlog, keys = self._backlog, self._backlog[-LOAD_KEYS_MAX:]
            await self._read([key for key in keys if key not in self._loaded])
            del backlog[-len(keys) :]
        else:
            self._complete = True
            self._loaded.clear()
            self._completed()

    async def _read(self, keys: Sequence[str]) -> None:
        number, versions = self._round, self._before(keys)
        found = await self._source.read(keys)
        if number != self._round:
            return
        for key in keys:
            future = self._requested.pop(key, None)
            if not self._owns(key):
                _resolve(future, NotCoordinator(f"another broker coordinates {key!r} now"))
            elif key not in self._loaded:
                self._take(key, found.get(key, NOTHING), versions.get(key))
                self._loaded.add(key)
            _resolve(future)

    def _fail(self, error: PenstockError) -> None:
        waiting, self._requested = list(self._requested.values()), {}
        if self._all is not None:
            waiting.append(self._all)
            self._all = None
        for future in waiting:
            _resolve(future, error)


def _resolve(future: asyncio.Future[None] | None, error: PenstockError | None = None) -> None:
    if future is None or future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # retrieved, in case no request waits any more
