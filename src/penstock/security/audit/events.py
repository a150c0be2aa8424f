"""What the audit log says: one JSON object per authentication, denial and administrative change.

    {"time":"2026-01-31T12:00:00.123Z","broker":1,"event":"denial","outcome":"denied",
     "principal":"User:alice","mechanism":"","address":"10.0.0.7","listener":"PLAINTEXT",
     "operation":"Produce","resource_type":"topic","resources":["orders"],"resource_count":1,
     "reason":"User:alice may not write topic orders"}

An event has names alone: of who asked, of what was asked for, of the error. It has no field that a
secret belongs into. Texts are cut at `TEXT_CHARS_MAX`, lists at `RESOURCES_MAX`, and JSON escapes
what would end a line.

Source: Kafka's `kafka.authorizer.logger`; Redpanda's audit log has the same facts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Final, Literal, Protocol

import msgspec

TEXT_CHARS_MAX: Final = 1024
RESOURCES_MAX: Final = 50

EventKind = Literal["authentication", "denial", "change"]
Outcome = Literal["success", "failure", "denied"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One fact. What does not apply is empty.

    `mechanism` is how the principal was authenticated: PLAIN, SCRAM-SHA-512, OAUTHBEARER, SSL,
    basic, bearer, SO_PEERCRED. `operation` is the API's name, or method and path of a route.
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
    """Takes events. It never raises and never waits."""

    def record(self, event: AuditEvent) -> None: ...

    def close(self) -> None:
        """Write what was recorded, as far as that is possible within a moment."""


class NoAudit:
    """Forgets them."""

    def record(self, event: AuditEvent) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


NO_AUDIT: Final = NoAudit()


def line_of(event: AuditEvent, *, now_ms: int, origin: dict[str, int | str]) -> bytes:
    """An event as one line, with its end. `origin` says who writes it, as `{"broker": 1}`."""
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
    """At most `TEXT_CHARS_MAX` characters, in UTF-8's range: names on the wire can be anything."""
    return text[:TEXT_CHARS_MAX].encode("utf-8", "replace").decode()
