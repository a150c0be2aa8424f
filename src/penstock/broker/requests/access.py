"""Authorisation of requests, before the handler runs, and their audit log.

Elements that the caller may not use are removed from the request.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from penstock.broker.net.errors import element_answers, error_name, error_of
from penstock.security import CLUSTER, EVERYTHING, AuthorisationFailed
from penstock.security.acls import OPERATIONS, SUPPORTED
from penstock.security.audit import Audit, AuditEvent, EventKind, Outcome
from penstock.wire.kafka.apis import APIS, Check

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.broker.net.connection import RequestContext
    from penstock.broker.partitions.registry import ServedTopic
    from penstock.security import Rights


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
        """Return the handler's `answer` adapted to the caller's permissions.

        Elements that were removed from the request get their errors, at their positions. Elements
        that the caller may not see (scope `listed`) are removed.
        """
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


# Bit fields of permitted operations (KIP-430): bit `n` is Kafka's `AclOperation` `n`.


NOT_ASKED: Final = -(2**31)
"""Value of the bit field in a response if the client did not request it."""


def operations_of(rights: Rights, resource_type: str, name: str) -> int:
    if rights is EVERYTHING:
        return all_operations(resource_type)
    return _bits(rights.operations(resource_type, name))


def cluster_operations(rights: Rights) -> int:
    """Return the permitted operations on the cluster; 0 without permission to describe it."""
    if not rights.allows("describe", "cluster", CLUSTER):
        return 0
    return operations_of(rights, "cluster", CLUSTER)


@cache
def all_operations(resource_type: str) -> int:
    return _bits(SUPPORTED[resource_type])


def _bits(operations: Iterable[str]) -> int:
    return sum(1 << OPERATIONS.index(operation) for operation in operations)


# Audit log of Kafka requests: records every rejected request and every request that changes state.
#
# A request changes state if the table of API keys requires create, delete, alter, alter_configs or
# create_tokens for it. A line contains the names in the request and the errors in its response. It
# contains no values, because values may be secrets.


def _is_change(check: Check) -> bool:
    """Return whether an API with this check changes state.

    Metadata, the only API with the scope `asked` for create, is not audited as a change.
    """
    if check.operation == "create":
        return check.scope != "asked"
    return check.operation in ("delete", "alter", "alter_configs", "create_tokens")


CHANGES: Final = frozenset(
    api.key for api in APIS.values() if any(_is_change(check) for check in api.checks)
)
AUDITED_NAMES: Final = (
    "name", "topic", "topic_id", "group_id", "transactional_id", "resource_name", "entity_type",
    "entity_name", "principal", "owner_principal_name",
)  # fmt: skip
"""Request fields that are names. An element with several of them, such as an ACL, is audited under
all of its names, joined by spaces."""


class RequestAudit:
    def __init__(self, audit: Audit) -> None:
        self._record = audit.record

    def refused(self, context: RequestContext) -> None:
        refused, context.refused = context.refused, []
        names = sorted({error.name for error in refused})
        kind = refused[0].resource_type
        self._record(_event(context, "denial", "denied", names, str(refused[0]), kind))

    def changed(self, context: RequestContext, request: Any, answer: Any) -> None:
        """Write an audit event for a request that changes state (`CHANGES`) and has a response.

        If all errors of the response are denials, write none, because `refused` writes an event.
        """
        if getattr(request, "validate_only", False):
            return
        errors = sorted(set(_errors(answer)))
        if context.refused and all(error.endswith("_AUTHORIZATION_FAILED") for error in errors):
            return
        outcome: Outcome = "failure" if errors else "success"
        self._record(_event(context, "change", outcome, named(request), ", ".join(errors)))

    def failed(self, context: RequestContext, request: Any, error: Exception) -> None:
        """Write an audit event for a request that changes state (`CHANGES`) and failed.

        For AuthorisationFailed write none, because `refused` writes an event.
        """
        if isinstance(error, AuthorisationFailed) or getattr(request, "validate_only", False):
            return
        code = getattr(error, "code", "unknown_server_error")
        self._record(_event(context, "change", "failure", named(request), code))


def _event(
    context: RequestContext,
    event: EventKind,
    outcome: Outcome,
    resources: Iterable[str],
    reason: str,
    resource_type: str = "",
) -> AuditEvent:
    connection = context.connection
    return AuditEvent(
        event=event,
        outcome=outcome,
        principal=str(connection.principal),
        address=connection.client_host,
        listener=connection.listener,
        operation=context.api.name,
        resource_type=resource_type or context.api.checks[-1].resource,
        resources=list(resources),
        reason=reason,
    )


def named(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from named(item)
    elif is_dataclass(value):
        own = [str(found) for name in AUDITED_NAMES if (found := getattr(value, name, None))]
        if own:
            yield " ".join(own)
            return
        for field in fields(value):
            inner = getattr(value, field.name)
            if isinstance(inner, tuple):
                yield from named(inner)


def _errors(answer: Any) -> Iterator[str]:
    if isinstance(answer, Mapping):
        for name, value in answer.items():
            if name == "error_code":
                if value:
                    yield error_name(int(value))
            else:
                yield from _errors(value)
    elif isinstance(answer, (list, tuple)):
        for item in answer:
            yield from _errors(item)
