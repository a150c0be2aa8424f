"""Format of the audit log: one JSON object per authentication, denial and administrative change.

    {"time":"2026-01-31T12:00:00.123Z","broker":1,"event":"denial","outcome":"denied",
     "principal":"User:alice","mechanism":"","address":"10.0.0.7","listener":"PLAINTEXT",
     "operation":"Produce","resource_type":"topic","resources":["orders"],"resource_count":1,
     "reason":"User:alice may not write topic orders"}

An event has only names: of the principal, of the resources, of the error. No field may contain a
secret. Texts are cut at `TEXT_CHARS_MAX`, lists at `RESOURCES_MAX`, and JSON escapes line ends.

Source: Kafka's `kafka.authorizer.logger`; Redpanda's audit log has the same facts.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import Final, Literal, Protocol

import msgspec
from msgspec import Struct

TEXT_CHARS_MAX: Final = 1024
RESOURCES_MAX: Final = 50

EventKind = Literal["authentication", "denial", "change"]
Outcome = Literal["success", "failure", "denied"]


class AuditEvent(Struct, frozen=True, kw_only=True):
    """Audit event. Fields that do not apply are empty.

    `mechanism` is the mechanism of authentication: PLAIN, SCRAM-SHA-512, OAUTHBEARER, SSL, basic,
    bearer, SO_PEERCRED. `operation` is the API's name, or a route's method and path.
    """

    event: EventKind
    outcome: Outcome
    principal: str
    mechanism: str = ""
    address: str = ""
    listener: str = ""
    operation: str = ""
    resource_type: str = ""
    resources: Iterable[str] = ()
    reason: str = ""


class Audit(Protocol):
    """Audit log that never raises and never blocks."""

    def record(self, event: AuditEvent) -> None: ...

    def close(self) -> None:
        """Write the recorded events, as far as possible within a moment."""


class NoAudit:
    """Audit log that discards all events."""

    def record(self, event: AuditEvent) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


NO_AUDIT: Final = NoAudit()


def line_of(event: AuditEvent, *, now_ms: int, origin: dict[str, int | str]) -> bytes:
    """Return an event as one line; `origin` identifies the writer, as `{"broker": 1}`."""
    resources = list(event.resources)
    return (
        msgspec.json.encode(
            {
                "time": _time(now_ms),
                **origin,
                "event": event.event,
                "outcome": event.outcome,
                "principal": cut(event.principal),
                "mechanism": cut(event.mechanism),
                "address": cut(event.address),
                "listener": cut(event.listener),
                "operation": cut(event.operation),
                "resource_type": event.resource_type,
                "resources": [cut(resource) for resource in islice(resources, RESOURCES_MAX)],
                "resource_count": len(resources),
                "reason": cut(event.reason),
            }
        )
        + b"\n"
    )


def _time(now_ms: int) -> str:
    seconds, ms = divmod(now_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03}Z"


def cut(text: str) -> str:
    """Return at most `TEXT_CHARS_MAX` characters of a text, as valid UTF-8."""
    return text[:TEXT_CHARS_MAX].encode("utf-8", "replace").decode()
