"""Loading of a coordinator's keys: single keys for requests, and all keys of this broker in rounds.

1. A round begins with each cluster epoch. All keys count as not loaded.

2. The loader lists all stored keys, and reads those that this broker owns, many at a time. Keys for
which requests wait are read first.

3. When the round is complete, a key that the core does not have is not stored either. Requests then
need no further read.

Only one read is under way at a time. The rows that it finds are compared with those that the core
has: other versions mean that another broker has coordinated the key meanwhile.

All keys are loaded, not only requested ones, because sessions must expire and groups must be listed
even if their members never return. If a read fails, the waiting requests fail; the next request
resumes the round.
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
"""Maximum number of requests that wait for their key; more get COORDINATOR_LOAD_IN_PROGRESS."""

logger = logging.getLogger(__name__)


class FoundKey(Struct, frozen=True, kw_only=True):
    rows: Sequence[CoordinationRecord] = ()
    has_offsets: bool = False


NOTHING = FoundKey()


class Source(Protocol):
    async def keys(self) -> Collection[str]: ...

    async def read(self, keys: Sequence[str]) -> Mapping[str, FoundKey]:
        """Return the stored rows of the given keys; keys that are not stored are absent."""
        ...


class Loads:
    """Loader of the keys of one runtime; belongs to the event-loop thread."""

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
        """Create the loader with callbacks of the runtime.

        `owns(key)` returns whether this broker owns a key; `known()` returns the keys of the core.
        Before a read, `before(keys)` returns the version of each known key. After it,
        `take(key, found, version)` receives the rows that were read. `completed()` is called after
        each round.
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
        """Begin a new round, because other brokers may have owned the loaded keys."""
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
                f"{self._waiting} requests already wait for keys to be loaded; no more may wait"
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
