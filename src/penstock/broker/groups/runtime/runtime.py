"""Runtime of a core: loads, fences and saves its keys, holds requests, and runs timers.

A request becomes an event of the core (`broker/groups/runtime/core.py`). The runtime performs the
effects that the core returns, in order: it completes requests with responses, and passes saves to
the saver (`broker/groups/runtime/saving.py`) and computations to the `Worker`. Saver and worker
report back; only then does the core send the responses that depend on them.

Each key belongs to one registered broker (`broker/groups/runtime/saving.py`). When brokers join or
leave, the runtime drops the keys of other brokers and loads its own keys again (`Loads` in the same
file). A request waits only until its own key is loaded. A key that another broker owned meanwhile
is read again, because its rows have other versions.

Source: Kafka's `CoordinatorRuntime`, which keeps its state in an internal log; see decision 0022.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from penstock.base.errors import CorruptError
from penstock.base.system import Clock
from penstock.broker.groups.runtime.core import (
    NO_TOKEN,
    Act,
    Compute,
    Computed,
    Core,
    Effect,
    Refused,
    Reply,
    Stored,
    Tick,
)
from penstock.broker.groups.runtime.saving import (
    Cluster,
    CoordinatorNotAvailable,
    FoundKey,
    KeyRows,
    Loads,
    Lost,
    NotCoordinator,
    Outcome,
    Ownership,
    Pending,
    RecordPlane,
    Saver,
    Source,
)

# Ticker of a core: calls the core at its deadlines.
#
# Its time starts at the wall clock and advances with the monotonic clock. Setting the wall clock
# thus expires no session. After the process was suspended, queued requests are read before any
# session expires.


HELD_UP_SECONDS: Final = 2.0
"""Delay of a timer which shows that the event loop was blocked. Received data is then read before
clients count as slow or disconnected."""

CATCH_UP_MS: Final = 1000
"""Time to read members' requests after the process was suspended, before any session expires."""


class Ticker:
    def __init__(self, clock: Clock, tick: Callable[[], None]) -> None:
        self._monotonic = clock.monotonic
        self._wall_offset_ms = clock.now_ms() - int(clock.monotonic() * 1000)
        self._tick = tick
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_ms = 0
        self._not_before_ms = 0

    def now_ms(self) -> int:
        return int(self._monotonic() * 1000) + self._wall_offset_ms

    def arm(self, deadline_ms: int | None) -> None:
        """Schedule a tick at a deadline, unless an earlier tick is scheduled already."""
        if deadline_ms is None:
            return
        deadline_ms = max(deadline_ms, self._not_before_ms)
        if self._timer is not None:
            if self._deadline_ms <= deadline_ms:
                return
            self._timer.cancel()
        delay_seconds = max(0, deadline_ms - self.now_ms()) / 1000
        self._deadline_ms = deadline_ms
        self._timer = asyncio.get_running_loop().call_later(delay_seconds, self.ring)

    def ring(self) -> None:
        """Tick; if the process was suspended, first wait until queued requests have been read.

        Otherwise members whose heartbeats are in that queue would expire.
        """
        self._timer = None
        now_ms = self.now_ms()
        if now_ms - self._deadline_ms < HELD_UP_SECONDS * 1000:
            self._tick()
        else:
            self._not_before_ms = now_ms + CATCH_UP_MS
            self.arm(self._not_before_ms)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


WORK_INLINE_MAX: Final = 2_000
"""Largest `Work.size` that runs on the event loop; it takes a few milliseconds."""


class Worker:
    """Worker that runs the computations of a core, one at a time; large ones run in a thread."""

    def __init__(self, report: Callable[[Computed], None]) -> None:
        self._report = report
        self._queue: deque[Compute] = deque()
        self._task: asyncio.Task[None] | None = None

    def put(self, compute: Compute) -> None:
        self._queue.append(compute)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Discard queued computations and wait for the running one. Idempotent."""
        self._queue.clear()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._queue:
                compute = self._queue.popleft()
                self._report(await self._done(compute))
        finally:
            self._task = None

    async def _done(self, compute: Compute) -> Computed:
        key, ticket, work = compute.key, compute.ticket, compute.work
        try:
            small = work.size <= WORK_INLINE_MAX
            result = work() if small else await asyncio.to_thread(work)
        except Exception as error:  # the core must get an outcome in any case
            logger.exception("the computation for %r failed", key)
            return Computed(key=key, ticket=ticket, reason=str(error) or type(error).__name__)
        return Computed(key=key, ticket=ticket, result=result)


logger = logging.getLogger(__name__)


class Runtime:
    """Runtime of one core; belongs to the event-loop thread."""

    def __init__(
        self,
        kind: str,
        make_core: Callable[[], Core],
        *,
        source: Source,
        saver: Saver,
        ownership: Ownership,
        clock: Clock,
        loaded: Callable[[], None],
        act: Callable[[Act], None] | None = None,
    ) -> None:
        """Create the runtime.

        `make_core` is called at first use, `loaded` each time when all keys are loaded. `act`
        performs the `Act` effects, if the core has any.
        """
        self._kind = kind
        self._make_core = make_core
        self._made: Core | None = None
        self._saver = saver
        self._act = act
        self._ownership = ownership
        self._cluster_epoch = -1
        self._stored: dict[str, KeyRows] = {}
        self._loads = Loads(
            source,
            owns=ownership.owns,
            known=self._known,
            before=self._versions,
            take=self._take,
            completed=loaded,
        )
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._next_token = NO_TOKEN
        self._stopped = False
        self.suspended = False
        self.ticker = Ticker(clock, partial(self.handle, Tick()))
        self._worker = Worker(self._computed)

    @property
    def stopped(self) -> bool:
        return self._stopped

    # Requests

    async def call(self, event: Any, key: str | None) -> Any:
        """Pass a request to the core once its key is loaded, and return the response.

        A `key` of None means all keys.

        Raises:
            PenstockError: the key cannot be read, or belongs to another broker.
        """
        if not self._loads.ready(key) and self._refusal() is None:
            self.start()
            await self._loads.load(key)
        refused = self._refusal()
        if refused is not None:
            return refused
        self._next_token = token = self._next_token + 1
        effects = self.core.handle(event, self.ticker.now_ms(), token)
        if len(effects) == 1 and isinstance(effects[0], Reply) and effects[0].token == token:
            self.ticker.arm(self.core.next_deadline_ms())
            return effects[0].response
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[token] = answer
        try:
            self._perform(effects)
            return await answer
        finally:
            self._waiting.pop(token, None)

    def ask(self, event: Any, key: str) -> Any | None:
        """Return the core's response to a query without waiting; None if the key is not loaded."""
        if not self._loads.ready(key):
            return None
        refused = self._refusal()
        if refused is not None:
            return refused
        self._next_token = token = self._next_token + 1
        answers = [
            effect.response
            for effect in self.core.handle(event, self.ticker.now_ms(), token)
            if isinstance(effect, Reply) and effect.token == token
        ]
        return answers[0] if answers else None

    def _refusal(self) -> Refused | None:
        if not (self._stopped or self.suspended):
            return None
        reason = "is stopping" if self._stopped else "cannot reach the control plane"
        return Refused(error=CoordinatorNotAvailable.code, message=f"the broker {reason}")

    @property
    def core(self) -> Core:
        if self._made is None:
            self._made = self._make_core()
            self._cluster_epoch = self._ownership.cluster_epoch
        return self._made

    def handle(self, event: Any, token: int = NO_TOKEN) -> None:
        self._perform(self.core.handle(event, self.ticker.now_ms(), token))

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                answer = self._waiting.get(effect.token)
                if answer is not None and not answer.done():
                    answer.set_result(effect.response)
            elif isinstance(effect, Act):
                if self._act is not None:
                    self._act(effect)
            elif isinstance(effect, Compute):
                self._worker.put(effect)
            else:
                rows = self._stored.setdefault(effect.key, KeyRows(effect.key))
                report = partial(self._reported, rows)
                self._saver.put(Pending(self._kind, rows, effect, report))
        if not self._stopped:
            self.ticker.arm(self.core.next_deadline_ms())

    def _computed(self, computed: Computed) -> None:
        if not self._stopped:
            self.handle(computed)

    def _reported(self, rows: KeyRows, outcome: Outcome) -> None:
        key = rows.key
        if self._stored.get(key) is not rows:
            return
        if isinstance(outcome, Lost):
            if outcome.found is None or not self._ownership.owns(key):
                self._forget(key)
            else:
                self._replace(key, FoundKey(rows=outcome.found))
            return
        if not rows.is_stored and not rows.saving:
            del self._stored[key]
        self.handle(outcome)

    # Keys

    def start(self) -> None:
        """Begin to load keys, so that sessions of members can expire. Idempotent."""
        self.core  # noqa: B018  (creates the core)
        self._loads.start()

    async def load_all(self) -> None:
        self.start()
        await self._loads.load(None)

    def image_changed(self) -> None:
        """If brokers joined or left, drop the keys of other brokers and load those of this one."""
        epoch = self._ownership.cluster_epoch
        if self._made is None or self._stopped or epoch == self._cluster_epoch:
            return
        self._cluster_epoch = epoch
        for key in self._known():
            if not self._ownership.owns(key):
                self._forget(key)
        self._loads.begin()

    def _known(self) -> Collection[str]:
        return {*self.core.keys(), *self._stored}

    def _forget(self, key: str) -> None:
        self._stored.pop(key, None)
        self._perform(self.core.forget(key))

    def _versions(self, keys: Sequence[str]) -> Mapping[str, object]:
        """Return the versions of known keys before a read.

        `_take` ignores the rows of keys whose version changes during the read.
        """
        return {key: self._stored[key].version for key in keys if key in self._stored}

    def _take(self, key: str, found: FoundKey, version: object) -> None:
        rows = self._stored.get(key)
        changed = (None if rows is None else rows.version) != version
        if rows is None:
            same = changed or not found.rows
        else:
            same = changed or rows.saving > 0 or rows.are(found.rows)
        if not same:
            self._replace(key, found)
        elif found.has_offsets:
            stored = Stored(key=key, rows=None, has_offsets=True)
            self._perform(self.core.load(stored, self.ticker.now_ms()))

    def _replace(self, key: str, found: FoundKey) -> None:
        self._stored.pop(key, None)
        if found.rows:
            self._stored[key] = KeyRows(key, found.rows)
        stored = Stored(
            key=key,
            rows={row.member: row.value for row in found.rows},
            has_offsets=found.has_offsets,
        )
        try:
            effects = self.core.load(stored, self.ticker.now_ms())
        except CorruptError as error:
            logger.error("%s", error)
            effects = self.core.forget(key)
        self._perform(effects)

    async def stop(self) -> None:
        """Refuse waiting requests and stop timers. Idempotent."""
        self._stopped = True
        self.ticker.stop()
        refused = Refused(error=NotCoordinator.code, message="the broker is stopping")
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result(refused)
        await self._worker.stop()
        await self._loads.stop()


class Coordinator:
    """Coordinator of one kind of keys: group ids, or transactional ids. Runs on the event loop."""

    def __init__(
        self,
        kind: str,
        make_core: Callable[[], Core],
        *,
        node_id: int,
        cluster: Cluster,
        control: RecordPlane,
        source: Source,
        clock: Clock,
        loaded: Callable[[], None],
        act: Callable[[Act], None] | None = None,
    ) -> None:
        self.ownership = Ownership(node_id, cluster)
        self.check_owner = self.ownership.check
        self._saver = Saver(control, self.ownership)
        self.runtime = Runtime(
            kind,
            make_core,
            source=source,
            saver=self._saver,
            ownership=self.ownership,
            clock=clock,
            loaded=loaded,
            act=act,
        )

    def image_changed(self) -> None:
        self.runtime.image_changed()

    def start(self) -> None:
        self.runtime.start()

    async def stop(self) -> None:
        """Refuse waiting requests, finish saves under way, and cancel timers. Idempotent."""
        await self.runtime.stop()
        await self._saver.finish()

    @property
    def suspended(self) -> bool:
        return self.runtime.suspended

    def suspend(self) -> None:
        """Refuse requests until `resume`.

        Called while this broker cannot renew its registration: other brokers may own its keys now.
        """
        self.runtime.suspended = True

    def resume(self) -> None:
        self.runtime.suspended = False
