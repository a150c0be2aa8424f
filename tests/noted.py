"""An audit in memory."""

from __future__ import annotations

from penstock.security.audit import AuditEvent


class Events:
    """What was recorded."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    def record(self, event: AuditEvent) -> None:
        self.events.append(event)

    def close(self) -> None:
        pass
