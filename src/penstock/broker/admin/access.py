"""Authorisation of the admin interface, checked in one place.

Every route is declared with its `Needs`: the operation and resource type of the required
permission, as in ACLs, and the path parameter with the resource's name. Handlers check further
resources, such as those in a request body, by `Caller`. Requests without credentials have the
principal `User:ANONYMOUS`.

The Host and Origin headers of requests that change state must name this listener
(`security/http_credentials.py`).

Source: Kafka's `AclOperation`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.base.http_listener import client_address, is_loopback
from penstock.security import (
    ANONYMOUS,
    CLUSTER,
    EVERYTHING,
    AuthorisationFailed,
    Principal,
    Rights,
    refusal,
)
from penstock.security.audit import Audit, AuditEvent, EventKind, Outcome
from penstock.security.http_credentials import READS, check_meant
from penstock.security.listeners.http_authentication import Authentication, Shown

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.security import Authoriser


class Needs(Struct, frozen=True, kw_only=True):
    """Permission that a route requires: `operation` on a resource.

    The path parameter `named` has the name of the resource. Without `named` the resource is the
    cluster. With `some`, permission on any one resource of the type suffices. A route without an
    operation requires no permission.
    """

    operation: str = ""
    resource_type: str = "cluster"
    named: str = ""
    some: bool = False
    audited: bool = False
    """Whether the audit log records the route's requests as changes."""
    metrics: bool = False
    """Whether the route requires no permission if `admin.metrics.open` is true."""


OPEN: Final = Needs()
DESCRIBE: Final = Needs(operation="describe")
DESCRIBE_GROUP: Final = Needs(operation="describe", resource_type="group", named="group")

HOSTS: Final = "admin.hosts"


class Known(Struct, frozen=True, kw_only=True):
    """Identity of a caller: its principal, and the mechanism by which it authenticated.

    If `rights` is set, these are its permissions; otherwise the authoriser decides.
    """

    principal: Principal
    mechanism: str = ""
    rights: Rights | None = None


def known(request: Request, shown: Shown, *, loopback_trusted: bool) -> Known:
    """Return the identity of a request with the credentials `shown`.

    With `loopback_trusted`, local callers without credentials have all permissions.
    """
    if shown.mechanism:
        return Known(principal=Principal("User", shown.name), mechanism=shown.mechanism)
    trusted = loopback_trusted and is_loopback(client_address(request))
    return Known(principal=ANONYMOUS, rights=EVERYTHING if trusted else None)


class Caller(Struct, frozen=True, kw_only=True):
    """Sender of a request, with its permissions."""

    principal: Principal
    mechanism: str
    rights: Rights
    audit: Audit
    request: Request

    def check(self, operation: str, resource_type: str, names: Iterable[str]) -> None:
        """Raise AuthorisationFailed unless an operation is allowed on all of these resources."""
        for name in names:
            if not self.rights.allows(operation, resource_type, name):
                raise refusal(operation, resource_type, name, self.principal)

    def sees(self, topic: str) -> bool:
        return self.rights.allows("describe", "topic", topic)

    def check_needs(self, needs: Needs) -> None:
        """Raise AuthorisationFailed unless the caller has a route's required permission."""
        operation, resource_type = needs.operation, needs.resource_type
        if needs.some:
            if not self.rights.allows_some(operation, resource_type):
                raise refusal(operation, resource_type, "(any)", self.principal)
        elif operation:
            name = self.request.path_params[needs.named] if needs.named else CLUSTER
            self.check(operation, resource_type, [name])

    def denied(self, error: AuthorisationFailed) -> None:
        self._record("denial", "denied", error.resource_type, [error.name], str(error))

    def changed(self, status: int) -> None:
        named = [str(value) for value in self.request.path_params.values()]
        failed = f"status {status}" if status >= HTTPStatus.BAD_REQUEST else ""
        self._record("change", "failure" if failed else "success", "", named, failed)

    def _record(
        self, event: EventKind, outcome: Outcome, resource_type: str, names: list[str], reason: str
    ) -> None:
        self.audit.record(
            AuditEvent(
                event=event,
                outcome=outcome,
                principal=str(self.principal),
                mechanism=self.mechanism,
                address=client_address(self.request),
                listener="admin.listener",
                operation=f"{self.request.method} {self.request.url.path}",
                resource_type=resource_type,
                resources=names,
                reason=reason,
            )
        )


class AdminAccess(Struct, frozen=True, kw_only=True):
    """Authorisation of one admin listener. Requests that change state must name one of `hosts`."""

    authoriser: Authoriser
    authentication: Authentication[Known]
    audit: Audit
    hosts: Collection[str]
    metrics_open: bool = False

    async def admit(self, request: Request, needs: Needs) -> Caller:
        """Authenticate and authorise a request.

        Raises:
            NotAuthenticated: its credentials are invalid.
            AuthorisationFailed: the caller lacks the permission.
            NotForHere: the request changes state, and its headers name another listener.
            TooManyLogins: too many passwords are waiting for verification.
        """
        if request.method not in READS:
            check_meant(request.headers, self.hosts, HOSTS)
        who = await self.authentication.who(request)
        rights = who.rights or self.authoriser.rights(who.principal, client_address(request))
        caller = Caller(
            principal=who.principal,
            mechanism=who.mechanism,
            rights=rights,
            audit=self.audit,
            request=request,
        )
        try:
            if not (needs.metrics and self.metrics_open):
                caller.check_needs(needs)
        except AuthorisationFailed as error:
            caller.denied(error)
            raise
        return caller
