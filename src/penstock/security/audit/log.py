"""Audit log of a process: passes events as lines to its sinks and counts dropped ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.base.metrics import Metrics, Sample, counters
from penstock.security.audit.events import AuditEvent, EventKind, cut, line_of

if TYPE_CHECKING:
    from penstock.base.system import Clock

KINDS: Final[Sequence[EventKind]] = ("authentication", "denial", "change")


class Line(NamedTuple):
    """Audit event as a line, with its time and principal (may be empty)."""

    text: bytes
    time_ms: int
    principal: bytes


class LineSink(Protocol):
    """Sink that accepts audit lines within a bound."""

    name: str
    dropped: int
    """Lines that were not written: the bound was reached, or writing failed."""

    def offer(self, line: Line) -> None:
        """Accept or drop one line, without blocking."""

    def close(self) -> None:
        """Write the accepted lines, as far as possible within a moment."""


class AuditMetrics(Metrics, prefix="penstock_audit_"):
    events: dict[str, int] = counters(
        "events_total",
        "Authentications, denials and administrative changes that were audited.",
        "event",
    )
    dropped: dict[str, int] = counters(
        "dropped_total",
        "Audit events that were not written: too many waited, or they could not be written.",
        "sink",
    )


class AuditLog:
    def __init__(
        self, sinks: Iterable[LineSink], *, clock: Clock, origin: dict[str, int | str]
    ) -> None:
        """`origin` is added to every line: the broker or agent."""
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
