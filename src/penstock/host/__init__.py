"""Host ingest: one agent per host receives chunks of events from producers over a Unix socket.

`HostClient` and `AsyncHostClient` are imported on first use, because an agent needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.base.extras import required

if TYPE_CHECKING:
    from penstock.base.traces import trace_context
    from penstock.host.client.aio import AsyncHostClient
    from penstock.host.client.blocking import HostClient

__all__ = ["AsyncHostClient", "HostClient", "trace_context"]

_PLACES: Final = {
    "AsyncHostClient": "penstock.host.client.aio",
    "HostClient": "penstock.host.client.blocking",
    "trace_context": "penstock.base.traces",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(required(_PLACES[name], "client"), name)
