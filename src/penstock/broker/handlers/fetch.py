"""Fetch: decode, find the session, read or wait.

Source: `FetchRequest.json`; see `broker/fetch/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.context import RequestContext
from penstock.broker.fetch.operation import FetchOperation
from penstock.broker.state import BrokerState
from penstock.wire.kafka.fetch import TOPIC_IDS_FROM, decode_request

if TYPE_CHECKING:
    from penstock.base.buffers import Lease


def fetch(
    state: BrokerState,
    context: RequestContext,
    frame: memoryview,
    offset: int,
    lease: Lease | None,
) -> None:
    """Handle one Fetch request; answers by `context.reply`, now or when there are records."""
    request = decode_request(frame, offset, context.version)
    plan = state.fetch_sessions.plan(
        request,
        by_id=context.version >= TOPIC_IDS_FROM,
        now=context.started,
        told=context.connection.fetch_errors,
    )
    FetchOperation(state, state.fetch_hub, context, request, plan).start()
