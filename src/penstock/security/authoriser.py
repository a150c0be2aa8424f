"""Authorisation decisions: whether a principal may do what a request asks for.

For each Kafka API, the table of API keys (`wire/kafka/apis.py`) has the operations that it needs on
resources. The dispatcher checks them before a handler runs. `Rights` answer the checks for one
principal and one client address.

Decisions are cached until the bindings change, so that a repeated decision takes one dictionary
lookup. The cache has a limit; when it is reached, the cache is cleared.

Source: Kafka's `Authorizer` (KIP-504), `StandardAuthorizer` (KIP-801); KIP-11, KIP-430.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import ClassVar, Final, Protocol

from msgspec import Struct

from penstock.base.errors import InvalidError
from penstock.security.acls import SUPPORTED, AclBinding, AclIndex, address_of


class Principal(Struct, frozen=True):
    """Authenticated sender of a request, such as `User:alice`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")
"""Principal of clients that have not authenticated."""

PEER: Final = Principal("Broker", "cluster")
"""Principal of another broker of the cluster, which is allowed everything.

Users, certificates and tokens always have another kind.
"""

DECISIONS_MAX: Final = 200_000
"""Most cached decisions of all principals together."""
REMEMBERED_CHARS_MAX: Final = 255
"""Longest resource name whose decision is cached.

Topic names are not longer, and clients that send longer names must not fill the memory.
"""


class Rights(Protocol):
    """Rights of one principal with one client address, under the current bindings."""

    def allows(self, operation: str, resource_type: str, name: str) -> bool:
        """Return whether an operation is allowed on a resource.

        The arguments are words from `security/acls.py`.
        """

    def allows_some(self, operation: str, resource_type: str) -> bool:
        """Return whether an operation is allowed on at least one resource of a type."""

    def operations(self, resource_type: str, name: str) -> Collection[str]:
        """Return the operations that are allowed on a resource, of those that its type supports."""


class Authoriser(Protocol):
    """Port that returns the rights of principals."""

    refuses: bool
    """Whether any operation may be denied; if not, callers can skip the check."""

    def rights(self, principal: Principal, host: str) -> Rights:
        """Return the rights of a principal whose client has the address `host`."""


class _All:
    def allows(self, operation: str, resource_type: str, name: str) -> bool:
        return True

    def allows_some(self, operation: str, resource_type: str) -> bool:
        return True

    def operations(self, resource_type: str, name: str) -> Collection[str]:
        return SUPPORTED[resource_type]


EVERYTHING: Final = _All()


class PermissiveAuthoriser:
    """Authoriser that allows every operation."""

    refuses = False

    def rights(self, principal: Principal, host: str) -> Rights:
        return EVERYTHING


PERMISSIVE: Final = PermissiveAuthoriser()


class AclAuthoriser:
    """Authoriser that decides by ACLs; without bindings it allows super users only."""

    refuses = True

    def __init__(self, *, super_users: Iterable[str] = (), allow_unbound: bool = False) -> None:
        """Create the authoriser without bindings.

        Args:
            super_users: principals that are allowed everything, such as `User:admin`.
            allow_unbound: whether operations on resources that no binding names are allowed.
        """
        self._super_users = frozenset(super_users)
        self._allow_unbound = allow_unbound
        self._rights: dict[tuple[str, str, str], Rights] = {}
        self._left = DECISIONS_MAX
        self.index = AclIndex((), allow_unbound=allow_unbound)

    def replace(self, bindings: Iterable[AclBinding]) -> None:
        """Replace all bindings and clear the cache."""
        self.index = AclIndex(bindings, allow_unbound=self._allow_unbound)
        self.forget()

    def forget(self) -> None:
        """Clear the cache of decisions."""
        self._rights.clear()
        self._left = DECISIONS_MAX

    def rights(self, principal: Principal, host: str) -> Rights:
        found = self._rights.get((principal.kind, principal.name, host))
        return found if found is not None else self._new(principal, host)

    def _new(self, principal: Principal, host: str) -> Rights:
        rights: Rights = EVERYTHING
        if principal != PEER and str(principal) not in self._super_users:
            rights = _Remembered(self, str(principal), address_of(host))
        self.count()
        self._rights[principal.kind, principal.name, host] = rights
        return rights

    def count(self) -> None:
        """Count one more cached decision; clear the cache if the limit is exceeded."""
        self._left -= 1
        if self._left < 0:
            self.forget()


class _Remembered:
    """Rights of one principal and address, with decisions cached until the bindings change."""

    __slots__ = ("_authoriser", "_decided", "_host", "_index", "_principal", "_some")

    def __init__(self, authoriser: AclAuthoriser, principal: str, host: str) -> None:
        self._authoriser = authoriser
        self._principal = principal
        self._host = host
        self._index = authoriser.index
        self._decided: dict[tuple[str, str, str], bool] = {}
        self._some: dict[tuple[str, str], bool] = {}

    def _renew(self) -> None:
        self._index = self._authoriser.index
        self._decided.clear()
        self._some.clear()

    def allows(self, operation: str, resource_type: str, name: str) -> bool:
        if self._index is not self._authoriser.index:
            self._renew()
        found = self._decided.get((operation, resource_type, name))
        return found if found is not None else self._decide(operation, resource_type, name)

    def _decide(self, operation: str, resource_type: str, name: str) -> bool:
        decided = self._index.allows(
            operation, resource_type, name, principal=self._principal, host=self._host
        )
        if len(name) <= REMEMBERED_CHARS_MAX:
            self._authoriser.count()
            self._decided[operation, resource_type, name] = decided
        return decided

    def allows_some(self, operation: str, resource_type: str) -> bool:
        if self._index is not self._authoriser.index:
            self._renew()
        found = self._some.get((operation, resource_type))
        if found is None:
            found = self._some[operation, resource_type] = self._index.allows_some(
                operation, resource_type, principal=self._principal, host=self._host
            )
        return found

    def operations(self, resource_type: str, name: str) -> Collection[str]:
        return [
            operation
            for operation in SUPPORTED[resource_type]
            if self.allows(operation, resource_type, name)
        ]


class AuthorisationFailed(InvalidError):
    """Denied operation on the cluster; subclasses are for other resource types."""

    code: ClassVar[str] = "cluster_authorization_failed"

    def __init__(self, message: str, resource_type: str, name: str) -> None:
        super().__init__(message)
        self.resource_type = resource_type
        self.name = name


class TopicAuthorisationFailed(AuthorisationFailed):
    """Denied operation on a topic."""

    code: ClassVar[str] = "topic_authorization_failed"


class GroupAuthorisationFailed(AuthorisationFailed):
    """Denied operation on a consumer group."""

    code: ClassVar[str] = "group_authorization_failed"


class TransactionalIdAuthorisationFailed(AuthorisationFailed):
    """Denied operation on a transactional id."""

    code: ClassVar[str] = "transactional_id_authorization_failed"


class SecurityDisabled(InvalidError):
    """Request about ACLs to a broker without an authoriser."""

    code: ClassVar[str] = "security_disabled"


_ERRORS: Final[dict[str, type[AuthorisationFailed]]] = {
    "topic": TopicAuthorisationFailed,
    "group": GroupAuthorisationFailed,
    "cluster": AuthorisationFailed,
    "transactional_id": TransactionalIdAuthorisationFailed,
}


def refusal(
    operation: str, resource_type: str, name: str, principal: Principal
) -> AuthorisationFailed:
    """Return the error for an operation that a principal is not allowed on a resource."""
    words = f"{operation} {resource_type}".replace("_", " ")
    message = f"{principal} may not {words} {name:.300}"
    return _ERRORS[resource_type](message, resource_type, name)
