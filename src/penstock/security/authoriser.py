"""Whether a principal may do what a request asks: one question before every handler.

The table of API keys (`wire/kafka/apis.py`) says for each API which operation it needs on which
type of resource; the request names the resources. An authoriser answers with those that are
refused, so that no handler can forget to ask. For now there is only one that refuses nothing.

Source: Kafka's `Authorizer` (KIP-504) and `AclOperation`; KIP-11.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

from penstock.base.errors import InvalidError
from penstock.wire.kafka.apis import Api, Resource

CLUSTER: Final = "kafka-cluster"
"""The name of the one resource of the type cluster."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks, as `User:alice`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")
"""Whoever did not authenticate."""


class Authoriser(Protocol):
    """Decides from memory, within the event loop's turn."""

    refuses: bool
    """False where nothing is ever refused: then it need not be asked."""

    def authorise(
        self, api: Api, resources: Callable[[], Iterable[str]], principal: Principal
    ) -> Collection[str]:
        """Return the resources that the principal may not do the API's operation on.

        `resources` names those of a request: topics by name, or by id as text where the request
        has ids; consumer groups; or `CLUSTER`. It costs nothing until it is called.
        """


class PermissiveAuthoriser:
    """Refuses nothing."""

    refuses = False

    def authorise(
        self, api: Api, resources: Callable[[], Iterable[str]], principal: Principal
    ) -> Collection[str]:
        return ()


PERMISSIVE: Final = PermissiveAuthoriser()


class AuthorisationFailed(InvalidError):
    """The principal may not do this on the cluster."""

    code: ClassVar[str] = "cluster_authorization_failed"


class TopicAuthorisationFailed(AuthorisationFailed):
    """The principal may not do this on a topic."""

    code: ClassVar[str] = "topic_authorization_failed"


class GroupAuthorisationFailed(AuthorisationFailed):
    """The principal may not do this on a consumer group."""

    code: ClassVar[str] = "group_authorization_failed"


class TransactionalIdAuthorisationFailed(AuthorisationFailed):
    """The principal may not do this on a transactional id."""

    code: ClassVar[str] = "transactional_id_authorization_failed"


_ERRORS: Final[dict[Resource, type[AuthorisationFailed]]] = {
    "none": AuthorisationFailed,
    "cluster": AuthorisationFailed,
    "topic": TopicAuthorisationFailed,
    "group": GroupAuthorisationFailed,
    "transactional_id": TransactionalIdAuthorisationFailed,
}


def refusal(api: Api, refused: Collection[str], principal: Principal) -> AuthorisationFailed:
    """The error of a request of which resources were refused; it names the first ones."""
    names = ", ".join(sorted(refused)[:5])
    return _ERRORS[api.resource](
        f"{principal} may not {api.operation.replace('_', ' ')} {api.resource} {names}"
    )
