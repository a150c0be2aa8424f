"""Which resources a request names, of the type that the table of API keys has for its API."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from penstock.security import CLUSTER
from penstock.wire.kafka import fetch, produce
from penstock.wire.kafka.apis import PRODUCE, Api, Resource

FIELDS: Final[dict[Resource, tuple[str, ...]]] = {
    "topic": ("topics", "topic_names"),
    "group": ("group_id", "group_ids", "groups", "groups_names", "key", "coordinator_keys"),
    "transactional_id": (
        "transactional_id",
        "v3_and_below_transactional_id",
        "transactions",
        "transactional_ids",
    ),
}
"""Where requests have their resources, which are text or have one of `NAMES`."""

NAMES: Final = ("name", "topic", "topic_id", "group_id", "transactional_id")


def resources_of(api: Api, request: Any) -> list[str]:
    """The resources of a decoded request; a topic of which only the id is known by that.

    A request for all of a kind, as Metadata for all topics, names none.
    """
    if api.resource == "cluster":
        return [CLUSTER]
    found: list[str] = []
    for field in FIELDS.get(api.resource, ()):
        value = getattr(request, field, None)
        found += [value] if isinstance(value, str) else map(_name, value or ())
    return found


def _name(element: Any) -> str:
    if isinstance(element, str):
        return element
    return str(next(filter(None, (getattr(element, name, None) for name in NAMES)), ""))


def topics_of(api: Api, version: int, frame: memoryview, offset: int) -> list[str]:
    """The topics of a request of Produce or Fetch, which have codecs of their own."""
    codec = produce if api.key == PRODUCE else fetch
    decode: Callable[..., Any] = codec.decode_request
    keys: Iterable[bytes] = (topic[0] for topic in decode(frame, offset, version).topics)
    by_id = version >= codec.TOPIC_IDS_FROM
    return [key.hex() if by_id else key.decode(errors="replace") for key in keys]
