"""Authorisation of requests: removes elements that the caller may not use before the handler runs.

`wire/kafka/apis.py` lists the permissions that each API requires, each with a scope:

- `whole`: without the permission the whole request is rejected.
- `each`: elements that the caller may not use are removed from the request. Their errors are
  added to the response, at the same positions.
- `listed`: elements that the caller may not see are removed from the response.
- `asked`: the handler itself calls `context.rights`, because the check depends on its state.

Source: Kafka's `KafkaApis`, `ControllerApis` and `AuthHelper`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from penstock.broker.error_answers import element_answers
from penstock.broker.errors import error_of
from penstock.security import CLUSTER

if TYPE_CHECKING:
    from penstock.broker.connection import RequestContext
    from penstock.broker.partition_registry import ServedTopic
    from penstock.security import Rights
    from penstock.wire.kafka.apis import Check

FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "topic": ("topics", "topic_names", "subscribed_topic_names"),
    "group": ("group_id", "group_ids", "groups", "groups_names"),
    "transactional_id": (
        "transactional_id", "v3_and_below_transactional_id", "transactional_ids",
    ),
    "config": ("resources",),
}  # fmt: skip
"""Request fields that name resources, by resource type. A field is a name, or an array of names or
of structs with one of the fields `NAMES`."""

NAMES: Final = ("name", "topic", "topic_name", "group_id", "transactional_id")

CONFIG_TYPES: Final = {2: "topic", 4: "cluster", 8: "cluster", 16: "cluster", 32: "group"}
"""Resource type for the authoriser, by the number of Kafka's config resource type: topic, broker,
broker logger, client metrics, group."""

TopicName = Callable[[bytes], str | None]
"""Function that returns the name of a topic by its id; None for an unknown id."""
Resource = tuple[str, str]
"""Resource type and name."""


class Granted(Struct, frozen=True):
    """Permitted part of a request, and the changes that `complete` makes to its response.

    `refused` are the response elements with an error, each with its index in the response's array
    `field`. `listed` is the check that filters the response. `nothing_left` means that every
    element of the request was removed.
    """

    request: Any
    field: str = ""
    refused: Sequence[tuple[int, Mapping[str, Any]]] = ()
    listed: Check | None = None
    nothing_left: bool = False

    def complete(self, answer: Mapping[str, Any], rights: Rights) -> Mapping[str, Any]:
        """Return `answer` with the errors of removed elements, without what `listed` hides."""
        if self.refused:
            elements: list[Any] = []
            others = iter(answer.get(self.field) or ())
            for place, element in self.refused:
                elements += islice(others, max(0, place - len(elements)))
                elements.append(element)
            answer = {**answer, self.field: [*elements, *others]}
        if self.listed is not None:
            check = self.listed
            answer = {
                name: [element for element in value if _is_seen(element, check, rights)]
                if isinstance(value, list | tuple)
                else value
                for name, value in answer.items()
            }
        return answer


def _is_seen(element: Any, check: Check, rights: Rights) -> bool:
    if not isinstance(element, Mapping):
        return True
    name = next((str(element[name]) for name in NAMES if name in element), "")
    return rights.allows(check.operation, check.resource, name)


def granted(context: RequestContext, request: Any, topic_name: TopicName) -> Granted | None:
    """Apply the checks of the API; return None if the request is permitted unchanged.

    Raises:
        AuthorisationFailed: a permission for the whole request is missing.
    """
    answer = None
    for check in context.api.checks:
        if not check.asked_of(context.version) or _is_free(check, context.rights):
            continue
        if check.scope == "whole":
            _ask_all(context, check, request)
        elif check.scope == "each":
            answer = _sift(context, check, request, topic_name)
        elif check.scope == "listed":
            answer = Granted(request, listed=check)
    return answer


def _is_free(check: Check, rights: Rights) -> bool:
    return check.unless is not None and rights.allows(check.unless, "cluster", CLUSTER)


def _ask_all(context: RequestContext, check: Check, request: Any) -> None:
    operation, resource = check.operation, check.resource
    for name in (CLUSTER,) if resource == "cluster" else names_of(resource, request):
        context.authorise(operation, resource, name)


def forbidden_topic(
    rights: Rights, operation: str, key: bytes, topics_by_id: Mapping[bytes, ServedTopic] | None
) -> str | None:
    """Return the name of a topic if `operation` on it is forbidden, else None.

    `key` is the topic's id, or its name if `topics_by_id` is None. An unknown id returns None.
    """
    if topics_by_id is None:
        name = key.decode(errors="replace")
    elif (topic := topics_by_id.get(key)) is not None:
        name = topic.topic.name
    else:
        return None
    return None if rights.allows(operation, "topic", name) else name


def names_of(resource: str, request: Any) -> Iterator[str]:
    """Yield the names of the request's resources of type `resource`."""
    for field in _fields_of(resource, request.__class__):
        value = getattr(request, field)
        if isinstance(value, str):
            yield value
        elif value is not None:
            yield from map(_text, value)


@cache
def _fields_of(resource: str, kind: type[Any]) -> tuple[str, ...]:
    return tuple([field for field in FIELDS[resource] if hasattr(kind, field)])


def _sift(
    context: RequestContext, check: Check, request: Any, topic_name: TopicName
) -> Granted | None:
    kind, operation, allows = check.resource, check.operation, context.rights.allows
    array = _fields_of(kind, request.__class__)[0]
    elements = getattr(request, array) or ()
    refused: list[tuple[int, Mapping[str, Any]]] = []
    gone: set[int] = set()
    field = ""
    for place, element in enumerate(elements):
        resource = resource_of(kind, element, topic_name)
        if resource is None or allows(operation, *resource):
            continue
        gone.add(place)
        error = error_of(context.refusal(check.operation, *resource))
        field, answers = element_answers(context.api, context.version, [element], *error)
        refused += [(place, answer) for answer in answers]
    if not gone:
        return None
    kept = tuple([element for index, element in enumerate(elements) if index not in gone])
    left = dataclasses.replace(request, **{array: kept})
    return Granted(left, field, refused, nothing_left=not kept)


def resource_of(kind: str, element: Any, topic_name: TopicName) -> Resource | None:
    """Return the resource type and name to check for an element of a request.

    None for an unknown topic id, and for an unknown config resource type.
    """
    if kind == "config":
        found = CONFIG_TYPES.get(element.resource_type)
        if found is None:
            return None
        return found, CLUSTER if found == "cluster" else element.resource_name
    topic_id = getattr(element, "topic_id", None) if kind == "topic" else None
    if topic_id is not None:
        name = topic_name(topic_id.bytes)
        return None if name is None else (kind, name)
    return kind, _text(element)


def _text(element: Any) -> str:
    if isinstance(element, str):
        return element
    name = _name_of(element.__class__)
    return str(getattr(element, name)) if name else ""


@cache
def _name_of(kind: type[Any]) -> str:
    return next((name for name in NAMES if hasattr(kind, name)), "")
