"""Format of the audit log: one JSON object per authentication, denial and administrative change.

    {"time":"2026-01-31T12:00:00.123Z","broker":1,"event":"denial","outcome":"denied",
     "principal":"User:alice","mechanism":"","address":"10.0.0.7","listener":"PLAINTEXT",
     "operation":"Produce","resource_type":"topic","resources":["orders"],"resource_count":1,
     "reason":"User:alice may not write topic orders"}

An event contains only names, such as those of the principal, the resources and the error. No field
may contain a secret. Texts are cut to `TEXT_CHARS_MAX` characters and lists to `RESOURCES_MAX`
items. JSON escapes line breaks, so an event is always one line.

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
    """Audit event; fields that do not apply are empty.

    `mechanism` is the authentication mechanism: PLAIN, SCRAM-SHA-512, OAUTHBEARER, SSL, basic,
    bearer or SO_PEERCRED. `operation` is the name of the Kafka API, or method and path of an HTTP
    request.
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
    """Port of the audit log; it never raises and never blocks."""

    def record(self, event: AuditEvent) -> None: ...

    def close(self) -> None:
        """Write the events recorded so far, as many as possible within a short timeout."""


class NoAudit:
    """Audit log that discards all events."""

    def record(self, event: AuditEvent) -> None:
        """Discard the event."""

    def close(self) -> None:
        """Do nothing."""


NO_AUDIT: Final = NoAudit()


def line_of(event: AuditEvent, *, now_ms: int, origin: dict[str, int | str]) -> bytes:
    """Return an event as one line of JSON.

    `origin` identifies the process that writes it, such as `{"broker": 1}`.
    """
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
    """Return the first `TEXT_CHARS_MAX` characters of a text, with lone surrogates replaced."""
    return text[:TEXT_CHARS_MAX].encode("utf-8", "replace").decode()
