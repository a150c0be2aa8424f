"""Audit log of a process: converts events to lines, passes them to sinks, and counts them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.base.metrics import Metrics, Sample, counters
from penstock.security.audit.events import AuditEvent, EventKind, cut, line_of

if TYPE_CHECKING:
    from penstock.base.system import Clock

KINDS: Final[Sequence[EventKind]] = ("authentication", "denial", "change")


class Line(NamedTuple):
    """Audit event as one line of JSON, with its time and its principal (may be empty)."""

    text: bytes
    time_ms: int
    principal: bytes


class LineSink(Protocol):
    """Sink for audit lines, with a limited queue."""

    name: str
    dropped: int
    """Number of lines that were dropped, because the queue was full or writing failed."""

    def offer(self, line: Line) -> None:
        """Queue a line, or drop it if the queue is full; never block."""

    def close(self) -> None:
        """Write the queued lines, as many as possible within a short timeout."""


class AuditMetrics(Metrics, prefix="penstock_audit_"):
    events: dict[str, int] = counters(
        "events_total",
        "Audit events: authentications, denials and administrative changes.",
        "event",
    )
    dropped: dict[str, int] = counters(
        "dropped_total",
        "Audit events that were dropped, because the queue was full or writing failed.",
        "sink",
    )


class AuditLog:
    def __init__(
        self, sinks: Iterable[LineSink], *, clock: Clock, origin: dict[str, int | str]
    ) -> None:
        """Create the log; `origin` identifies the broker or agent and is added to every line."""
        self._sinks = list(sinks)
        self._now_ms = clock.now_ms
        self._origin = origin
        self._metrics = AuditMetrics()
        self._metrics.events.update(dict.fromkeys(KINDS, 0))

    def record(self, event: AuditEvent) -> None:
        self._metrics.events[event.event] += 1
        if self._sinks:
            now_ms = self._now_ms()
            text = line_of(event, now_ms=now_ms, origin=self._origin)
            line = Line(text, now_ms, cut(event.principal).encode())
            for sink in self._sinks:
                sink.offer(line)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    def samples(self) -> Iterator[Sample]:
        self._metrics.dropped = {sink.name: sink.dropped for sink in self._sinks}
        return self._metrics.samples()
