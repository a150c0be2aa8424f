"""Which keys are loaded: each alone when it is asked for, and all that this broker owns in time.

| a round                                                       | a key                        |
|---------------------------------------------------------------|------------------------------|
| begins with an epoch of the cluster: nothing counts as loaded | is read first if asked for   |
| lists all keys, and reads those that nobody has asked for     | is read with others, in turn |
| is complete: what is not known here is not there              | needs no reading             |

One read is under way at a time, of many keys. What is known of a key already is compared with what
is found: where another broker has coordinated it meanwhile, unseen, its rows have other versions.

All keys are loaded, not only those that are asked for: sessions of members run, and groups are
listed, whether or not their members ever come back. A failure is told to whoever waits; the next
request goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.base.errors import PenstockError
from penstock.broker.coordination.limits import LOAD_KEYS_MAX, LOADS_WAITING_MAX
from penstock.broker.coordination.ownership import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    NotCoordinator,
)
from penstock.control import CoordinationRecord

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundKey:
    """What was found of a key."""

    rows: Sequence[CoordinationRecord] = ()
    has_offsets: bool = False


NOTHING = FoundKey()


class Source(Protocol):
    """Where keys are read from."""

    async def keys(self) -> Collection[str]:
        """All keys of which anything is stored."""
        ...

    async def read(self, keys: Sequence[str]) -> Mapping[str, FoundKey]:
        """What is stored of some keys; those of which nothing is are left out."""
        ...


class Loads:
    """The rounds of loading of one runtime; belongs to the event-loop thread."""

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
        """`take(key, found, mark)` takes a key over; its mark is what `before` gave of it."""
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
        self._asked: dict[str, asyncio.Future[None]] = {}
        self._all: asyncio.Future[None] | None = None
        self._waiting = 0
        self._task: asyncio.Task[None] | None = None

    def ready(self, key: str | None) -> bool:
        """Whether a key is loaded; all of them, for None."""
        return self._complete or key in self._loaded

    def begin(self) -> None:
        """Begin a round: what was loaded may have been another broker's since."""
        self._round += 1
        self._complete = False
        self._loaded.clear()
        self._backlog = None
        self.start()

    async def load(self, key: str | None) -> None:
        """Wait until a key is loaded, or all are.

        Raises:
            CoordinatorLoading: too many wait.
            NotCoordinator: the key is another broker's now.
            PenstockError: it cannot be read.
        """
        if self._waiting >= LOADS_WAITING_MAX:
            raise CoordinatorLoading(f"{self._waiting} requests wait for what is just loaded")
        self._waiting += 1
        try:
            while not self.ready(key):
                self.start()
                await asyncio.shield(self._future(key))
        finally:
            self._waiting -= 1

    async def stop(self) -> None:
        """Read no more. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _future(self, key: str | None) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        if key is None:
            if self._all is None:
                self._all = loop.create_future()
            return self._all
        future = self._asked.get(key)
        if future is None:
            future = self._asked[key] = loop.create_future()
        return future

    def start(self) -> None:
        """Go on with the round, if it is not complete. Idempotent."""
        if self._task is None and not self._complete:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while not self._complete:
                await self._step()
            for future in self._asked.values():
                _resolve(future)
            self._asked.clear()
            _resolve(self._all)
            self._all = None
        except PenstockError as error:
            logger.warning("what is coordinated here cannot be read: %s", error)
            self._fail(error)
        except BaseException:
            self._fail(CoordinatorNotAvailable("the coordinator reads no more"))
            raise
        finally:
            self._task = None

    async def _step(self) -> None:
        """Read what requests wait for, else go on with all."""
        if self._asked:
            await self._read(list(self._asked)[:LOAD_KEYS_MAX])
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
        number, marks = self._round, self._before(keys)
        found = await self._source.read(keys)
        if number != self._round:
            return
        for key in keys:
            future = self._asked.pop(key, None)
            if not self._owns(key):
                _resolve(future, NotCoordinator(f"another broker coordinates {key!r} now"))
            elif key not in self._loaded:
                self._take(key, found.get(key, NOTHING), marks.get(key))
                self._loaded.add(key)
            _resolve(future)

    def _fail(self, error: PenstockError) -> None:
        waiting, self._asked = list(self._asked.values()), {}
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
        future.exception()  # whoever waited may be gone
