"""Fetch: decodes the request, finds the session, reads or waits (`broker/fetch/`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.broker.connection import RequestContext
from penstock.broker.fetch.operation import FetchOperation, FetchParts, throttled_answer
from penstock.broker.fetch.sessions import INITIAL_EPOCH
from penstock.wire.kafka.fetch import TOPIC_IDS_FROM, decode_request

if TYPE_CHECKING:
    from penstock.base.buffers import Lease
    from penstock.broker.fetch.sessions import FetchSessions


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts(FetchParts):
    """Parts of the broker that the handler uses, besides those of waiting requests."""

    fetch_sessions: FetchSessions


def fetch(
    parts: Parts,
    context: RequestContext,
    frame: memoryview,
    offset: int,
    lease: Lease | None,
) -> None:
    """Handle one Fetch request; respond by `context.reply`, now or when records arrive."""
    request = decode_request(frame, offset, context.version)
    throttle_ms = parts.quotas.before_fetch(context) if parts.quotas.active else 0
    if throttle_ms and request.session_epoch == INITIAL_EPOCH:
        throttled_answer(parts, context, throttle_ms)
        return
    plan = parts.fetch_sessions.plan(
        request,
        owner=context.connection.principal,
        by_id=context.version >= TOPIC_IDS_FROM,
        now=context.started,
        reported=context.connection.fetch_errors,
    )
    operation = FetchOperation(parts, context, request, plan)
    if throttle_ms and not plan.error:
        throttled_answer(parts, context, throttle_ms, plan.session_id)
    else:
        operation.start()
