"""Audit log: one line for each authentication, denial and administrative change.

`events.py` defines the line, `log.py` passes lines to sinks, `file.py` writes files.
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
