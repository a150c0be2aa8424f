"""Authentication and authorization of the HTTP front's requests, by the agent's rules.

Without rules, every request whose Host and Origin name this listener may do everything, as on the
socket. With rules, requests need credentials, except to `/livez` and `/readyz`. Passwords and
tokens from this host are accepted without TLS too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.base.errors import InvalidError
from penstock.base.http_listener import client_address
from penstock.base.system import SYSTEM_RANDOMNESS
from penstock.security.audit import AuditEvent
from penstock.security.http_authentication import (
    Authentication,
    Failures,
    Identities,
    NotAuthenticated,
    Shown,
)
from penstock.security.http_credentials import PasswordVerifier
from penstock.security.http_origin import check_meant

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.host.access import Permission
    from penstock.host.server.access_file import Access
    from penstock.security.listeners.files import ListenerFiles

LISTENER: Final = "host.http.listener"
"""Setting of the listener, which is also the interface's name in the audit log."""
HOSTS: Final = "host.http.hosts"
NEEDED: Final = "basic or bearer credentials are required"


class NotAllowed(InvalidError):
    """The rules do not allow this request."""

    code: ClassVar[str] = "topic_authorization_failed"


class HttpAccess:
    """Checks requests against an agent's rules."""

    def __init__(
        self, access: Access, files: ListenerFiles, failures: Failures, hosts: Collection[str]
    ) -> None:
        """Create the checks; `hosts` are the names of the listener."""
        self._hosts = hosts
        self._access = access
        self._files = files
        self._authentication = Authentication(
            LISTENER,
            self._identities,
            self._known,
            PasswordVerifier(SYSTEM_RANDOMNESS),
            access.audit,
            failures,
            plain_loopback=True,
        )

    async def permission(self, request: Request) -> Permission | None:
        """Return the permission of the client that sent a request; None if there are no rules.

        Raises:
            NotAuthenticated: the credentials match no rule.
            TooManyLogins: too many passwords wait to be verified, or too many were wrong.
        """
        return None if self._access.rules is None else await self._authentication.who(request)

    def _identities(self) -> Identities:
        rules = self._access.rules
        return Identities(
            credentials=None if rules is None else rules.credentials,
            tokens=self._files.tokens,
            fixed_tokens=() if rules is None else rules.tokens.keys(),
            name_of=self._files.principal_of,
        )

    def _known(self, request: Request, shown: Shown) -> Permission:
        rules, name = self._access.rules, shown.name
        if not shown.mechanism:
            raise NotAuthenticated("no credentials", NEEDED)
        found = None
        if rules is not None and shown.token_sha256:
            found = rules.tokens.get(shown.token_sha256)
        elif rules is not None:
            found = (rules.users if shown.mechanism == "basic" else rules.names).get(name)
        if found is None:
            raise NotAuthenticated(f"host.acl.file has no rule for {name}")
        return found

    def check_meant(self, request: Request) -> None:
        """Raise NotForHere if there are no rules, and Host or Origin name another listener.

        Without credentials, a web page in a browser sends the same requests as an application.
        """
        if self._access.rules is None:
            check_meant(request.headers, self._hosts, HOSTS)

    def check_topic(self, request: Request, permission: Permission | None, topic: str) -> None:
        """Raise NotAllowed if the permission does not include publishing to the topic."""
        if permission is None or permission.allows(topic):
            return
        reason = permission.refusal(topic)
        self._denied(request, permission, reason, topic)
        raise NotAllowed(reason)

    def check_observer(self, request: Request, permission: Permission | None) -> None:
        """Raise NotAllowed if the permission does not include reading metrics and status."""
        if permission is None or permission.observes:
            return
        reason = f"{permission.principal} may not read metrics and status"
        self._denied(request, permission, reason)
        raise NotAllowed(reason)

    def _denied(
        self, request: Request, permission: Permission, reason: str, topic: str | None = None
    ) -> None:
        self._access.audit.record(
            AuditEvent(
                event="denial",
                outcome="denied",
                principal=permission.principal,
                address=client_address(request),
                listener=LISTENER,
                operation=f"{request.method} {request.url.path}",
                resource_type="" if topic is None else "topic",
                resources=() if topic is None else (topic,),
                reason=reason,
            )
        )
