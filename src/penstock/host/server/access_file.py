"""File of an agent's access rules, which is read again when it changes.

If the changed file cannot be read or is invalid, the former rules stay in force. The log reports
this once, and a metric until the file is corrected. The file must not be writable by all users,
because its owner decides about access.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import struct
from typing import ClassVar, Final

from penstock.base.errors import InvalidError
from penstock.host.access import InvalidRules, Permission, Rules, parse_rules
from penstock.security.audit import NO_AUDIT, Audit, AuditEvent, EventKind, Outcome

logger = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 1 << 20
_CREDENTIALS: Final = struct.Struct("iII")
"""`struct ucred`: process, user and group."""
_Version = tuple[int, int, int, int]


class RulesUnusable(InvalidError):
    """The file of rules cannot be used."""

    code: ClassVar[str] = "invalid_config"


class Access:
    """Access rules of one agent; without a file, each process that connects may do all."""

    def __init__(self, path: str = "", audit: Audit = NO_AUDIT) -> None:
        """Read the file of rules, if there is one.

        Raises:
            RulesUnusable: the file cannot be read, or is invalid.
        """
        self._path = path
        self._version: _Version | None = None
        self.audit = audit
        self.own_uid = os.getuid()
        """User of the agent's process, which may connect without a rule."""
        self.rules: Rules | None = None
        self.failing = False
        """Whether the present file cannot be used, so that former rules apply."""
        if path:
            self.rules, self._version = _read(path)

    def changed(self) -> bool:
        """Read the file again if it has changed; return whether the rules changed."""
        if not self._path or _version(self._path) == self._version:
            return False
        try:
            self.rules, self._version = _read(self._path)
        except RulesUnusable as error:
            if not self.failing:
                logger.error("%s; the former rules stay in force", error)
            self.failing = True
            return False
        self.failing = False
        logger.warning("reloaded host.acl.file %s", self._path)
        return True

    def of_peer(self, connected: socket.socket) -> tuple[Permission | None, str]:
        """Return the permission of the process at the other end of a Unix socket, and a reason.

        If no rule allows the process, the permission is None and the reason says why. Without a
        file of rules, the permission is None and the reason is empty: every process may connect.
        """
        rules = self.rules
        if rules is None:
            return None, ""
        size = _CREDENTIALS.size
        credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        _, uid, gid = _CREDENTIALS.unpack(credentials)
        permission = rules.of_peer(uid, gid, own_uid=self.own_uid)
        if permission is None:
            return None, f"host.acl.file has no rule for uid {uid}, gid {gid}"
        return permission, ""

    def admitted(self, permission: Permission) -> None:
        """Record in the audit log that a process was allowed to connect."""
        self._record("authentication", "success", permission.principal)

    def refused(self, reason: str) -> None:
        """Record in the audit log that a process was not allowed to connect."""
        self._record("authentication", "failure", "User:ANONYMOUS", reason=reason)

    def denied(self, permission: Permission, topic: str) -> None:
        """Record in the audit log that a producer was not allowed to publish to a topic."""
        self._record(
            "denial", "denied", permission.principal, topic=topic, reason=permission.refusal(topic)
        )

    def _record(
        self,
        event: EventKind,
        outcome: Outcome,
        principal: str,
        *,
        topic: str | None = None,
        reason: str = "",
    ) -> None:
        self.audit.record(
            AuditEvent(
                event=event,
                outcome=outcome,
                principal=principal,
                mechanism="SO_PEERCRED",
                listener="host.socket.path",
                operation="connect" if topic is None else "publish",
                resource_type="" if topic is None else "topic",
                resources=() if topic is None else (topic,),
                reason=reason,
            )
        )


def _version(path: str) -> _Version | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode


def _read(path: str) -> tuple[Rules, _Version]:
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_mode & stat.S_IWOTH:
                raise RulesUnusable(
                    f"host.acl.file {path} is writable by all users; remove that permission"
                    " (chmod o-w)"
                )
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise RulesUnusable(f"host.acl.file {path} has more than {FILE_BYTES_MAX} bytes")
        rules = parse_rules(data.decode())
    except OSError as error:
        raise RulesUnusable(f"host.acl.file {path}: {error.strerror}") from None
    except (UnicodeDecodeError, InvalidRules) as error:
        raise RulesUnusable(f"host.acl.file {path}: {error}") from None
    return rules, (found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode)
