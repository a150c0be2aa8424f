"""Quota entities (a user, a client id, both, or an address), kinds of quotas, and their changes.

An entity is a mapping from entity type to name; None is the default entity of the type. The control
plane stores it as JSON, sorted by type:

    {"client-id": "etl", "user": null}

Source: KIP-546; Kafka's `ClientQuotaEntity`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import ClassVar, Final

from msgspec import Struct

from penstock.base.errors import InvalidError
from penstock.base.settings import INT_MAX, LONG_MAX
from penstock.broker.net.errors import BadRequest
from penstock.control.values.topics import QUOTA, EntityConfigs

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
TYPES: Final = (USER, CLIENT_ID, IP)

Entity = Mapping[str, str | None]


def entity_of(parts: Iterable[tuple[str, str | None]]) -> dict[str, str | None]:
    """Return the entity made of pairs of type and name; raises BadRequest if it is invalid."""
    found: dict[str, str | None] = {}
    for kind, name in parts:
        if kind not in TYPES:
            raise BadRequest(f"quota entity type {kind!r} is unknown; must be {', '.join(TYPES)}")
        if kind in found:
            raise BadRequest(f"the quota entity has two values for {kind}")
        if name == "":
            raise BadRequest(f"the {kind} of a quota entity must not be empty; null is the default")
        found[kind] = name
    if not found:
        raise BadRequest(f"the quota entity is empty; it must have {' or '.join(TYPES)}")
    if IP in found:
        if len(found) > 1:
            raise BadRequest("a quota entity with ip must not have user or client-id")
        found[IP] = _address(found[IP])
    return found


def _address(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return str(ip_address(text))
    except ValueError:
        raise BadRequest(f"{text!r} is not an IP address") from None


def text_of(entity: Entity) -> str:
    """Return the stored text of an entity; equal entities have equal texts."""
    return json.dumps(dict(entity), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def of_text(text: str) -> dict[str, str | None]:
    """Return the entity of a text from `text_of`."""
    found: dict[str, str | None] = json.loads(text)
    return found


def shown(entity: Entity) -> str:
    """Format an entity for messages: `user alice, client-id (default)`."""
    return ", ".join(f"{kind} {name or '(default)'}" for kind, name in entity.items())


PRODUCER: Final = "producer_byte_rate"
CONSUMER: Final = "consumer_byte_rate"
REQUEST: Final = "request_percentage"
MUTATION: Final = "controller_mutation_rate"
CONNECTION: Final = "connection_creation_rate"


class Key(Struct, frozen=True, kw_only=True):
    """Kind of quota. With a `maximum`, values are whole numbers; without, fractions are valid."""

    doc: str
    maximum: int | None = None


CLIENT_KEYS: Final[Mapping[str, Key]] = {
    PRODUCER: Key(doc="bytes a second of Produce requests", maximum=LONG_MAX),
    CONSUMER: Key(doc="bytes a second of Fetch responses", maximum=LONG_MAX),
    REQUEST: Key(doc="percent of the time of the broker's event loop"),
    MUTATION: Key(doc="created or deleted partitions a second"),
}
IP_KEYS: Final[Mapping[str, Key]] = {
    CONNECTION: Key(doc="connections a second from the address", maximum=INT_MAX)
}


def keys_of(entity: Entity) -> Mapping[str, Key]:
    """Return the quotas that an entity may have."""
    return IP_KEYS if IP in entity else CLIENT_KEYS


def problem_of(entity: Entity, name: str, value: float | None) -> str | None:
    """Return the error of a quota's value, or None. A value of None removes the quota."""
    keys = keys_of(entity)
    key = keys.get(name)
    if key is None:
        kind = "an ip" if IP in entity else "users and client ids"
        return f"{name}: unknown quota of {kind}; must be {', '.join(keys)}"
    if value is None:
        return None
    if not value > 0 or math.isinf(value):
        return f"{name} = {value:g} must be above 0 and finite"
    if key.maximum is not None:
        if value != math.floor(value):
            return f"{name} = {value:g} must be a whole number"
        if value > key.maximum:
            return f"{name} = {value:g} must be at most {key.maximum}"
    return None


# Handler of AlterClientQuotas: applies all changes to the quotas of an entity, or none.
#
# Source: Kafka's `ClientQuotaControlManager`; KIP-546.


class QuotaChange(Struct, frozen=True, kw_only=True):
    """Change of one quota of an entity; a `value` of None removes it."""

    key: str
    value: float | None


def altered(
    entity: Entity, current: Mapping[str, str], changes: Sequence[QuotaChange]
) -> dict[str, str]:
    """Return the quotas of an entity after changes; raises BadRequest, naming all invalid ones."""
    problems = [problem_of(entity, change.key, change.value) for change in changes]
    wrong = [problem for problem in problems if problem is not None]
    if wrong:
        raise BadRequest(f"{shown(entity)}: {'; '.join(wrong)}")
    left = dict(current)
    for change in changes:
        if change.value is None:
            left.pop(change.key, None)
        else:
            left[change.key] = repr(float(change.value))
    return left


# Handler of DescribeClientQuotas: returns the entities that a filter matches.
#
# Each component of a filter is a condition on one entity type: it must have a given name, be the
# default, or have any value. An entity must match all components. With a strict filter, it must
# have no other entity types.
#
# Source: KIP-546; Kafka's `ClientQuotaCache`.


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
