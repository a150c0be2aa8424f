"""Connections of an agent: their credit, shared memory, timer and counters.

The HTTP front, metrics and status read from `Connections`. It neither opens nor accepts sockets.
The agent (`agent.py`) does, calls `tick`, and calls `drain` when it stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.base.buffers import ReceivePool
from penstock.base.errors import BugError, PenstockError, UnavailableError
from penstock.base.metrics import Metrics, Sample, counter, counters, gauge, gauges
from penstock.base.pause import pause
from penstock.base.system import Clock
from penstock.host import errors
from penstock.host.credits import NO_CREDIT, Credit
from penstock.host.errors import SinkUnavailable
from penstock.host.port import ChunkSink, Introduction
from penstock.host.server.access_file import Access
from penstock.host.server.connection import HostConnection, Introduced, Scratch
from penstock.host.server.settings import HostSettings
from penstock.host.server_machine import ServerMachine, ServerState, ServerTerms
from penstock.host.sinks.counting import Counts
from penstock.wire.frames import HEADER_BYTES_MAX

if TYPE_CHECKING:
    from penstock.host.server.tracing import AgentTraces

# Distribution of an agent's total credit over its connections, without I/O.
#
# Every connection gets a floor of credit, which is enough for the largest frame. It gets more from
# the total. As long as more connections may come, half of the total is reserved for them. A new
# connection gets the whole credit per connection while there is plenty, and otherwise at most half
# of the free credit. Granted credit cannot be withdrawn; it ends with its connection. When
# connections end, `top_up` distributes the free credit evenly over those that have less than the
# whole.
#
# With very many connections, the floors alone exceed the total. Then two other limits bound the
# memory: the sink accepts no more than the total and fails other frames as retryable, and receive
# buffers have a limit.
#
# The budget counts payload bytes, because they need the memory. Chunk slots and events are granted
# in proportion, so that a small share of bytes does not allow many tiny chunks.
#
# Source: `host-ipc.txt`, three-dimensional backpressure; max-min fairness.


STEP_BYTES_MIN: Final = 64 << 10
"""Minimum bytes of a CREDIT_UPDATE, unless it completes the connection's whole credit."""


class CreditBudget:
    """Distribution of an agent's total credit over its connections."""

    def __init__(
        self, *, whole: Credit, total_bytes: int, connections_max: int, floor_bytes: int
    ) -> None:
        self.whole = whole
        self.total_bytes = total_bytes
        self.connections_max = connections_max
        self.granted_bytes = 0
        self._floor_bytes = max(1, min(whole.payload_bytes, floor_bytes))
        self._grants: dict[Hashable, Credit] = {}
        self._wanting: dict[Hashable, None] = {}

    def __len__(self) -> int:
        return len(self._grants)

    @property
    def floor(self) -> Credit:
        """Credit that every connection gets at least."""
        return self._portion(self._floor_bytes)

    @property
    def free_bytes(self) -> int:
        """Bytes of credit that connections may get beyond their floor.

        A part of the total is reserved for the floors of connections that may still be opened.
        """
        to_come = self._floor_bytes * max(0, self.connections_max - len(self._grants))
        reserved = min(self.total_bytes // 2, to_come)
        return max(0, self.total_bytes - self.granted_bytes - reserved)

    def open(self, key: Hashable) -> Credit:
        """Grant a new connection its credit.

        Raises:
            BugError: the connection already has credit, or there are `connections_max` connections.
        """
        if key in self._grants or len(self._grants) >= self.connections_max:
            raise BugError(
                f"cannot grant credit to {key!r}: it has some already, or there are"
                f" {len(self._grants)} of at most {self.connections_max} connections"
            )
        whole = self.whole.payload_bytes
        free = self.free_bytes
        size = whole if free >= 2 * whole else min(whole, max(self._floor_bytes, free // 2))
        granted = self._portion(size)
        self._grants[key] = granted
        self.granted_bytes += size
        if size < whole:
            self._wanting[key] = None
        return granted

    def close(self, key: Hashable) -> None:
        """Take back the credit of a connection, if it has any."""
        granted = self._grants.pop(key, None)
        self._wanting.pop(key, None)
        if granted is not None:
            self.granted_bytes -= granted.payload_bytes

    def top_up(self) -> list[tuple[Hashable, Credit]]:
        """Distribute free credit over connections that have less than the whole.

        Returns:
            The connections with their additional credit.
        """
        wanting = len(self._wanting)
        if not wanting:
            return []
        share = self.free_bytes // wanting
        grants: list[tuple[Hashable, Credit]] = []
        whole = self.whole.payload_bytes
        for key in list(self._wanting):
            had = self._grants[key]
            size = min(whole, had.payload_bytes + share)
            if size < whole and size - had.payload_bytes < STEP_BYTES_MIN:
                continue
            has = self._portion(size)
            self._grants[key] = has
            self.granted_bytes += size - had.payload_bytes
            if size == whole:
                del self._wanting[key]
            grants.append((key, Credit(*(a - b for a, b in zip(has, had, strict=True)))))
        return grants

    def _portion(self, size: int) -> Credit:
        """Return a credit of `size` payload bytes; slots and events in proportion, rounded up."""
        slots, events, whole = self.whole
        return Credit(-(-slots * size // whole), -(-events * size // whole), size)


class Totals(Metrics, prefix="penstock_host_"):
    """Metrics of one agent since its start; counters of open connections are added when read."""

    open = gauge("connections", "Connected producers.")
    rings = gauge("ring_connections", "Producers that use a ring of shared memory.")
    connections = counter("connections_opened_total", "Connections accepted.")
    refused_connections = counter(
        "connections_refused_total", "Connections over host.connections.max."
    )
    denied_connections = counter(
        "connections_denied_total", "Connections of processes for which host.acl.file has no rule."
    )
    rules_failing = gauge(
        "acl_file_failing",
        "1 while the present host.acl.file cannot be used and former rules apply.",
    )
    accept_failures = counter(
        "accept_failures_total",
        "Times that accepting paused, because file descriptors or memory ran out.",
    )
    received_bytes = counter(
        "received_bytes_total",
        "Bytes received over sockets, without payloads in rings.",
    )
    sent_bytes = counter("sent_bytes_total", "Bytes sent over sockets: answers and control frames.")
    frames = counter("frames_total", "Frames received over sockets, of all types.")
    accepted_chunks = counter("accepted_chunks_total", "Chunks accepted over sockets.")
    accepted_events = counter("accepted_events_total", "Events accepted over sockets.")
    accepted_bytes = counter("accepted_bytes_total", "Payload bytes accepted over sockets.")
    failed_frames = counter(
        "failed_frames_total", "Frames answered with FAILED, including frames without credit."
    )
    overdrafts = counter("overdrafts_total", "Frames that exceeded the producer's credit.")
    violations = counter("violations_total", "Connections ended because of an invalid frame.")
    lost_frames = counter(
        "lost_on_disconnect_frames_total", "Frames whose connection ended before their verdict."
    )
    granted_bytes = gauge("credit_granted_bytes", "Payload bytes granted as credit.")
    credit_in_use: dict[str, int] = gauges(
        "credit_in_use", "Credit taken by unanswered frames, by dimension.", "dimension"
    )
    retained_bytes = gauge("sink_retained_bytes", "Payload bytes that the sink holds.")
    sink_accepts = gauge("sink_accepts", "1 while the sink accepts frames, by its last check.")
    sink_frames: dict[str, int] = counters(
        "sink_frames_total",
        "Frames answered by the sink, including those from HTTP: accepted, failed"
        " (retryable) or rejected permanently.",
        "verdict",
    )
    queued_bytes = gauge(
        "queued_bytes", "Received bytes of frames that are incomplete or unanswered."
    )
    draining = gauge("draining", "1 while the agent is draining.")

    def ended(self, machine: ServerMachine, lost_frames: int = 0) -> None:
        """Add the counters of an ended connection."""
        self.lost_frames += lost_frames
        self.frames += machine.frames
        self.accepted_chunks += machine.accepted_chunks
        self.accepted_events += machine.accepted_events
        self.accepted_bytes += machine.accepted_bytes
        self.failed_frames += machine.failed_frames
        self.overdrafts += machine.overdrafts

    def with_open(self, machines: Iterable[ServerMachine]) -> Totals:
        """Return a copy that includes the counters of open connections."""
        copied = copy(self)
        for machine in machines:
            copied.ended(machine)
        return copied


# Periodic checks of an agent's sink, and requests about producers, with time limits.
#
# A health check must be answered at once, even while the sink hangs. So the sink is checked
# periodically, by one check at a time with a time limit, and callers get the result of the last
# check. A check that hangs is not repeated: the next period waits for the same check.


INTRODUCE_MS: Final = 4_000
"""Maximum time in milliseconds for the sink's answer about a producer.

It is shorter than a client's limit for the answer to HELLO, so the client gets the reason.
"""
SINK_CHECK_MS: Final = 3_000
"""Maximum time in milliseconds for a check of the sink."""
SINK_CHECK_PAUSE_MS: Final = 1_000
"""Pause in milliseconds between two checks of the sink."""

logger = logging.getLogger(__name__)

_SECONDS: Final = SINK_CHECK_MS / 1000
_PAUSE_SECONDS: Final = SINK_CHECK_PAUSE_MS / 1000


class SinkWatch:
    """Periodic checks of one sink, so that health checks are answered at once, from `trouble`."""

    def __init__(self, sink: ChunkSink) -> None:
        self._sink = sink
        self._task: asyncio.Task[None] | None = None
        self._check: asyncio.Task[None] | None = None  # also longer than one look
        self.trouble = ""
        """Reason why the sink does not accept frames; empty if it does."""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        tasks = {task for task in (self._task, self._check) if task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _watch(self) -> None:
        while True:
            before, self.trouble = self.trouble, await self._look()
            if self.trouble and not before:
                logger.warning("the sink does not accept data: %s", self.trouble)
            elif before and not self.trouble:
                logger.warning("the sink accepts data again")
            await pause(_PAUSE_SECONDS)

    async def _look(self) -> str:
        if self._check is None:
            self._check = asyncio.get_running_loop().create_task(self._sink.check())
        done, _ = await asyncio.wait({self._check}, timeout=_SECONDS)
        if not done:
            return str(late(self._sink, SINK_CHECK_MS))
        check, self._check = self._check, None
        try:
            check.result()
        except PenstockError as error:
            return str(error)[: errors.REASON_CHARS_MAX]
        except Exception:
            logger.exception("the sink %s could not be checked", self._sink.name)
            return f"the {self._sink.name} sink could not be checked; the agent's log has the cause"
        return ""


async def introduce(sink: ChunkSink, producer_id: int, topics: Sequence[str]) -> Introduction:
    """Introduce a producer to the sink.

    Raises:
        SinkUnavailable: the sink does not respond in time.
        PenstockError: as `ChunkSink.introduce`.
    """
    try:
        async with asyncio.timeout(INTRODUCE_MS / 1000):
            return await sink.introduce(producer_id, topics)
    except TimeoutError:
        raise late(sink, INTRODUCE_MS) from None


def late(sink: ChunkSink, timeout_ms: int) -> SinkUnavailable:
    """Return the error for a sink that has not responded in time."""
    on = f": no answer from {sink.stands_on}" if sink.stands_on else ""
    return SinkUnavailable(f"the {sink.name} sink did not answer within {timeout_ms} ms{on}")


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
        self,
        settings: HostSettings,
        sink: ChunkSink,
        clock: Clock,
        access: Access,
        traces: AgentTraces | None = None,
    ) -> None:
        self.settings = settings
        self.traces = traces
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

    @property
    def sink_frames(self) -> dict[str, int]:
        """Numbers of frames that the sink has answered, by verdict; empty if it counts none."""
        counts = getattr(self.sink, "counts", None)
        if not isinstance(counts, Counts):
            return {}
        return {
            "accepted": counts.accepted_frames,
            "failed": counts.failed_frames,
            "refused": counts.refused_frames,
        }

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
        totals.sink_frames = self.sink_frames
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
        """Return whether this process was stalled until now, for example by a paused machine.

        Bytes may then be unread that arrived in time. So in this tick, no connection counts as
        silent, slow or idle. It is never true for two ticks in a row, so a process that is always
        late still checks.
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
        """Give a connection more credit.

        Before HELLO is answered, the credit offered in that answer is increased; afterwards it is
        granted by a frame.
        """
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
