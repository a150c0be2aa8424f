"""Quota entities: a user, a client id, both, or an address; by name or default.

An entity is a mapping from entity type to name; None is the default entity of the type. The control
plane stores it as JSON, sorted by type:

    {"client-id": "etl", "user": null}

Source: KIP-546; Kafka's `ClientQuotaEntity`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Final

from penstock.broker.admin_errors import BadRequest

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
