"""DescribeUserScramCredentials, AlterUserScramCredentials.

The client salts the password; the broker stores only derived keys, in one compare-and-set write.

Source: KIP-554; Kafka's `ScramControlManager` and `ScramImage`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.base.errors import InvalidError, PenstockError
from penstock.broker.connection import RequestContext
from penstock.broker.errors import error_of
from penstock.control.access import change_credentials, check_user, credentials_of
from penstock.security import ScramCredential
from penstock.security.credentials import BY_NUMBER, NUMBERS, credential_of

if TYPE_CHECKING:
    from penstock.broker.metadata import ClusterMetadata
    from penstock.control import ControlPlane

Answer = dict[str, Any]


class UserNotFound(InvalidError):
    """The user does not exist, or has no credential for the mechanism."""

    code: ClassVar[str] = "resource_not_found"


class DuplicateUser(InvalidError):
    """A request contains a user twice."""

    code: ClassVar[str] = "duplicate_resource"

    def __init__(self, user: str) -> None:
        super().__init__(f"the request contains user {user!r:.300} more than once")


class UnknownMechanism(InvalidError):
    code: ClassVar[str] = "unsupported_sasl_mechanism"


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    control: ControlPlane
    cluster: ClusterMetadata

    async def describe_user_scram_credentials(
        self, context: RequestContext, request: Any
    ) -> Answer:
        await self.cluster.look()
        known = credentials_of(self.cluster.image)
        counts = Counter([user.name for user in request.users or ()] or list(known))
        return {"results": [_described(user, known.get(user), counts[user]) for user in counts]}

    async def alter_user_scram_credentials(self, context: RequestContext, request: Any) -> Answer:
        await self.cluster.refresh()
        counts = Counter(deletion.name for deletion in (*request.deletions, *request.upsertions))
        results: dict[str, Answer] = {}

        def change(
            known: Mapping[str, Mapping[str, ScramCredential]],
        ) -> Mapping[str, Mapping[str, ScramCredential]]:
            changed: dict[str, dict[str, ScramCredential]] = {}
            for alteration in (*request.deletions, *request.upsertions):
                try:
                    if counts[alteration.name] > 1:
                        raise DuplicateUser(alteration.name)
                    changed[alteration.name] = _altered(alteration, known.get(alteration.name, {}))
                    results[alteration.name] = {"user": alteration.name}
                except PenstockError as error:
                    results[alteration.name] = _failed(alteration.name, error)
            return changed

        await change_credentials(self.control, change)
        await self.cluster.refresh()
        return {"results": list(results.values())}


def _described(user: str, known: Mapping[str, ScramCredential] | None, count: int) -> Answer:
    if count > 1:
        return _failed(user, DuplicateUser(user))
    if not known:
        return _failed(user, UserNotFound(f"user {user!r:.300} does not exist"))
    infos = [
        {"mechanism": NUMBERS[name], "iterations": credential.iterations}
        for name, credential in known.items()
    ]
    return {"user": user, "credential_infos": infos}


def _altered(alteration: Any, known: Mapping[str, ScramCredential]) -> dict[str, ScramCredential]:
    """Return a user's credentials after a change; raises InvalidError."""
    check_user(alteration.name)
    mechanism = BY_NUMBER.get(alteration.mechanism)
    if mechanism is None:
        raise UnknownMechanism(f"SCRAM mechanism {alteration.mechanism} is unknown")
    left = dict(known)
    if hasattr(alteration, "salted_password"):
        left[mechanism] = credential_of(
            mechanism,
            alteration.salted_password,
            salt=alteration.salt,
            iterations=alteration.iterations,
        )
    elif left.pop(mechanism, None) is None:
        raise UserNotFound(f"user {alteration.name!r:.300} has no credential for {mechanism}")
    return left


def _failed(user: str, error: PenstockError) -> Answer:
    number, message = error_of(error)
    return {"user": user, "error_code": number, "error_message": message, "credential_infos": ()}
