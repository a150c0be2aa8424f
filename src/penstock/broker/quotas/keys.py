"""Kinds of quotas, and their valid values, as in Kafka's `QuotaConfig`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from penstock.base.settings import INT_MAX, LONG_MAX
from penstock.broker.quotas.entities import IP, Entity

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
