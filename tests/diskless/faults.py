"""Stores and planes that fail in the ways in which remote ones do, as a test or dice say."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Literal, TypeVar

from penstock.base.errors import PenstockError
from penstock.control import ControlUnavailable, MemoryControlPlane
from penstock.control.values.diskless import CommitAnswer, ObjectCommit
from penstock.objects import MemoryStore, ObjectInfo, ObjectStore, StoreUnavailable
from penstock.objects.port import Buffer

T = TypeVar("T")

Fault = Literal["fine", "fails", "lands", "hangs", "late", "truncated"]
"""A call works; fails without effect; takes effect and fails; never ends; fails and takes effect
later; leaves half of the bytes and fails.
"""


class FaultyStore:
    """A store whose PUTs and deletions meet the faults of a script, then those of dice."""

    def __init__(
        self, inner: ObjectStore, script: Sequence[Fault] = (), dice: Random | None = None
    ) -> None:
        self.inner = inner
        self.script = deque(script)
        self.dice = dice
        self.deletions_fail: list[Fault] = []
        self.puts: list[str] = []
        self.late: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self.forever = asyncio.Event()

    def _fault(self) -> Fault:
        if self.script:
            return self.script.popleft()
        if self.dice is None or self.dice.random() < 0.6:
            return "fine"
        return self.dice.choice(("fails", "lands", "hangs", "late", "truncated"))

    async def put(self, key: str, pieces: Sequence[Buffer]) -> None:
        self.puts.append(key)
        fault = self._fault()
        if fault == "truncated":
            data = b"".join(pieces)
            await self.inner.put(key, [data[: len(data) // 2]])
        if fault in ("fine", "lands"):
            await self.inner.put(key, pieces)
        if fault == "hangs":
            await self.forever.wait()
        if fault == "late":
            data = b"".join(pieces)
            self.late.append(lambda: self.inner.put(key, [data]))
        if fault != "fine":
            raise StoreUnavailable(f"PUT {key}: {fault}")

    async def land(self) -> None:
        """Let late PUTs take effect."""
        late, self.late = self.late, []
        for put in late:
            await put()

    async def upload(self, key: str, pieces: AsyncIterator[Buffer]) -> int:
        gathered = [bytes(piece) async for piece in pieces]
        await self.put(key, gathered)
        return sum(map(len, gathered))

    async def get(self, key: str, start: int, size_bytes: int) -> memoryview:
        return await self.inner.get(key, start, size_bytes)

    async def head(self, key: str) -> ObjectInfo:
        return await self.inner.head(key)

    async def delete(self, keys: Sequence[str]) -> None:
        fault = self.deletions_fail.pop(0) if self.deletions_fail else "fine"
        if fault == "lands":
            await self.inner.delete(keys)
        elif fault == "truncated":
            await self.inner.delete(keys[: len(keys) // 2])
        else:
            assert fault in ("fine", "fails")
        if fault != "fine":
            raise StoreUnavailable(f"DELETE of {len(keys)} objects: {fault}")
        await self.inner.delete(keys)

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        return self.inner.list(prefix, after=after)

    async def close(self) -> None:
        await self.inner.close()


class FaultyPlane(MemoryControlPlane):
    """A plane whose commits meet faults: without effect, with it, or overtaken by the sweeper."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.script: deque[Literal["fine", "fails", "lands", "swept"]] = deque()
        self.dice: Random | None = None
        self.commits = 0

    async def plant(self, statement: str, *values: object) -> None:
        """Change rows behind the back of its own code."""
        await self._writer.run(lambda connection: connection.execute(statement, values))

    async def set_back(self, highest_object_id: int) -> None:
        """Forget that ids of objects above one were given out, as an old copy would."""
        await self.plant(
            "UPDATE counters SET value = ? WHERE name = 'highest_object_id'", highest_object_id
        )

    async def commit_object(self, commit: ObjectCommit) -> CommitAnswer:
        self.commits += 1
        await asyncio.sleep(0)
        fault: str = "fine"
        if self.script:
            fault = self.script.popleft()
        elif self.dice is not None and self.dice.random() < 0.4:
            fault = self.dice.choice(("fails", "lands", "swept"))
        if fault == "fails":
            raise ControlUnavailable("the commit was not made")
        if fault == "swept":
            await self.mark_for_deletion(
                pending_grace_ms=0, unreferenced_grace_ms=2**40, limit=10_000
            )
        answer = await super().commit_object(commit)
        if fault == "lands":
            raise ControlUnavailable("the answer was lost")
        return answer


class Crash(BaseException):
    """The process is gone."""


class CrashingPlane:
    """Passes calls on, and ends the process at the n-th: before it, or after its effect."""

    def __init__(self, inner: Any, steps: Steps) -> None:
        self._inner = inner
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if not asyncio.iscoroutinefunction(method):
            return method

        async def stepped(*arguments: Any, **options: Any) -> Any:
            return await self._steps.take(method(*arguments, **options))

        return stepped


class Steps:
    """Counts calls over all ports; the one that is doomed ends the process."""

    def __init__(self, doomed: int = -1, *, effect: bool = False) -> None:
        self.doomed = doomed
        self.effect = effect
        self.count = 0
        self.over = False

    async def take(self, call: Coroutine[Any, Any, T]) -> T:
        self.count += 1
        if self.count != self.doomed:
            return await call
        if self.effect:
            with suppress(PenstockError):  # its answer is lost
                await call
        else:
            call.close()
        self.over = True
        raise Crash


def memory_store(store: FaultyStore) -> MemoryStore:
    """The memory beneath."""
    assert isinstance(store.inner, MemoryStore)
    return store.inner
