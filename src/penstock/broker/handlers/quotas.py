"""DescribeClientQuotas and AlterClientQuotas, with the rules of `broker/quotas/`.

Source: KIP-546; Kafka's `ControllerApis`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from penstock.base.errors import PenstockError
from penstock.broker.admin_errors import BadRequest
from penstock.broker.connection import RequestContext
from penstock.broker.errors import error_fields
from penstock.broker.handlers.configs import ATTEMPTS_MAX
from penstock.broker.quotas.alteration import Change, altered
from penstock.broker.quotas.entities import Entity, entity_of, text_of
from penstock.broker.quotas.matching import Component, matching
from penstock.control import StaleConfigs
from penstock.control.values import QUOTA

if TYPE_CHECKING:
    from penstock.broker.metadata import ClusterMetadata
    from penstock.control import ControlPlane

Answer = dict[str, Any]


class ClientQuotas(Struct, frozen=True, kw_only=True):
    control: ControlPlane
    cluster: ClusterMetadata

    async def describe_client_quotas(self, context: RequestContext, request: Any) -> Answer:
        await self.cluster.look()
        components = [
            Component(kind=component.entity_type, match=component.match_type, name=component.match)
            for component in request.components
        ]
        try:
            found = list(
                matching(self.cluster.image.entity_configs, components, strict=request.strict)
            )
        except PenstockError as error:
            return {**error_fields(error), "entries": None}
        return {
            "entries": [
                {
                    "entity": _named(entity),
                    "values": [{"key": key, "value": value} for key, value in values.items()],
                }
                for entity, values in found
            ]
        }

    async def alter_client_quotas(self, context: RequestContext, request: Any) -> Answer:
        await self.cluster.refresh()
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return await self._alter(request)
            except StaleConfigs:
                await self.cluster.refresh()
        return await self._alter(request)

    async def _alter(self, request: Any) -> Answer:
        """Change the stored quotas as requested; raises StaleConfigs after a concurrent change."""
        known = self.cluster.image.entity_configs
        pairs = [
            [(part.entity_type, part.entity_name) for part in entry.entity]
            for entry in request.entries
        ]
        counts = Counter(frozenset(entity) for entity in pairs)
        changes, expected, answers = {}, {}, []
        for entry, entity in zip(request.entries, pairs, strict=True):
            answer: Answer = {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity]
            }
            answers.append(answer)
            try:
                if counts[frozenset(entity)] > 1:
                    raise BadRequest("the request contains this quota entity more than once")
                owner = entity_of(entity)
                name = text_of(owner)
                current = known.get((QUOTA, name), {})
                changes[name] = _altered(owner, current, entry)
                expected[name] = current
            except PenstockError as error:
                answer |= error_fields(error)
        if changes and not request.validate_only:
            await self.control.set_entity_configs(kind=QUOTA, changes=changes, expected=expected)
            await self.cluster.refresh()
        return {"entries": answers}


def _altered(entity: Entity, current: Any, entry: Any) -> dict[str, str]:
    changes = [
        Change(key=change.key, value=None if change.remove else change.value)
        for change in entry.ops
    ]
    return altered(entity, current, changes)


def _named(entity: Entity) -> list[Answer]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
