"""What of Kafka requests is audited: those that are refused, and those that change something.

Which ones change something is what the table of API keys says: those that are asked for create,
delete, alter or alter configs. A line names what the request names, and each error of its answer;
it has no values, which may be secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.errors import error_name
from penstock.security import AuthorisationFailed
from penstock.security.audit import Audit, AuditEvent
from penstock.wire.kafka.apis import APIS, Check

if TYPE_CHECKING:
    from penstock.broker.connection import RequestContext
    from penstock.security.audit import EventKind, Outcome


def _is_change(check: Check) -> bool:
    """Metadata, whose handler asks for create, changes nothing that a client asks for."""
    if check.operation == "create":
        return check.scope != "asked"
    return check.operation in ("delete", "alter", "alter_configs")


CHANGES: Final = frozenset(
    api.key for api in APIS.values() if any(_is_change(check) for check in api.checks)
)
NAMES: Final = (
    "name", "topic", "topic_id", "group_id", "transactional_id", "resource_name", "entity_type",
    "entity_name", "principal",
)  # fmt: skip
"""Fields of requests that are names; what has several, as an ACL, is named by all of them."""


class RequestAudit:
    """The audit of one broker's Kafka requests."""

    def __init__(self, audit: Audit) -> None:
        self._record = audit.record

    def refused(self, context: RequestContext) -> None:
        """Some of what a request asks for was refused, which is told once."""
        refused, context.refused = context.refused, []
        names = sorted({one.name for one in refused})
        kind = refused[0].resource_type
        self._record(_event(context, "denial", "denied", names, str(refused[0]), kind))

    def changed(self, context: RequestContext, request: Any, answer: Any) -> None:
        """A request of `CHANGES` was answered, and not refused in all of its elements."""
        if getattr(request, "validate_only", False):
            return
        errors = sorted(set(_errors(answer)))
        if context.refused and all(error.endswith("_AUTHORIZATION_FAILED") for error in errors):
            return
        outcome: Outcome = "failure" if errors else "success"
        self._record(_event(context, "change", outcome, named(request), ", ".join(errors)))

    def failed(self, context: RequestContext, request: Any, error: Exception) -> None:
        """A request of `CHANGES` was not carried out; refusals are told by `refused`."""
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
    """What a request names, in its order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from named(one)
    elif is_dataclass(value):
        own = [str(found) for name in NAMES if (found := getattr(value, name, None))]
        if own:
            yield " ".join(own)
            return
        for field in fields(value):
            inner = getattr(value, field.name)
            if isinstance(inner, tuple):
                yield from named(inner)


def _errors(answer: Any) -> Iterator[str]:
    """The names of the errors in an answer."""
    if isinstance(answer, Mapping):
        for name, value in answer.items():
            if name == "error_code":
                if value:
                    yield error_name(int(value))
            else:
                yield from _errors(value)
    elif isinstance(answer, (list, tuple)):
        for one in answer:
            yield from _errors(one)
