"""Trace contexts and spans."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
from penstock.base.traces import (
    EPOCH_SECONDS,
    TRACESTATE_CHARS_MAX,
    Span,
    TraceContext,
    Tracer,
    current_context,
    parse_traceparent,
    trace_context,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_the_example_of_the_specification() -> None:
    found = parse_traceparent(PARENT, "rojo=1")
    assert found == TraceContext(bytes.fromhex(TRACE), bytes.fromhex(SPAN), "rojo=1")
    assert found is not None
    assert found.traceparent == PARENT


@pytest.mark.parametrize(
    "text",
    [
        "", "00", PARENT[:-1], PARENT + "0", PARENT + "-x", PARENT.upper(),
        PARENT.replace(TRACE, "0" * 32), PARENT.replace(SPAN, "0" * 16), "ff" + PARENT[2:],
        PARENT.replace("-", "_"), f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-02",
        f"00-{TRACE}x{SPAN}-01", f"00-{TRACE[:-1]}g-{SPAN}-01", f"0x-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01.extra", f"\u0660\u0660-{TRACE}-{SPAN}-01",
    ],
)  # fmt: skip
def test_invalid_and_unsampled_contexts_are_not_used(text: str) -> None:
    assert parse_traceparent(text) is None


@pytest.mark.parametrize("text", [f"cc-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01-what", PARENT])
def test_later_versions_may_be_longer(text: str) -> None:
    assert parse_traceparent(text) is not None


@given(st.text(alphabet=string.printable), st.integers(0, 60), st.integers(0, 60))
def test_no_text_raises(text: str, start: int, end: int) -> None:
    for candidate in (text, PARENT[:start] + text, PARENT[:start] + text + PARENT[end:]):
        found = parse_traceparent(candidate)
        assert found is None or len(found.trace_id) == 16


def test_a_long_state_is_cut() -> None:
    found = parse_traceparent(PARENT, "x" * 1000)
    assert found is not None
    assert len(found.state) == TRACESTATE_CHARS_MAX


def test_contexts_nest() -> None:
    with trace_context(PARENT):
        with trace_context(PARENT.replace(SPAN, "1" * 16)):
            inner = current_context()
        with trace_context("nonsense"):
            assert current_context() is None
        outer = current_context()
    assert current_context() is None
    assert inner is not None
    assert outer is not None
    assert (inner.trace_id, inner.span_id.hex(), outer.span_id.hex()) == (
        outer.trace_id, "1" * 16, SPAN,
    )  # fmt: skip


def test_spans_have_the_times_of_the_wall_clock() -> None:
    spans: list[Span] = []
    tracer = Tracer(spans.append, clock=SYSTEM_CLOCK, randomness=SYSTEM_RANDOMNESS, ratio=0)
    parent = tracer.context(None)
    child = tracer.context(parent)
    now = SYSTEM_CLOCK.monotonic()
    tracer.record("a", child, parent, start=now - 1.5, end=now)
    [span] = spans
    assert span.context.trace_id == parent.trace_id
    assert span.context.span_id != parent.span_id == span.parent_id
    assert span.end_ns - span.start_ns == pytest.approx(1.5e9, abs=10)
    assert span.end_ns == pytest.approx(SYSTEM_CLOCK.now_ms() * 1e6, abs=1e9)


@pytest.mark.parametrize("ratio", [0, 0.01, 0.1, 0.5, 1])
def test_a_share_of_traces_begins(ratio: float) -> None:
    tracer = Tracer(
        lambda span: None, clock=SYSTEM_CLOCK, randomness=SYSTEM_RANDOMNESS, ratio=ratio
    )
    calls = 200_000
    assert sum(tracer.begins() for _ in range(calls)) / calls == pytest.approx(
        ratio, rel=0.15 if 0 < ratio < 1 else 0
    )


class SetBackClock:
    """Clock whose wall time is set back while its monotonic time advances."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return 1_700_000_000_000 - int(self.seconds * 60_000)


def test_a_step_of_the_wall_clock_does_not_change_a_duration() -> None:
    clock, spans = SetBackClock(), list[Span]()
    tracer = Tracer(spans.append, clock=clock, randomness=SYSTEM_RANDOMNESS, ratio=0)
    context = tracer.context(None)
    for _ in range(2):
        start = clock.seconds
        clock.seconds += EPOCH_SECONDS
        tracer.record("a", context, None, start=start, end=clock.seconds)
    assert [span.end_ns - span.start_ns for span in spans] == [EPOCH_SECONDS * 1e9] * 2
