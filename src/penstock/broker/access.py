"""What a request may not do is taken out of it before its handler runs, by the table of API keys.

`wire/kafka/apis.py` says for each API what is asked. What is asked of the `whole` request fails
it; of `each` element, takes those out that are refused, and puts their errors into the answer,
where they stood in the request; what is `listed` is left out of the answer. So a handler sees
nothing that its caller must not touch, and cannot forget to ask. Only where it depends on what the
handler knows does it ask itself, by `context.rights`: the rows that say `asked`.

A topic that is named by its id is looked up; an id that nobody has is the handler's business.

Source: Kafka's `KafkaApis`, `ControllerApis` and `AuthHelper`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.error_answers import element_answers
from penstock.broker.errors import error_of
from penstock.security import CLUSTER

if TYPE_CHECKING:
    from penstock.broker.connection import RequestContext
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
"""Where requests have their resources: text, or elements that are text or have one of `NAMES`."""

NAMES: Final = ("name", "topic", "topic_name", "group_id", "transactional_id")

CONFIG_TYPES: Final = {2: "topic", 4: "cluster", 8: "cluster", 16: "cluster", 32: "group"}
"""What the types of config resources are to the authoriser; of others handlers know nothing."""

TopicName = Callable[[bytes], str | None]
"""The name of the topic of an id; None if there is none."""
Resource = tuple[str, str]
"""Its type, and its name."""


@dataclasses.dataclass(frozen=True, slots=True)
class Granted:
    """What is left of a request, and what its answer must get, or lose.

    `refused` are the answers of elements, by their places in the request, in the array `field`.
    """

    request: Any
    field: str = ""
    refused: Sequence[tuple[int, Mapping[str, Any]]] = ()
    listed: Check | None = None
    nothing_left: bool = False

    def complete(self, answer: Mapping[str, Any], rights: Rights) -> Mapping[str, Any]:
        """The answer with what was refused, or without what must not be seen."""
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
                name: [one for one in value if _is_seen(one, check, rights)]
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
    """Ask what the table says of the request's API and version; None if all of it is granted.

    Raises:
        AuthorisationFailed: the request is refused as a whole.
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
        if not context.rights.allows(operation, resource, name):
            raise context.refusal(operation, resource, name)


def names_of(resource: str, request: Any) -> Iterator[str]:
    """The resources of a type that a request names."""
    for field in _fields_of(resource, request.__class__):
        value = getattr(request, field)
        if isinstance(value, str):
            yield value
        elif value is not None:
            yield from map(_text, value)


@cache
def _fields_of(resource: str, kind: type[Any]) -> tuple[str, ...]:
    """Where a kind of request has its resources of a type."""
    return tuple([field for field in FIELDS[resource] if hasattr(kind, field)])


def _sift(
    context: RequestContext, check: Check, request: Any, topic_name: TopicName
) -> Granted | None:
    """Part the elements of a request into those that are left, and the answers of the others."""
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
    kept = tuple([one for place, one in enumerate(elements) if place not in gone])
    left = dataclasses.replace(request, **{array: kept})
    return Granted(left, field, refused, nothing_left=not kept)


def resource_of(kind: str, element: Any, topic_name: TopicName) -> Resource | None:
    """What an element of a request is about; None where there is nothing that can be asked."""
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
    """What the name is called in a kind of element."""
    return next((name for name in NAMES if hasattr(kind, name)), "")
