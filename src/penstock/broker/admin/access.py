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
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.base.http_listener import client_address
from penstock.broker.net.listeners import ADMIN_LISTENER
from penstock.security import CLUSTER, AuthorisationFailed, Rights, refusal
from penstock.security.http_credentials import READS, check_meant
from penstock.security.listeners.http_authentication import Authentication, Known, RequestAudit

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.security import Authoriser
    from penstock.security.audit import Audit


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
DESCRIBE_TOPIC: Final = Needs(operation="describe", resource_type="topic", named="topic")

HOSTS: Final = "admin.hosts"
CONSOLE: Final = "/console"
"""Path of the console's first page. All of its paths are below it."""


class Caller(Struct, frozen=True, kw_only=True):
    """Sender of a request, with its permissions."""

    known: Known
    rights: Rights
    log: RequestAudit
    request: Request

    def check(self, operation: str, resource_type: str, names: Iterable[str]) -> None:
        """Raise AuthorisationFailed unless an operation is allowed on all of these resources."""
        for name in names:
            if not self.rights.allows(operation, resource_type, name):
                raise refusal(operation, resource_type, name, self.known.principal)

    def sees(self, topic: str) -> bool:
        return self.rights.allows("describe", "topic", topic)

    def check_needs(self, needs: Needs) -> None:
        """Raise AuthorisationFailed unless the caller has a route's required permission."""
        operation, resource_type = needs.operation, needs.resource_type
        if needs.some:
            if not self.rights.allows_some(operation, resource_type):
                raise refusal(operation, resource_type, "(any)", self.known.principal)
        elif operation:
            name = self.request.path_params[needs.named] if needs.named else CLUSTER
            self.check(operation, resource_type, [name])


def caller_of(request: Request) -> Caller:
    """Return the caller of an admitted request."""
    caller: Caller = request.state.caller
    return caller


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
        log = RequestAudit(audit=self.audit, listener=ADMIN_LISTENER, known=who, request=request)
        caller = Caller(known=who, rights=rights, log=log, request=request)
        try:
            if not (needs.metrics and self.metrics_open):
                caller.check_needs(needs)
        except AuthorisationFailed as error:
            log.denied(error)
            raise
        return caller
