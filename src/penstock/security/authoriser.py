"""Decisions: whether a principal may do what a request asks.

The table of API keys (`wire/kafka/apis.py`) has for each API the operations that it needs on
resources; the dispatcher checks them before a handler runs. `Rights` are what one principal may do
from one address.

Decisions are cached until the bindings change, so that a repeated decision costs one dictionary
lookup. The cache is bounded; above the bound it is cleared.

Source: Kafka's `Authorizer` (KIP-504), `StandardAuthorizer` (KIP-801); KIP-11, KIP-430.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import ClassVar, Final, Protocol

from msgspec import Struct

from penstock.base.errors import InvalidError
from penstock.security.acl_index import AclIndex, address_of
from penstock.security.acls import SUPPORTED, AclBinding


class Principal(Struct, frozen=True):
    """Sender of a request, as `User:alice`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")
"""Whoever did not authenticate."""

PEER: Final = Principal("Broker", "cluster")
"""Another broker of the cluster, which may do everything; no user, certificate or token is of this
kind."""

DECISIONS_MAX: Final = 200_000
"""Decisions that are remembered, of all principals together."""
REMEMBERED_CHARS_MAX: Final = 255
"""Of names. No topic has a longer one, and who asks for longer ones shall not fill the memory."""


class Rights(Protocol):
    """Rights of one principal from one address, under the current bindings."""

    def allows(self, operation: str, resource_type: str, name: str) -> bool:
        """Return whether an operation is allowed on a resource, in the words of
        `security/acls.py`.
        """

    def allows_some(self, operation: str, resource_type: str) -> bool:
        """Return whether an operation may be allowed on any resource of a type."""

    def operations(self, resource_type: str, name: str) -> Collection[str]:
        """Return all operations that are allowed on a resource, of those that apply to its type."""


class Authoriser(Protocol):
    """Source of the rights of principals."""

    refuses: bool
    """False where nothing is ever refused: then it need not be asked."""

    def rights(self, principal: Principal, host: str) -> Rights:
        """Return what a principal may do from an address."""


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
    """Authoriser by ACLs; without any binding only super users are allowed operations."""

    refuses = True

    def __init__(self, *, super_users: Iterable[str] = (), allow_unbound: bool = False) -> None:
        """`super_users` as `User:admin`; `allow_unbound` as in `AclIndex`."""
        self._super_users = frozenset(super_users)
        self._allow_unbound = allow_unbound
        self._rights: dict[tuple[str, str, str], Rights] = {}
        self._left = DECISIONS_MAX
        self.index = AclIndex((), allow_unbound=allow_unbound)

    def replace(self, bindings: Iterable[AclBinding]) -> None:
        """Replace the bindings."""
        self.index = AclIndex(bindings, allow_unbound=self._allow_unbound)
        self.forget()

    def forget(self) -> None:
        """Clear the cache."""
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
        """Count one more cached decision."""
        self._left -= 1
        if self._left < 0:
            self.forget()


class _Remembered:
    """Cached decisions of one principal and address, until the bindings change."""

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
    """The principal is not allowed the operation on the cluster or the named resource."""

    code: ClassVar[str] = "cluster_authorization_failed"

    def __init__(self, message: str, resource_type: str, name: str) -> None:
        super().__init__(message)
        self.resource_type = resource_type
        self.name = name


class TopicAuthorisationFailed(AuthorisationFailed):
    """The principal is not allowed the operation on a topic."""

    code: ClassVar[str] = "topic_authorization_failed"


class GroupAuthorisationFailed(AuthorisationFailed):
    """The principal is not allowed the operation on a consumer group."""

    code: ClassVar[str] = "group_authorization_failed"


class TransactionalIdAuthorisationFailed(AuthorisationFailed):
    """The principal is not allowed the operation on a transactional id."""

    code: ClassVar[str] = "transactional_id_authorization_failed"


class SecurityDisabled(InvalidError):
    """ACLs were requested, but no authorizer is configured."""

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
    """Return the error for an operation that is not allowed on a resource."""
    words = f"{operation} {resource_type}".replace("_", " ")
    message = f"{principal} may not {words} {name:.300}"
    return _ERRORS[resource_type](message, resource_type, name)
