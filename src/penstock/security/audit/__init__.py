"""Audit log: a line for each authentication, rejection and change.

`events.py` defines a line, `log.py` queues lines, `file.py` writes them to files; brokers write
them to a topic, too.
"""

from penstock.security.audit.events import (
    NO_AUDIT,
    Audit,
    AuditEvent,
    EventKind,
    NoAudit,
    Outcome,
)
from penstock.security.audit.log import AuditLog, Line
from penstock.security.audit.settings import AuditSettings

__all__ = [
    "NO_AUDIT", "Audit", "AuditEvent", "AuditLog", "AuditSettings", "EventKind", "Line", "NoAudit",
    "Outcome",
]  # fmt: skip
