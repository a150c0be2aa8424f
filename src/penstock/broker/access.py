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
            elements = list(answer.get(self.field) or ())
            for place, element in self.refused:
                elements.insert(place, element)
            answer = {**answer, self.field: elements}
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


def granted(context: RequestContext, request: Any, topic_name: TopicName) -> Granted:
    """Ask what the table says of the request's API and version.

    Raises:
        AuthorisationFailed: the request is refused as a whole.
    """
    answer = Granted(request)
    for check in context.api.checks:
        if not check.asked_of(context.version) or _is_free(check, context.rights):
            continue
        if check.scope == "whole":
            _ask_all(context, check, request)
        elif check.scope == "each":
            answer = _sift(context, check, request, topic_name)
        elif check.scope == "listed":
            answer = dataclasses.replace(answer, listed=check)
    return answer


def _is_free(check: Check, rights: Rights) -> bool:
    return check.unless is not None and rights.allows(check.unless, "cluster", CLUSTER)


def _ask_all(context: RequestContext, check: Check, request: Any) -> None:
    operation, resource = check.operation, check.resource
    names = [CLUSTER] if resource == "cluster" else names_of(resource, request)
    for name in names:
        if not context.rights.allows(operation, resource, name):
            raise context.refusal(operation, resource, name)


def names_of(resource: str, request: Any) -> Iterator[str]:
    """The resources of a type that a request names."""
    for field in FIELDS[resource]:
        value = getattr(request, field, None)
        if isinstance(value, str):
            yield value
        elif value is not None:
            yield from map(_text, value)


def _sift(context: RequestContext, check: Check, request: Any, topic_name: TopicName) -> Granted:
    """Part the elements of a request into those that are left, and the answers of the others."""
    array = next(field for field in FIELDS[check.resource] if hasattr(request, field))
    elements = getattr(request, array) or ()
    kept: list[Any] = []
    refused: list[tuple[int, Mapping[str, Any]]] = []
    field = ""
    for place, element in enumerate(elements):
        resource = resource_of(check.resource, element, topic_name)
        if resource is None or context.rights.allows(check.operation, *resource):
            kept.append(element)
            continue
        error = error_of(context.refusal(check.operation, *resource))
        field, answers = element_answers(context.api, context.version, [element], *error)
        refused += [(place, one) for one in answers]
    if not refused:
        return Granted(request)
    left = dataclasses.replace(request, **{array: tuple(kept)})
    return Granted(left, field, refused, nothing_left=not kept)


def resource_of(kind: str, element: Any, topic_name: TopicName) -> Resource | None:
    """What an element of a request is about; None where there is nothing that can be asked."""
    if kind == "config":
        found = CONFIG_TYPES.get(element.resource_type)
        if found is None:
            return None
        return found, CLUSTER if found == "cluster" else element.resource_name
    topic_id = getattr(element, "topic_id", None)
    if kind == "topic" and topic_id is not None:
        name = topic_name(topic_id.bytes)
        return None if name is None else (kind, name)
    return kind, _text(element)


def _text(element: Any) -> str:
    if isinstance(element, str):
        return element
    return next((str(getattr(element, name)) for name in NAMES if hasattr(element, name)), "")
