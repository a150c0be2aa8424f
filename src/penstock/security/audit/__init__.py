"""Audit log: one line for each authentication, each denied request, and each change.

`events.py` defines the lines, `log.py` passes them to sinks, and `file.py` writes them to files.
Brokers can also write them to a topic.
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
