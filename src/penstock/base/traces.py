"""Traces: the W3C trace context of records, spans, and the sampling of new traces.

A context travels in two headers of a record or request, `traceparent` and `tracestate`:

    traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
                 version, trace id, id of the parent span, flags (01: sampled)

Only sampled contexts are used; for others nothing is recorded.

Source: W3C Trace Context, level 1.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from math import log
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from penstock.base.system import Clock, Randomness

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
TRACEPARENT_CHARS: Final = 55
TRACESTATE_CHARS_MAX: Final = 512
_SAMPLED: Final = 0x01
_ID_MASK: Final = (1 << 64) - 1
_ID_STEP: Final = 0x9E3779B97F4A7C15
"""Odd step between span ids of a process: they repeat after 2 ** 64 spans."""
_NEVER: Final = 1 << 62
EPOCH_SECONDS: Final = 60.0
"""Time after which the difference between the monotonic and the wall clock is read again."""
_NANOSECONDS: Final = 1_000_000_000
_SAMPLED_PARENT: Final = re.compile(
    r"(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]"
    r"[13579bdf](?:-.*)?",
    re.DOTALL,
)
"""Valid and sampled `traceparent`. Versions after 00 may be longer; version ff is invalid."""

SpanKind = Literal["internal", "server", "client", "producer", "consumer"]


class TraceContext(NamedTuple):
    """Sampled span of a trace: 16 bytes of the trace id, 8 bytes of the span id."""

    trace_id: bytes
    span_id: bytes
    state: str = ""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-01"


def parse_traceparent(text: str, state: str = "") -> TraceContext | None:
    """Return the context of a `traceparent`; None if it is invalid or not sampled."""
    found = _SAMPLED_PARENT.fullmatch(text)
    if found is None:
        return None
    trace_id, span_id = map(bytes.fromhex, found.groups())
    return TraceContext(trace_id, span_id, state[:TRACESTATE_CHARS_MAX])


class Span(Struct, frozen=True, kw_only=True):
    """Completed span. Times are nanoseconds since the epoch; `parent_id` is empty for a root."""

    name: str
    context: TraceContext
    parent_id: bytes
    kind: SpanKind
    start_ns: int
    end_ns: int
    attributes: Mapping[str, str | int] = {}
    links: tuple[TraceContext, ...] = ()
    error: str = ""


class Tracer:
    """Creates contexts and completed spans, and passes the spans to `record`.

    Spans with a parent are always recorded, because the parent is sampled. `begins` decides whether
    an event without a parent starts a new trace.
    """

    def __init__(
        self, record: Callable[[Span], None], *, clock: Clock, randomness: Randomness, ratio: float
    ) -> None:
        self._record = record
        self._bits = randomness.bits
        self._latest_id = randomness.bits(64)
        self._uniform = randomness.uniform
        self._ratio = ratio
        self._clock = clock
        self._epoch_ns = 0
        self._epoch_until = 0.0
        self._until_next = self._gap()

    def begins(self) -> bool:
        """Return whether a new trace begins here; true for the share `ratio` of calls."""
        self._until_next -= 1
        if self._until_next > 0:
            return False
        self._until_next = self._gap()
        return True

    def _gap(self) -> int:
        """Return a random number of calls of `begins` up to the next true one."""
        if self._ratio <= 0:
            return _NEVER
        if self._ratio >= 1:
            return 1
        return 1 + int(log(1 - self._uniform()) / log(1 - self._ratio))

    def context(self, parent: TraceContext | None) -> TraceContext:
        """Return the context of a new span: a child of `parent`, or the root of a new trace."""
        self._latest_id = (self._latest_id + _ID_STEP) & _ID_MASK or _ID_STEP
        span_id = self._latest_id.to_bytes(8, "big")
        if parent is not None:
            return TraceContext(parent.trace_id, span_id, parent.state)
        return TraceContext((self._bits(128) or 1).to_bytes(16, "big"), span_id)

    def nanoseconds(self, monotonic: float) -> int:
        """Return the nanoseconds since the epoch of a monotonic time of the clock, in seconds."""
        if monotonic >= self._epoch_until:
            now = self._clock.monotonic()
            self._epoch_ns = self._clock.now_ms() * 1_000_000 - int(now * _NANOSECONDS)
            self._epoch_until = now + EPOCH_SECONDS
        return self._epoch_ns + int(monotonic * _NANOSECONDS)

    def record(
        self,
        name: str,
        context: TraceContext,
        parent: TraceContext | None,
        *,
        start: float,
        end: float,
        kind: SpanKind = "internal",
        attributes: Mapping[str, str | int] | None = None,
        links: tuple[TraceContext, ...] = (),
        error: str = "",
    ) -> None:
        """Record a completed span; `start` and `end` are monotonic seconds of the clock."""
        end_ns = self.nanoseconds(end)
        self._record(Span(
            name=name,
            context=context,
            parent_id=b"" if parent is None else parent.span_id,
            kind=kind,
            start_ns=end_ns - int((end - start) * _NANOSECONDS),
            end_ns=end_ns,
            attributes=attributes or {},
            links=links,
            error=error,
        ))  # fmt: skip


_current: ContextVar[TraceContext | None] = ContextVar("penstock_trace", default=None)


@contextmanager
def trace_context(traceparent: str, tracestate: str = "") -> Iterator[None]:
    """Use a trace context for everything that this thread or task publishes in a `with` block."""
    token = _current.set(parse_traceparent(traceparent, tracestate))
    try:
        yield
    finally:
        _current.reset(token)


def current_context() -> TraceContext | None:
    """Return the context of `trace_context`, or of the current span of OpenTelemetry.

    OpenTelemetry is used only if the application has imported it.
    """
    own = _current.get()
    if own is not None or "opentelemetry.trace" not in sys.modules:
        return own
    span = sys.modules["opentelemetry.trace"].get_current_span().get_span_context()
    if not (span.is_valid and span.trace_flags & _SAMPLED):
        return None
    return TraceContext(
        span.trace_id.to_bytes(16, "big"),
        span.span_id.to_bytes(8, "big"),
        span.trace_state.to_header()[:TRACESTATE_CHARS_MAX],
    )
