"""Stories of one compacted diskless partition: brokers compact it, in any order of their steps.

Two brokers compact and one consolidates, while a producer appends, readers go on with extents that
they have looked up, and a sweeper takes what nobody refers to. Every call to plane or store waits
for its turn, which a seed draws; a broker may end at any of them, with the call's effect or not.
After every change it must hold:

- what extents refer to is in the store, and they have every offset;
- what is left is as it was sent; the newest record of a key is there, but for a tombstone whose
  time is over, and then no older record of its key is;
- below the clean offset no key has two records.

A reader sees what was there when it looked, or that an object is gone.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from typing import Any, TypeVar

from tests.diskless.compaction.ledger import DELETE_RETENTION_MS, TARGET, Ledger
from tests.diskless.consolidation.bed import Bed, seen
from tests.diskless.consolidation.conftest import furnished
from tests.diskless.faults import Crash
from tests.diskless.world import SeededRandomness
from tests.records.reference import read
from tests.storage.batches import FakeClock

from penstock.base.errors import PenstockError
from penstock.control import DisklessPlane, MemoryControlPlane
from penstock.diskless.compaction import Compactor
from penstock.diskless.consolidation import Consolidator
from penstock.diskless.settings import DisklessSettings
from penstock.objects import MemoryStore, ObjectNotFound

T = TypeVar("T")
APPENDS = 14
ROUNDS = 8
_HOPS = 40
"""Turns of the loop after which everybody waits for a turn of ours."""
_STEPS_MAX = 5_000
_CHANGES = frozenset({"put", "swap_extents", "note_clean", "delete"})


class Violation(Exception):
    """What must hold does not."""


class Plant:
    """What a planted bug may replace; nothing here is wrong."""

    compactor: type[Compactor] = Compactor
    delete_retention_ms = DELETE_RETENTION_MS

    def plane(self, plane: DisklessPlane) -> Any:
        return plane


class _Inline(ThreadPoolExecutor):
    """Has what is given to threads done at once, so that a seed decides all."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class _Gated:
    """A plane or a store whose calls wait for their turn; the process may end at one."""

    def __init__(self, story: Story, inner: Any, *, dies: bool) -> None:
        self._story = story
        self._inner = inner
        self._dies = dies

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if not asyncio.iscoroutinefunction(method):
            return method

        async def gated(*arguments: Any, **options: Any) -> Any:
            story = self._story
            await story.turn(name)
            dies = self._dies and story.random.random() < story.deadly
            effect = not dies or story.random.random() < 0.5
            answer = await method(*arguments, **options) if effect else None
            if effect and name in _CHANGES:
                await story.check()
            if dies:
                story.seen["died"] += 1
                raise Crash
            return answer

        return gated


class Story:
    """One seed. `seen` counts what has happened."""

    def __init__(self, seed: int, plant: Plant) -> None:
        self.random = Random(seed)
        self.plant = plant
        self.clock = FakeClock()
        self.seen: Counter[str] = Counter()
        self.deadly = self.random.choice((0.0, 0.02, 0.08))
        self.trace = hashlib.sha256()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def turn(self, name: str) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((name, future))
        await future

    async def tell(self) -> None:
        """The whole story.

        Raises:
            Violation: what must hold does not.
        """
        asyncio.get_running_loop().set_default_executor(_Inline(1))
        dice = SeededRandomness(self.random.getrandbits(32))
        plane = MemoryControlPlane(clock=self.clock, randomness=dice)
        self.bed = Bed(await furnished(plane), MemoryStore(clock=self.clock))
        self.ledger = Ledger(self.bed, self.clock)
        for work in (self._append(), self._read(), self._sweep(), self._consolidate()):
            self._begin(work)
        for number in range(2):
            self._begin(self._compact(number))
        steps = 0
        while self._tasks:
            steps += 1
            if steps > _STEPS_MAX:
                raise Violation(f"no end after {_STEPS_MAX} steps")
            for _ in range(_HOPS):
                await asyncio.sleep(0)
            for task in [task for task in self._tasks if task.done()]:
                self._tasks.discard(task)
                task.result()
            self._waiting = [waiting for waiting in self._waiting if not waiting[1].done()]
            if self._waiting:
                place = self.random.randrange(len(self._waiting))
                name, future = self._waiting.pop(place)
                self.trace.update(f"{name} {place} ".encode())
                future.set_result(None)
        await self._end()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.ensure_future(work))

    async def _end(self) -> None:
        """In peace all becomes clean, and tombstones go."""
        self.deadly = 0.0
        job = Compactor(
            _settings(self.random), plane=self.bed.plane, store=self.bed.store,
            clock=self.clock, randomness=SeededRandomness(0), targets=lambda: [TARGET],
            pause=self._pause,
        )  # fmt: skip
        for number in range(3):
            await job.compact()
            self.clock.ms += DELETE_RETENTION_MS + 1
            await self.ledger.send((b"end", b"%d" % number))
        await job.compact()
        await self.check()
        left = set(await self.ledger.left())
        alive = {
            at for at in self.ledger.newest().values() if self.ledger.sent[at].value is not None
        }
        if left != alive:
            raise Violation(f"records {sorted(left ^ alive)} are there and should not, or are not")

    async def check(self) -> None:
        """What must hold after every change."""
        try:
            await self.ledger.check()
        except (AssertionError, PenstockError) as error:
            raise Violation(f"{type(error).__name__}: {error}") from error

    # -- who takes part

    async def _append(self) -> None:
        for _ in range(APPENDS):
            await self.turn("append")
            await self.ledger.send_some(self.random, keys=5, batches=self.random.randint(1, 3))
            self.clock.ms += self.random.choice((0, 500, DELETE_RETENTION_MS + 1))
            self.seen["append"] += 1

    def _gated(self, inner: Any, *, dies: bool) -> Any:
        return _Gated(self, inner, dies=dies)

    async def _compact(self, number: int) -> None:
        target = TARGET._replace(delete_retention_ms=self.plant.delete_retention_ms)
        for _ in range(ROUNDS):
            await self.turn("round")
            plane = self._gated(self.plant.plane(self.bed.plane), dies=True)
            job = self.plant.compactor(
                _settings(self.random), plane=plane,
                store=self._gated(self.bed.store, dies=True),
                clock=self.clock, randomness=SeededRandomness(number), targets=lambda: [target],
                pause=self._pause,
            )  # fmt: skip
            await self._unless_dead(job.compact())
            self.seen["passes"] += job.counters.passes
            self.seen["races"] += job.counters.races
            self.seen["segments"] += job.counters.segments

    async def _consolidate(self) -> None:
        for _ in range(2):
            await self.turn("consolidation")
            job = Consolidator(
                _settings(self.random), plane=self._gated(self.bed.plane, dies=True),
                store=self._gated(self.bed.store, dies=True),
                clock=self.clock, randomness=SeededRandomness(7), all_ages=True, pause=self._pause,
            )  # fmt: skip
            await self._unless_dead(job.consolidate())
            self.seen["consolidated"] += job.counters.segments

    async def _unless_dead(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except Crash:
            return
        except BaseExceptionGroup as group:
            rest = group.split(Crash)[1]
            if rest is not None:
                raise rest from None

    async def _read(self) -> None:
        for _ in range(2 * ROUNDS):
            await self.turn("look")
            extents, end = await self.bed.extents(), len(self.ledger.sent)
            try:
                data = await seen(self._gated(self.bed.store, dies=False), extents)
            except ObjectNotFound:
                self.seen["gone under a reader"] += 1
                continue
            self.seen["read"] += 1
            try:
                self.ledger.judge({record.offset: record for record in read(data)}, end)
            except AssertionError as error:
                raise Violation(f"a reader: {error}") from error

    async def _sweep(self) -> None:
        store = self._gated(self.bed.store, dies=False)
        for _ in range(ROUNDS):
            await self.turn("sweep")
            marked = await self.bed.plane.mark_for_deletion(
                pending_grace_ms=10**12, unreferenced_grace_ms=0, limit=100
            )
            if marked:
                await store.delete([item.key for item in marked])
                await self.bed.plane.forget_objects([item.object_id for item in marked])
                self.seen["swept"] += len(marked)

    async def _pause(self, seconds: float) -> None:
        await self.turn("pause")


def _settings(random: Random) -> DisklessSettings:
    settings = DisklessSettings(
        consolidation_min_age_ms=0, consolidation_bytes_per_second=0, consolidation_min_extents=2
    )
    # Below what may be set, so that a pass has many groups.
    object.__setattr__(settings, "consolidation_segment_bytes", random.choice((200, 700, 1 << 20)))
    return settings


def run(seed: int, plant: str = "") -> Story:
    """One story; `plant` names a bug that the checks have to find.

    Raises:
        Violation: what must hold does not.
    """
    from sim.diskless.compaction_plants import PLANTS

    story = Story(seed, PLANTS[plant]() if plant else Plant())
    asyncio.run(story.tell())
    return story
