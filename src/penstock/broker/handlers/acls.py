"""DescribeAcls, CreateAcls, DeleteAcls.

One request's changes are one compare-and-set write, in effect on this broker at the response.

Source: KIP-140, KIP-290; Kafka's `AclApis` and `AclControlManager`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.base.errors import PenstockError
from penstock.broker.connection import RequestContext
from penstock.broker.errors import error_of
from penstock.control.access import bindings_of, change_acls
from penstock.security import SecurityDisabled
from penstock.security.acl_index import network_of
from penstock.security.acls import (
    OPERATIONS,
    PATTERN_TYPES,
    PERMISSIONS,
    RESOURCE_TYPES,
    AclBinding,
    AclFilter,
    InvalidAcl,
    checked,
)

if TYPE_CHECKING:
    from penstock.broker.metadata import ClusterMetadata
    from penstock.control import ControlPlane
    from penstock.security import Authoriser

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acls:
    control: ControlPlane
    cluster: ClusterMetadata
    authoriser: Authoriser

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
                results.append(_failed(error))
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
                {**_failed(selected), "matching_acls": ()}
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


def _failed(error: PenstockError) -> Answer:
    number, message = error_of(error)
    return {"error_code": number, "error_message": message}


def _word(kind: str, words: Sequence[str], number: int) -> str:
    if not 1 <= number < len(words):
        raise InvalidAcl(f"{kind} {number} is unknown")
    return words[number]


def _binding(creation: Any) -> AclBinding:
    """Return the binding to create; raises InvalidAcl."""
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
            f"host {binding.host!r:.100} of an ACL is not a network: write it as 10.0.0.0/8 or"
            " 2001:db8::/32"
        )
    return binding


def _filter(asked: Any) -> AclFilter:
    """Return the filter of a request; raises InvalidAcl."""
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
