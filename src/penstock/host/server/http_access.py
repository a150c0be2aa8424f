"""Who asks the agent's HTTP front: basic credentials or a bearer token, by the agent's rules.

Without rules everybody may do everything, as at the socket. With rules nobody is somebody without
credentials: only `/livez` and `/readyz` stay open.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, ClassVar

from penstock.base.errors import InvalidError
from penstock.base.http_listener import client_address
from penstock.base.system import SYSTEM_RANDOMNESS
from penstock.host.access import Permission, Rules
from penstock.security.audit import AuditEvent
from penstock.security.http_credentials import (
    BadAuthorization,
    Bearer,
    PasswordVerifier,
    Recent,
    read_authorization,
)

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.host.server.access_file import Access
    from penstock.security.audit import EventKind, Outcome


class NotAuthenticated(InvalidError):
    """No credentials, or such as are worth nothing; the same words for all of them."""

    code: ClassVar[str] = "sasl_authentication_failed"


class NotAllowed(InvalidError):
    """The rules do not allow this."""

    code: ClassVar[str] = "topic_authorization_failed"


class HttpAccess:
    """Asks an agent's rules about requests."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._passwords = PasswordVerifier(SYSTEM_RANDOMNESS)
        self._lately = Recent()

    async def permission(self, request: Request) -> Permission | None:
        """What the client of a request may do; None where there are no rules.

        Raises:
            NotAuthenticated: nobody knows who it is.
            TooManyLogins: too many passwords wait to be verified.
        """
        rules = self._access.rules
        if rules is None:
            return None
        try:
            permission, mechanism = await self._find(request, rules)
        except BadAuthorization as error:
            self._record(request, "authentication", "failure", "User:ANONYMOUS", reason=str(error))
            raise NotAuthenticated("credentials are needed, basic or bearer") from None
        if permission is None:
            reason = "no credentials" if not mechanism else "unknown user, password or token"
            self._record(
                request, "authentication", "failure", "User:ANONYMOUS", mechanism, reason=reason
            )
            raise NotAuthenticated("credentials are needed, basic or bearer")
        who = (mechanism, permission.principal, client_address(request))
        if self._lately.is_new(who):  # credentials come each time
            self._record(request, "authentication", "success", permission.principal, mechanism)
        return permission

    async def _find(self, request: Request, rules: Rules) -> tuple[Permission | None, str]:
        """The permission, and the scheme."""
        given = read_authorization(request.headers.getlist("authorization"))
        if given is None:
            return None, ""
        if isinstance(given, Bearer):
            digest = hashlib.sha256(given.token.encode()).hexdigest()
            return rules.tokens.get(digest), "bearer"
        right = await self._passwords.verify(given, rules)
        return rules.users.get(given.user) if right else None, "basic"

    def check_topic(self, request: Request, permission: Permission | None, topic: str) -> None:
        """Raise NotAllowed unless a topic may be published to."""
        if permission is None or permission.allows(topic):
            return
        reason = permission.refusal(topic)
        self._record(request, "denial", "denied", permission.principal, topic=topic, reason=reason)
        raise NotAllowed(reason)

    def check_observer(self, request: Request, permission: Permission | None) -> None:
        """Raise NotAllowed unless metrics and status may be seen."""
        if permission is None or permission.observes:
            return
        reason = f"{permission.principal} may not see metrics and status"
        self._record(request, "denial", "denied", permission.principal, reason=reason)
        raise NotAllowed(reason)

    def _record(
        self,
        request: Request,
        event: EventKind,
        outcome: Outcome,
        principal: str,
        mechanism: str = "",
        *,
        topic: str | None = None,
        reason: str = "",
    ) -> None:
        self._access.audit.record(
            AuditEvent(
                event=event,
                outcome=outcome,
                principal=principal,
                mechanism=mechanism,
                address=client_address(request),
                listener="host.http.listener",
                operation=f"{request.method} {request.url.path}",
                resource_type="" if topic is None else "topic",
                resources=() if topic is None else (topic,),
                reason=reason,
            )
        )
