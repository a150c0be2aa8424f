"""Handler of DescribeClientQuotas: returns the entities that a filter matches.

Each component of a filter is a condition on one entity type: it must have a given name, be the
default, or have any value. An entity must match all components. With a strict filter, it must have
no other entity types.

Source: KIP-546; Kafka's `ClientQuotaCache`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Final

from msgspec import Struct

from penstock.base.errors import InvalidError
from penstock.broker.admin_errors import BadRequest
from penstock.broker.quotas.entities import IP, TYPES, Entity, of_text
from penstock.control.values import QUOTA, EntityConfigs

EXACT: Final = 0
DEFAULT: Final = 1
ANY: Final = 2


class UnknownEntityType(InvalidError):
    code: ClassVar[str] = "unsupported_version"


class Component(Struct, frozen=True, kw_only=True):
    """Condition on one entity type; `name` is set for an exact match only."""

    kind: str
    match: int
    name: str | None

    def fits(self, entity: Entity) -> bool:
        if self.kind not in entity:
            return False
        if self.match == ANY:
            return True
        return entity[self.kind] == (self.name if self.match == EXACT else None)


def checked(components: Iterable[Component]) -> list[Component]:
    """Return the components of a filter if valid; raises BadRequest, UnknownEntityType."""
    found: dict[str, Component] = {}
    for component in components:
        if not component.kind:
            raise BadRequest("a component of the filter has no entity type")
        if component.kind not in TYPES:
            raise UnknownEntityType(
                f"quota entity type {component.kind!r} is unknown; must be {', '.join(TYPES)}"
            )
        if component.kind in found:
            raise BadRequest(f"the filter has two components for {component.kind}")
        if component.match not in (EXACT, DEFAULT, ANY):
            raise BadRequest(f"{component.kind}: match type {component.match} is unknown")
        if (component.match == EXACT) is (component.name is None):
            rule = "needs a name" if component.match == EXACT else "must not have a name"
            raise BadRequest(f"{component.kind}: match type {component.match} {rule}")
        found[component.kind] = component
    if IP in found and len(found) > 1:
        raise BadRequest("a filter with ip must not have user or client-id")
    return list(found.values())


def matching(
    configs: EntityConfigs, components: Iterable[Component], *, strict: bool
) -> Iterator[tuple[dict[str, str | None], Mapping[str, float]]]:
    """Yield the entities that a filter matches, with their quotas."""
    filters = checked(components)
    for (kind, name), values in configs.items():
        if kind != QUOTA:
            continue
        entity = of_text(name)
        fits = all(component.fits(entity) for component in filters)
        if fits and (not strict or len(entity) == len(filters)):
            yield entity, {key: float(text) for key, text in values.items()}
