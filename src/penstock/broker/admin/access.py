"""Who may ask the admin interface for what: one table of routes, checked in one place.

Each route has a row here, by its method and path, or it does not come into the application. A row
says which operation on which resource the route needs, by the words of ACLs, and where the
resource's name stands; a view that finds more resources in a body asks for those by `Asker`.
Whoever asks without credentials is `User:ANONYMOUS`.

Requests that change something must be meant for this listener (`security/http_origin.py`).

Source: Kafka's `AclOperation`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a route needs: an operation on the resource that the path's parameter `named` names, on
    the cluster without one, on any resource of the type with `some`. Without an operation it is
    open."""

    operation: str = ""
    resource_type: str = "cluster"
    named: str = ""
    some: bool = False
    audited: bool = False
    """Whether it is an administrative change."""


OPEN: Final = Needs()
DESCRIBE: Final = Needs(operation="describe")
_TOPIC: Final = Needs(operation="describe", resource_type="topic", named="topic")
_GROUP: Final = Needs(operation="describe", resource_type="group", named="group")
_STAGE: Final = Needs(operation="write", resource_type="topic", some=True)
_CONSOLIDATE: Final = Needs(operation="alter")

HOSTS: Final = "admin.hosts"
METRICS: Final = ("GET", "/metrics")
NEEDS: Final[Mapping[tuple[str, str], Needs]] = {
    ("GET", "/health"): OPEN,
    ("GET", "/livez"): OPEN,
    ("GET", "/readyz"): OPEN,
    METRICS: DESCRIBE,
    ("GET", "/v1/cluster"): DESCRIBE,
    ("GET", "/v1/compaction"): DESCRIBE,
    ("GET", "/v1/copies"): DESCRIBE,
    ("GET", "/v1/damage"): DESCRIBE,
    ("GET", "/v1/losses"): DESCRIBE,
    ("GET", "/v1/tiers"): DESCRIBE,
    ("GET", "/v1/topics"): DESCRIBE,
    ("GET", "/v1/topics/{topic}"): _TOPIC,
    ("GET", "/v1/topics/{topic}/partitions/{partition}/extents"): Needs(
        operation="read", resource_type="topic", named="topic"
    ),
    ("POST", "/v1/security/reload"): Needs(operation="alter", audited=True),
    ("GET", "/v1/groups"): DESCRIBE,
    ("GET", "/v1/groups/{group:path}"): _GROUP,
    ("GET", "/v1/dead-letters"): DESCRIBE,
    ("GET", "/v1/queues/{group:path}"): _GROUP,
    ("GET", "/v1/diskless/backlogs"): DESCRIBE,
    ("POST", "/v1/diskless/topics/{topic_id}/partitions/{partition}/runs"): _CONSOLIDATE,
    ("POST", "/v1/diskless/topics/{topic_id}/partitions/{partition}/segments"): _CONSOLIDATE,
    ("GET", "/v1/staging"): _STAGE,
    ("PUT", "/v1/staging/{name}"): _STAGE,
    ("GET", "/v1/sinks"): DESCRIBE,
    ("POST", "/v1/sinks/{query:path}/commits/{batch}"): Needs(
        operation="write", resource_type="transactional_id", named="query"
    ),
    ("GET", "/v1/sinks/{query:path}"): Needs(
        operation="describe", resource_type="transactional_id", named="query"
    ),
    ("DELETE", "/v1/sinks/{query:path}"): Needs(
        operation="write", resource_type="transactional_id", named="query", audited=True
    ),
}
"""By method and path. A commit needs write on each of its topics too, which its view asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Who it is and how that is known. `rights` where no authoriser need be asked."""

    principal: Principal
    mechanism: str = ""
    rights: Rights | None = None


def known(request: Request, shown: Shown, *, loopback_trusted: bool) -> Known:
    """Who has shown something: anonymous, who has not; with `loopback_trusted` whoever asks so from
    this machine may do everything."""
    if shown.mechanism:
        return Known(principal=Principal("User", shown.name), mechanism=shown.mechanism)
    trusted = loopback_trusted and is_loopback(client_address(request))
    return Known(principal=ANONYMOUS, rights=EVERYTHING if trusted else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who sent a request, and what that principal may do."""

    principal: Principal
    mechanism: str
    rights: Rights
    audit: Audit
    request: Request

    def check(self, operation: str, resource_type: str, names: Iterable[str]) -> None:
        """Raise AuthorisationFailed unless an operation is allowed on all of these."""
        for name in names:
            if not self.rights.allows(operation, resource_type, name):
                raise refusal(operation, resource_type, name, self.principal)

    def sees(self, topic: str) -> bool:
        """Whether a topic's name may be shown."""
        return self.rights.allows("describe", "topic", topic)

    def check_needs(self, needs: Needs) -> None:
        """Raise AuthorisationFailed unless a route's needs are met."""
        operation, resource_type = needs.operation, needs.resource_type
        if needs.some:
            if not self.rights.allows_some(operation, resource_type):
                raise refusal(operation, resource_type, "(any)", self.principal)
        elif operation:
            name = self.request.path_params[needs.named] if needs.named else CLUSTER
            self.check(operation, resource_type, [name])

    def denied(self, error: AuthorisationFailed) -> None:
        """Tell the audit log of a refusal."""
        self._record("denial", "denied", error.resource_type, [error.name], str(error))

    def changed(self, status: int) -> None:
        """Tell the audit log how a change was answered."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminAccess:
    """The admin interface's own check, for one listener. `hosts` are the names that it has."""

    authoriser: Authoriser
    authentication: Authentication[Known]
    audit: Audit
    hosts: Collection[str]
    metrics_open: bool = False

    def needs(self, method: str, path: str) -> Needs:
        """The row of a route.

        Raises:
            KeyError: there is none.
        """
        needs = NEEDS[method, path]
        return OPEN if self.metrics_open and (method, path) == METRICS else needs

    async def admit(self, request: Request, needs: Needs) -> Asker:
        """Let a request through to its view.

        Raises:
            NotAuthenticated: its credentials are worth nothing.
            AuthorisationFailed: its sender may not do this.
            NotForHere: it was not meant for this listener.
            TooManyLogins: too many passwords wait to be verified.
        """
        if request.method not in READS:
            check_meant(request.headers, self.hosts, HOSTS)
        who = await self.authentication.who(request)
        rights = who.rights or self.authoriser.rights(who.principal, client_address(request))
        asker = Asker(
            principal=who.principal,
            mechanism=who.mechanism,
            rights=rights,
            audit=self.audit,
            request=request,
        )
        try:
            asker.check_needs(needs)
        except AuthorisationFailed as error:
            asker.denied(error)
            raise
        return asker
