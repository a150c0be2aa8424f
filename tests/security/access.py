"""Parts of access control for tests: ACLs in few words, and an audit in memory."""

from __future__ import annotations

from penstock.security.acls import AclBinding
from penstock.security.audit import AuditEvent


def allow(operation: str, kind: str, name: str, user: str = "a", **more: str) -> AclBinding:
    """Allow a user an operation on one resource from everywhere, but for what `more` changes."""
    values = {
        "resource_type": kind, "name": name, "pattern_type": "literal",
        "principal": f"User:{user}", "host": "*", "operation": operation, "permission": "allow",
    }  # fmt: skip
    return AclBinding(**{**values, **more})


class Noted:
    """An audit in memory."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    def record(self, event: AuditEvent) -> None:
        self.events.append(event)

    def close(self) -> None:
        pass

    def facts(self, *fields: str) -> list[tuple[object, ...]]:
        """Return each event's kind, outcome, and these fields."""
        names = ("event", "outcome", *fields)
        told = [[getattr(event, name) for name in names] for event in self.events]
        return [
            tuple(failure if isinstance(failure, str) else [*failure] for failure in each)
            for each in told
        ]
