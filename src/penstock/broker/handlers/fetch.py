"""Fetch: decode, find the session, read or wait.

Source: `FetchRequest.json`; see `broker/fetch/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.broker.connection import RequestContext
from penstock.broker.fetch.operation import FetchOperation, FetchParts
from penstock.wire.kafka.fetch import TOPIC_IDS_FROM, decode_request

if TYPE_CHECKING:
    from penstock.base.buffers import Lease
    from penstock.broker.fetch.sessions import FetchSessions


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts(FetchParts):
    """What the handler uses, beside what its requests do while they wait."""

    fetch_sessions: FetchSessions


def fetch(
    parts: Parts,
    context: RequestContext,
    frame: memoryview,
    offset: int,
    lease: Lease | None,
) -> None:
    """Handle one Fetch request; answers by `context.reply`, now or when there are records."""
    request = decode_request(frame, offset, context.version)
    plan = parts.fetch_sessions.plan(
        request,
        by_id=context.version >= TOPIC_IDS_FROM,
        now=context.started,
        told=context.connection.fetch_errors,
    )
    FetchOperation(parts, context, request, plan).start()
