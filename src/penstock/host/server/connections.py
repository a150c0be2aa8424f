"""Connections of an agent: their credit, shared memory, timer and counters.

The HTTP front, metrics and status read from `Connections`. It neither opens nor accepts sockets.
The agent (`agent.py`) does, calls `tick`, and calls `drain` when it stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.base.buffers import ReceivePool
from penstock.base.errors import PenstockError, UnavailableError
from penstock.base.metrics import Sample
from penstock.base.system import Clock
from penstock.host.credits import NO_CREDIT, Credit
from penstock.host.port import ChunkSink, Introduction
from penstock.host.server.access_file import Access
from penstock.host.server.budget import CreditBudget
from penstock.host.server.connection import HostConnection, Introduced
from penstock.host.server.metrics import Totals
from penstock.host.server.receiving import Scratch
from penstock.host.server.settings import HostSettings
from penstock.host.server.sink_watch import SinkWatch, introduce
from penstock.host.server_machine import ServerState, ServerTerms
from penstock.host.sinks.counting import Counts
from penstock.wire.frames import HEADER_BYTES_MAX

logger = logging.getLogger(__name__)

HELD_UP_MS: Final = 1_000
"""Delay of a tick in milliseconds from which the whole process counts as stalled."""

RULES_LOOK_MS: Final = 1_000
"""Interval in milliseconds of checks whether the file of rules has changed."""

DRAIN_IDLE_MS: Final = 1_000
"""Time in milliseconds after which an idle connection is closed during a drain."""

REASON_DRAIN: Final = "the agent is stopping"

NAME_CHARS_SHOWN: Final = 100


class _ClientSlot(Struct, eq=False):
    """Connection with its credit."""

    credit: Credit = NO_CREDIT
    connection: HostConnection | None = None
    introduction: asyncio.Task[Introduction | PenstockError] | None = None
    idle_since_ms: float = 0.0


class Connections:
    """Open connections of one agent; it is the `ConnectionOwner` of each."""

    def __init__(
        self, settings: HostSettings, sink: ChunkSink, clock: Clock, access: Access
    ) -> None:
        self.settings = settings
        self.sink = sink
        self.access = access
        self.sink_watch = SinkWatch(sink)
        self.pool = ReceivePool(settings.queued_max_bytes)
        self.scratch = Scratch()
        self.serving = False
        """Whether new producers are accepted."""
        self.draining = False
        self.drain_by_ms = 0.0
        self.bytes_in = 0
        self.bytes_out = 0
        self.totals = Totals()
        self.budget = CreditBudget(
            whole=settings.credit,
            total_bytes=settings.credit_total_bytes,
            connections_max=settings.connections_max,
            floor_bytes=settings.frame_max_bytes,
        )
        self._clock = clock
        self._slots: dict[HostConnection, _ClientSlot] = {}
        self._next: _ClientSlot | None = None
        self._reported: set[str] = set()
        self._ticked_ms = 0.0
        self._rules_looked_ms = 0.0
        self._held_up = False
        self._wait: tuple[Callable[[], bool], asyncio.Future[None]] | None = None
        self._terms = ServerTerms(
            credit=NO_CREDIT,
            frame_bytes_max=min(settings.frame_max_bytes, sink.frame_bytes_max + HEADER_BYTES_MAX),
            idle_timeout_ms=settings.idle_timeout_ms,
            ping_interval_ms=settings.ping_interval_ms,
            retry_after_ms=settings.retry_after_ms,
            ring_bytes_max=settings.ring_max_bytes,
        )

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[HostConnection]:
        """Iterate over the open connections, oldest first; connections may end meanwhile."""
        return iter(tuple(self._slots))

    @property
    def sink_trouble(self) -> str:
        """Reason why the sink does not accept frames; empty if it does."""
        return self.sink_watch.trouble

    def samples(self) -> Iterator[Sample]:
        """Yield the agent's metrics."""
        machines = [connection.machine for connection in self]
        totals = self.totals.with_open(machines)
        totals.open = len(self)
        totals.rings = sum(machine.ring is not None for machine in machines)
        totals.rules_failing = self.access.failing
        totals.received_bytes = self.bytes_in
        totals.sent_bytes = self.bytes_out
        totals.granted_bytes = self.budget.granted_bytes
        in_use = [machine.window.taken for machine in machines]
        totals.credit_in_use = {
            dimension: sum(taken[index] for taken in in_use)
            for index, dimension in enumerate(("chunks", "events", "bytes"))
        }
        totals.retained_bytes = self.sink.retained_bytes
        totals.sink_accepts = not self.sink_trouble
        counts = getattr(self.sink, "counts", None)
        if isinstance(counts, Counts):
            totals.sink_frames = {
                "accepted": counts.accepted_frames,
                "failed": counts.failed_frames,
                "refused": counts.refused_frames,
            }
        totals.queued_bytes = self.pool.received_bytes
        totals.draining = self.draining
        return totals.samples()

    # Life

    def start(self) -> None:
        """Accept producers, and start periodic checks of the sink."""
        self.serving = True
        self.sink_watch.start()
        self._ticked_ms = self.now_ms()

    def drain(self) -> None:
        """Accept no more connections, and inform the present ones of the agent's deadline."""
        timeout_ms = self.settings.drain_timeout_ms
        self.drain_by_ms = self.now_ms() + timeout_ms
        self.serving = False
        self.draining = True
        for connection in self:
            connection.drain(timeout_ms, REASON_DRAIN)

    async def until(self, condition: Callable[[], bool], by_ms: float) -> None:
        """Wait until a condition is true, or until `by_ms`.

        The condition is checked at every tick, and when a connection ends.
        """
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wait = (lambda: condition() or self.now_ms() >= by_ms, over)
        self._look()
        await over
        self._wait = None

    def _look(self) -> None:
        if self._wait is not None:
            condition, over = self._wait
            if not over.done() and condition():
                over.set_result(None)

    # The clock

    def now_ms(self) -> float:
        return self._clock.monotonic() * 1000

    def tick(self) -> None:
        """Grant free credit, check for changed rules, and handle timeouts of connections."""
        now_ms = self.now_ms()
        for slot, more in self.budget.top_up():
            if isinstance(slot, _ClientSlot):
                self._widen(slot, more)
        if now_ms - self._rules_looked_ms >= RULES_LOOK_MS:
            self._rules_looked_ms = now_ms
            if self.access.changed():
                for connection in self:
                    connection.rules_changed()
        if not self._after_a_stall(now_ms):
            for connection in self:
                connection.tick(now_ms)
            if self.draining:
                self._close_idle(now_ms)
        self._look()

    def _after_a_stall(self, now_ms: float) -> bool:
        """Return whether this process was stalled until now, so that received bytes are still
        unread.

        In that case no connection counts as silent, slow or idle in this tick. It is never true for
        two ticks in a row, so a process that is always late still checks.
        """
        late = now_ms - self._ticked_ms >= HELD_UP_MS
        self._ticked_ms = now_ms
        self._held_up = late and not self._held_up
        return self._held_up

    def _close_idle(self, now_ms: float) -> None:
        for connection, slot in list(self._slots.items()):
            if not connection.idle:
                slot.idle_since_ms = 0.0
            elif not slot.idle_since_ms:
                slot.idle_since_ms = now_ms
            elif now_ms - slot.idle_since_ms >= DRAIN_IDLE_MS:
                connection.close(REASON_DRAIN)

    def _widen(self, slot: _ClientSlot, more: Credit) -> None:
        """Give a connection more credit; before HELLO the offer is increased instead."""
        connection = slot.connection
        if connection is None:
            return
        slot.credit = Credit(*(a + b for a, b in zip(slot.credit, more, strict=True)))
        machine = connection.machine
        if machine.state in (ServerState.HANDSHAKE, ServerState.INTRODUCING):
            machine.terms = replace(machine.terms, credit=slot.credit)
        else:
            machine.grant(more)  # goes out with the connection's tick

    # What connections ask for

    def terms(self, *, refused: bool) -> ServerTerms:
        if refused or len(self._slots) >= self.settings.connections_max:
            self._next = None
            return self._terms
        slot = self._next = _ClientSlot()
        slot.credit = self.budget.open(slot)
        return replace(self._terms, credit=slot.credit)

    def opened(self, connection: HostConnection) -> bool:
        self.totals.connections += 1
        slot, self._next = self._next, None
        if connection.refusal:
            self.totals.denied_connections += 1
            self.access.refused(connection.refusal)
            self._report("access", f"a producer is rejected: {connection.refusal}")
            return False
        if connection.machine.permission is not None:
            self.access.admitted(connection.machine.permission)
        if slot is None:
            self.totals.refused_connections += 1
            most = self.settings.connections_max
            self._report(
                "connections", f"there are more than {most} connections; raise host.connections.max"
            )
            return False
        slot.connection = connection
        self._slots[connection] = slot
        return True

    def closed(self, connection: HostConnection, lost_frames: int, reason: str) -> None:
        self.totals.ended(connection.machine, lost_frames)
        slot = self._slots.pop(connection, None)
        if slot is not None:
            self.budget.close(slot)
            if slot.introduction is not None:
                slot.introduction.cancel()
        logger.debug("a producer has disconnected: %s", reason)
        self._look()

    def rejected(self, connection: HostConnection, error: Exception) -> None:
        self.totals.violations += 1
        machine = connection.machine
        who = f"producer {machine.producer_id} {machine.client_name[:NAME_CHARS_SHOWN]!r}"
        self._report(
            type(error).__name__, f"{who} sent an invalid frame, or its connection failed: {error}"
        )

    def introduce(
        self, connection: HostConnection, producer_id: int, topics: Sequence[str], done: Introduced
    ) -> None:
        task = asyncio.get_running_loop().create_task(self._introduce(producer_id, topics))
        self._slots[connection].introduction = task

        def finish(task: asyncio.Task[Introduction | PenstockError]) -> None:
            if not task.cancelled():
                done(task.result())

        task.add_done_callback(finish)

    async def _introduce(
        self, producer_id: int, topics: Sequence[str]
    ) -> Introduction | PenstockError:
        try:
            return await introduce(self.sink, producer_id, topics)
        except PenstockError as error:
            return error
        except Exception:
            logger.exception("the sink %s failed to introduce a producer", self.sink.name)
            return UnavailableError("the agent failed on this producer; its log has the cause")

    def accept_failed(self, error: OSError) -> None:
        """Handle a connection that could not be accepted."""
        self.totals.accept_failures += 1
        self._report("accept", f"accepting pauses: {error}")

    def _report(self, kind: str, sentence: str) -> None:
        """Log the first event of its kind as a warning, and later ones at debug level."""
        first = kind not in self._reported
        self._reported.add(kind)
        logger.log(logging.WARNING if first else logging.DEBUG, "%s", sentence)
