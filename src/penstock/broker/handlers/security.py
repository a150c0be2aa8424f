"""Kafka's security APIs: SASL authentication, ACLs, SCRAM credentials.

All changes of ACLs or credentials in one request are written by one compare-and-set. They are in
effect on this broker when it responds. The client salts a new password, and the broker stores only
keys that are derived from it.

Source: KIP-43, KIP-152, KIP-368 (SASL); KIP-140, KIP-290, Kafka's `AclApis` and
`AclControlManager`; KIP-554, Kafka's `ScramControlManager` and `ScramImage`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from penstock.base.errors import InvalidError, PenstockError
from penstock.broker.net.connection import RequestContext
from penstock.broker.net.errors import error_fields
from penstock.control.access import (
    bindings_of,
    change_acls,
    change_credentials,
    check_user,
    credentials_of,
)
from penstock.security import ScramCredential, SecurityDisabled
from penstock.security.acls import (
    OPERATIONS,
    PATTERN_TYPES,
    PERMISSIONS,
    RESOURCE_TYPES,
    AclBinding,
    AclFilter,
    InvalidAcl,
    checked,
    network_of,
)
from penstock.security.credentials import BY_NUMBER, NUMBERS, credential_of

if TYPE_CHECKING:
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.net.security import SecurityService
    from penstock.control import ControlPlane
    from penstock.security import Authoriser

Answer = dict[str, Any]


class UserNotFound(InvalidError):
    """User that does not exist or has no credential for the mechanism."""

    code: ClassVar[str] = "resource_not_found"


class DuplicateUser(InvalidError):
    """Request that contains a user twice."""

    code: ClassVar[str] = "duplicate_resource"

    def __init__(self, user: str) -> None:
        super().__init__(f"the request contains user {user!r:.300} more than once")


class UnknownMechanism(InvalidError):
    code: ClassVar[str] = "unsupported_sasl_mechanism"


class Security(Struct, frozen=True, kw_only=True):
    control: ControlPlane
    cluster: ClusterMetadata
    authoriser: Authoriser
    security_service: SecurityService

    # -- SASL -------------------------------------------------------------------------------------

    def sasl_handshake(self, context: RequestContext, request: Any) -> Mapping[str, Any]:
        """Begin an authentication with the client's mechanism; raises IllegalState."""
        return self.security_service.handshake(
            context.connection, request.mechanism, raw=context.version == 0
        )

    async def sasl_authenticate(self, context: RequestContext, request: Any) -> Mapping[str, Any]:
        """Handle one message of the client's SASL exchange; raises IllegalState."""
        return await self.security_service.authenticate(
            context.connection, bytes(request.auth_bytes), context.started
        )

    # -- ACLs -------------------------------------------------------------------------------------

    async def describe_acls(self, context: RequestContext, request: Any) -> Answer:
        self._check_enabled()
        await self.cluster.look()
        selected = _filter(request)
        resources: dict[tuple[str, str, str], list[AclBinding]] = {}
        for binding in bindings_of(self.cluster.image):
            if selected.matches(binding):
                pattern = (binding.resource_type, binding.name, binding.pattern_type)
                resources.setdefault(pattern, []).append(binding)
        return {
            "resources": [
                {
                    "resource_type": RESOURCE_TYPES.index(kind),
                    "resource_name": name,
                    "pattern_type": PATTERN_TYPES.index(pattern),
                    "acls": [_entry(binding) for binding in found],
                }
                for (kind, name, pattern), found in resources.items()
            ]
        }

    async def create_acls(self, context: RequestContext, request: Any) -> Answer:
        await self._refresh()
        results: list[Answer] = []
        added: list[AclBinding] = []
        for creation in request.creations:
            try:
                added.append(_binding(creation))
                results.append({})
            except PenstockError as error:
                results.append(error_fields(error))
        await change_acls(self.control, lambda known: (added, ()))
        await self.cluster.refresh()
        return {"results": results}

    async def delete_acls(self, context: RequestContext, request: Any) -> Answer:
        await self._refresh()
        filters: list[AclFilter | PenstockError] = []
        for asked in request.filters:
            try:
                filters.append(_filter(asked))
            except PenstockError as error:
                filters.append(error)
        found: list[list[AclBinding]] = []

        def matched(
            known: Sequence[AclBinding],
        ) -> tuple[Sequence[AclBinding], Sequence[AclBinding]]:
            found[:] = [
                [
                    binding
                    for binding in known
                    if isinstance(selected, AclFilter) and selected.matches(binding)
                ]
                for selected in filters
            ]
            return (), [binding for matching in found for binding in matching]

        await change_acls(self.control, matched)
        await self.cluster.refresh()
        return {
            "filter_results": [
                {**error_fields(selected), "matching_acls": ()}
                if isinstance(selected, PenstockError)
                else {
                    "matching_acls": [
                        {**_pattern(binding), **_entry(binding)} for binding in matching
                    ]
                }
                for selected, matching in zip(filters, found, strict=True)
            ]
        }

    async def _refresh(self) -> None:
        self._check_enabled()
        await self.cluster.refresh()

    def _check_enabled(self) -> None:
        if not self.authoriser.refuses:
            raise SecurityDisabled("ACLs are disabled: authorizer.class.name is not set")

    # -- SCRAM credentials ------------------------------------------------------------------------

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


def _word(kind: str, words: Sequence[str], number: int) -> str:
    if not 1 <= number < len(words):
        raise InvalidAcl(f"{kind} {number} is unknown")
    return words[number]


def _binding(creation: Any) -> AclBinding:
    """Return the ACL binding to create; raises InvalidAcl."""
    binding = checked(
        AclBinding(
            resource_type=_word("resource type", RESOURCE_TYPES, creation.resource_type),
            name=creation.resource_name,
            pattern_type=_word("pattern type", PATTERN_TYPES, creation.resource_pattern_type),
            principal=creation.principal,
            host=creation.host,
            operation=_word("operation", OPERATIONS, creation.operation),
            permission=_word("permission type", PERMISSIONS, creation.permission_type),
        )
    )
    if "/" in binding.host and network_of(binding.host) is None:
        raise InvalidAcl(
            f"host {binding.host!r:.100} of an ACL is not a valid network: it must have a form like"
            " 10.0.0.0/8 or 2001:db8::/32"
        )
    return binding


def _filter(asked: Any) -> AclFilter:
    """Return the ACL filter of a request element; raises InvalidAcl."""
    return AclFilter(
        resource_type=_word("resource type", RESOURCE_TYPES, asked.resource_type_filter),
        name=asked.resource_name_filter,
        pattern_type=_word("pattern type", PATTERN_TYPES, asked.pattern_type_filter),
        principal=asked.principal_filter,
        host=asked.host_filter,
        operation=_word("operation", OPERATIONS, asked.operation),
        permission=_word("permission type", PERMISSIONS, asked.permission_type),
    )


def _pattern(binding: AclBinding) -> Answer:
    return {
        "resource_type": RESOURCE_TYPES.index(binding.resource_type),
        "resource_name": binding.name,
        "pattern_type": PATTERN_TYPES.index(binding.pattern_type),
    }


def _entry(binding: AclBinding) -> Answer:
    return {
        "principal": binding.principal,
        "host": binding.host,
        "operation": OPERATIONS.index(binding.operation),
        "permission_type": PERMISSIONS.index(binding.permission),
    }


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
    return {"user": user, **error_fields(error), "credential_infos": ()}
