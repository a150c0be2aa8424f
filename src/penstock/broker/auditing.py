"""Audit log of Kafka requests: records every rejected request and every request that changes state.

A request changes state if the table of API keys requires create, delete, alter or alter_configs for
it. A line contains the names in the request and the errors in its response. It contains no values,
because values may be secrets.
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
    """Return whether an API with this check changes state.

    Metadata, the only API with the scope `asked` for create, is not audited as a change.
    """
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
        """Record an answered request of `CHANGES`.

        Nothing is recorded if all of its errors are denials, which `refused` records.
        """
        if getattr(request, "validate_only", False):
            return
        errors = sorted(set(_errors(answer)))
        if context.refused and all(error.endswith("_AUTHORIZATION_FAILED") for error in errors):
            return
        outcome: Outcome = "failure" if errors else "success"
        self._record(_event(context, "change", outcome, named(request), ", ".join(errors)))

    def failed(self, context: RequestContext, request: Any, error: Exception) -> None:
        """Record a request of `CHANGES` that failed with `error`.

        Nothing is recorded for AuthorisationFailed, which `refused` records.
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
        own = [str(found) for name in NAMES if (found := getattr(value, name, None))]
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
