"""Whom a quota is for: a user, a client id, both, or an address; by name, or by default.

An entity is a mapping from type to name, where None means the default of the type. In the control
plane it is the JSON of that, types in order:

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
    """The entity of a request's pairs of type and name.

    Raises:
        BadRequest: there is no such thing; the message says why.
    """
    found: dict[str, str | None] = {}
    for kind, name in parts:
        if kind not in TYPES:
            raise BadRequest(f"there is no type of quota entity {kind!r}, only {', '.join(TYPES)}")
        if kind in found:
            raise BadRequest(f"the quota entity names its {kind} twice")
        if name == "":
            raise BadRequest(f"the {kind} of a quota entity is empty; null is its default")
        found[kind] = name
    if not found:
        raise BadRequest("a quota entity without a type")
    if IP in found:
        if len(found) > 1:
            raise BadRequest("a quota of an ip has no user and no client-id")
        found[IP] = _address(found[IP])
    return found


def _address(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return str(ip_address(text))
    except ValueError:
        raise BadRequest(f"{text!r} is no IP address") from None


def text_of(entity: Entity) -> str:
    """As it is stored; equal entities have equal texts."""
    return json.dumps(dict(entity), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def of_text(text: str) -> dict[str, str | None]:
    """The entity of a text of `text_of`."""
    found: dict[str, str | None] = json.loads(text)
    return found


def shown(entity: Entity) -> str:
    """For messages: `user alice, client-id (default)`."""
    return ", ".join(f"{kind} {name or '(default)'}" for kind, name in entity.items())
