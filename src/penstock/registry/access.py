"""Authentication and authorisation of requests to the schema registry.

A subject is authorised like the topic to which it belongs: `orders-value` and `orders-key` need
permissions on topic `orders`, and any other subject on the topic of its own name.

| request                                      | permission                               |
|----------------------------------------------|------------------------------------------|
| read schemas and versions                    | `describe` on the topic                  |
| register a schema                            | `write` on the topic                     |
| delete versions                              | `delete` on the topic                    |
| read a config or mode                        | `describe_configs` on the topic, or cluster |
| change a config or mode                      | `alter_configs` on the topic, or cluster |

Lists contain only what the client may read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.base.http_listener import client_address
from penstock.security import CLUSTER, EVERYTHING, Rights, http_credentials, refusal
from penstock.security.authoriser import TopicAuthorisationFailed
from penstock.security.listeners.http_authentication import (
    Authentication,
    Known,
    RequestAudit,
)

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.registry.state import SchemaVersion
    from penstock.registry.values import Subject
    from penstock.security import Authoriser
    from penstock.security.audit import Audit

LISTENER: Final = "registry.listener"
HOSTS: Final = "admin.hosts"
_SUFFIXES: Final = ("-key", "-value")


def topic_of(subject: Subject) -> str:
    """Return the topic whose permissions apply to a subject, whatever its context."""
    for suffix in _SUFFIXES:
        if subject.name.endswith(suffix) and len(subject.name) > len(suffix):
            return subject.name.removesuffix(suffix)
    return subject.name


def resource_of(subject: Subject) -> tuple[str, str]:
    """Return the type and name of the resource whose permissions apply to a subject.

    A subject without a name stands for the registry or a context, which need permission on the
    cluster.
    """
    return ("topic", topic_of(subject)) if subject.name else ("cluster", CLUSTER)


class Effect(Enum):
    """Effect of a route's requests. Those that change something are recorded in the audit log."""

    READS = "reads"
    CHANGES = "changes"


READS: Final = Effect.READS
CHANGES: Final = Effect.CHANGES


class Caller(Struct, frozen=True, kw_only=True):
    """Sender of a request, with its permissions."""

    known: Known
    rights: Rights
    log: RequestAudit

    @property
    def unlimited(self) -> bool:
        return self.rights is EVERYTHING

    def sees(self, subject: Subject) -> bool:
        return self.unlimited or self.rights.allows("describe", "topic", topic_of(subject))

    def first_visible(self, users: Iterable[SchemaVersion], identifier: object) -> SchemaVersion:
        """Return the first of the versions with an id that the client may read.

        Raises:
            AuthorisationFailed: it may read none. The message does not name their topics.
        """
        for user in users:
            if self.sees(user.subject):
                return user
        message = (
            f"{self.known.principal} may not describe the topic of any subject that has the schema"
            f" {identifier}"
        )
        raise TopicAuthorisationFailed(message, "topic", f"schema {identifier}")

    def may_describe_configs(self, subject: Subject) -> bool:
        return self.unlimited or self.rights.allows("describe_configs", *resource_of(subject))

    def check(self, operation: str, subject: Subject) -> None:
        """Raise AuthorisationFailed unless an operation is allowed on a subject."""
        if self.unlimited:
            return
        kind, name = resource_of(subject)
        if not self.rights.allows(operation, kind, name):
            raise refusal(operation, kind, name, self.known.principal)


class RegistryAccess(Struct, frozen=True, kw_only=True):
    """Authenticator and authoriser of the registry's requests."""

    authoriser: Authoriser
    authentication: Authentication[Known]
    audit: Audit
    hosts: Collection[str]

    async def admit(self, request: Request) -> Caller:
        """Authenticate a request; return its sender.

        Browsers send the header Origin with changes; such requests must name this listener. Other
        clients may use any name of the listener.

        Raises:
            NotAuthenticated: its credentials are invalid.
            NotForHere: a page of another site sends the request.
            TooManyLogins: too many passwords are waiting for verification.
        """
        if request.method not in http_credentials.READS and "origin" in request.headers:
            http_credentials.check_meant(request.headers, self.hosts, HOSTS)
        found = await self.authentication.who(request)
        rights = self.authoriser.rights(found.principal, client_address(request))
        log = RequestAudit(audit=self.audit, listener=LISTENER, known=found, request=request)
        return Caller(known=found, rights=rights, log=log)
