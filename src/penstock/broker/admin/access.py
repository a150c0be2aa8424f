"""Authorisation of the admin interface, checked in one place.

Every route is declared with its `Needs`: the operation on the resource that it requires, in ACL
terms, and the path parameter with the resource's name. Views that find more resources in a body
check them by `Caller`. Requests without credentials are from `User:ANONYMOUS`.

Requests that change something must be meant for this listener (`security/http_origin.py`).

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
from penstock.security.audit import Audit, AuditEvent
from penstock.security.http_authentication import Authentication, Shown
from penstock.security.http_origin import READS, check_meant

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.security import Authoriser
    from penstock.security.audit import EventKind, Outcome


class Needs(Struct, frozen=True, kw_only=True):
    """Permission that a route requires.

    It is an operation on the resource in the path's parameter `named`, on the cluster without one,
    or on any resource of the type with `some`. Without an operation the route is open.
    """

    operation: str = ""
    resource_type: str = "cluster"
    named: str = ""
    some: bool = False
    audited: bool = False
    """Whether the audit log records the route's requests as changes."""
    metrics: bool = False
    """Whether `admin.metrics.open` opens the route."""


OPEN: Final = Needs()
DESCRIBE: Final = Needs(operation="describe")
DESCRIBE_GROUP: Final = Needs(operation="describe", resource_type="group", named="group")

HOSTS: Final = "admin.hosts"


class Known(Struct, frozen=True, kw_only=True):
    """Authenticated principal, and how it authenticated. `rights` replace the authoriser if set."""

    principal: Principal
    mechanism: str = ""
    rights: Rights | None = None


def known(request: Request, shown: Shown, *, loopback_trusted: bool) -> Known:
    """Return the caller's identity; `loopback_trusted` grants all to anonymous local callers."""
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
    """Authorisation of one admin listener. `hosts` are its host names."""

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
            NotForHere: the request was not meant for this listener.
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
