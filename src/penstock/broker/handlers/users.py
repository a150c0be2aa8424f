"""DescribeUserScramCredentials, AlterUserScramCredentials.

A client salts the password; the broker keeps what is made of that, and never had the password. What
one request changes is stored in one write by compare-and-set. Of a user that a request names twice
nothing is changed.

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
    """There is no such user, or nothing is kept of one for the mechanism."""

    code: ClassVar[str] = "resource_not_found"


class DuplicateUser(InvalidError):
    """A request names a user twice."""

    code: ClassVar[str] = "duplicate_resource"

    def __init__(self, user: str) -> None:
        super().__init__(f"the request names user {user!r:.300} more than once")


class UnknownMechanism(InvalidError):
    """There is no mechanism of that number."""

    code: ClassVar[str] = "unsupported_sasl_mechanism"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What these handlers use."""

    control: ControlPlane
    cluster: ClusterMetadata


async def describe_user_scram_credentials(
    parts: Parts, context: RequestContext, request: Any
) -> Answer:
    await parts.cluster.look()
    known = credentials_of(parts.cluster.image)
    counts = Counter([user.name for user in request.users or ()] or list(known))
    return {"results": [_described(user, known.get(user), counts[user]) for user in counts]}


def _described(user: str, known: Mapping[str, ScramCredential] | None, count: int) -> Answer:
    if count > 1:
        return _failed(user, DuplicateUser(user))
    if not known:
        return _failed(user, UserNotFound(f"there is no user {user!r:.300}"))
    infos = [
        {"mechanism": NUMBERS[name], "iterations": one.iterations} for name, one in known.items()
    ]
    return {"user": user, "credential_infos": infos}


async def alter_user_scram_credentials(
    parts: Parts, context: RequestContext, request: Any
) -> Answer:
    await parts.cluster.refresh()
    counts = Counter(deletion.name for deletion in (*request.deletions, *request.upsertions))
    results: dict[str, Answer] = {}

    def change(
        known: Mapping[str, Mapping[str, ScramCredential]],
    ) -> Mapping[str, Mapping[str, ScramCredential]]:
        changed: dict[str, dict[str, ScramCredential]] = {}
        for one in (*request.deletions, *request.upsertions):
            try:
                if counts[one.name] > 1:
                    raise DuplicateUser(one.name)
                changed[one.name] = _altered(one, known.get(one.name, {}))
                results[one.name] = {"user": one.name}
            except PenstockError as error:
                results[one.name] = _failed(one.name, error)
        return changed

    await change_credentials(parts.control, change)
    await parts.cluster.refresh()
    return {"results": list(results.values())}


def _altered(one: Any, known: Mapping[str, ScramCredential]) -> dict[str, ScramCredential]:
    """What a user has after one deletion or upsertion.

    Raises:
        InvalidCredential, UnknownMechanism, UserNotFound: why it cannot be.
    """
    check_user(one.name)
    mechanism = BY_NUMBER.get(one.mechanism)
    if mechanism is None:
        raise UnknownMechanism(f"there is no SCRAM mechanism of number {one.mechanism}")
    left = dict(known)
    if hasattr(one, "salted_password"):
        left[mechanism] = credential_of(
            mechanism, one.salted_password, salt=one.salt, iterations=one.iterations
        )
    elif left.pop(mechanism, None) is None:
        raise UserNotFound(f"nothing is kept of user {one.name!r:.300} for {mechanism}")
    return left


def _failed(user: str, error: PenstockError) -> Answer:
    number, message = error_of(error)
    return {"user": user, "error_code": number, "error_message": message, "credential_infos": ()}
