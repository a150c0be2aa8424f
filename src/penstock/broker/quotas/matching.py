"""DescribeClientQuotas: which entities a filter means.

A component says of a type of entity: this name, the default, or any of the type. An entity is
meant if it fits all components; a strict filter wants it to have no other types.

Source: KIP-546; Kafka's `ClientQuotaCache`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from penstock.base.errors import InvalidError
from penstock.broker.admin_errors import BadRequest
from penstock.broker.quotas.entities import IP, TYPES, Entity, of_text
from penstock.control.values import QUOTA, EntityConfigs

EXACT: Final = 0
DEFAULT: Final = 1
ANY: Final = 2


class UnknownEntityType(InvalidError):
    """A type of entity that this broker has no quotas of."""

    code: ClassVar[str] = "unsupported_version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """What a filter wants of one type of entity; `name` is that of an exact match."""

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
    """The components of a filter.

    Raises:
        BadRequest: they contradict themselves or each other.
        UnknownEntityType: there is none of such a name.
    """
    found: dict[str, Component] = {}
    for component in components:
        if not component.kind:
            raise BadRequest("a component of the filter names no type of entity")
        if component.kind not in TYPES:
            raise UnknownEntityType(
                f"there is no type of quota entity {component.kind!r}, only {', '.join(TYPES)}"
            )
        if component.kind in found:
            raise BadRequest(f"the filter names {component.kind} twice")
        if component.match not in (EXACT, DEFAULT, ANY):
            raise BadRequest(f"{component.kind}: there is no type of match {component.match}")
        if (component.match == EXACT) is (component.name is None):
            wanted = "needs" if component.match == EXACT else "has no"
            raise BadRequest(f"{component.kind}: a match of type {component.match} {wanted} name")
        found[component.kind] = component
    if IP in found and len(found) > 1:
        raise BadRequest("a filter for an ip has no user and no client-id")
    return list(found.values())


def matching(
    configs: EntityConfigs, components: Iterable[Component], *, strict: bool
) -> Iterator[tuple[dict[str, str | None], Mapping[str, float]]]:
    """The entities that a filter means, with their quotas."""
    wanted = checked(components)
    for (kind, name), values in configs.items():
        if kind != QUOTA:
            continue
        entity = of_text(name)
        if all(one.fits(entity) for one in wanted) and (not strict or len(entity) == len(wanted)):
            yield entity, {key: float(text) for key, text in values.items()}
