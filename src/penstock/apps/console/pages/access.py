"""Pages of access control entries: list, add, remove."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.apps.access import wrong_operation
from penstock.apps.console.formats import counted, path
from penstock.apps.console.forms import Form, InvalidField, form_of
from penstock.apps.console.rendering import Pages
from penstock.apps.console.requests import CallerRequests, check_rows, refused
from penstock.apps.console.tables import Column, Filter, Table
from penstock.base.errors import PenstockError
from penstock.base.http_routes import Routes
from penstock.broker.admin.access import DESCRIBE, Caller, Needs, caller_of
from penstock.broker.admin_app import status_of
from penstock.broker.assembly import Assembly
from penstock.client.access import binding_of, creation_body, filter_body
from penstock.security.acls import (
    ANY,
    CLUSTER,
    OPERATIONS,
    PATTERN_TYPES,
    PERMISSIONS,
    RESOURCE_TYPES,
    AclBinding,
    AclFilter,
)

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

ALTER: Final = Needs(operation="alter")
TYPES: Final = {
    "topic": "Topic",
    "group": "Group",
    "cluster": "Cluster",
    "transactional_id": "Transactional id",
    "user": "User (delegation tokens)",
    "delegation_token": "Delegation token",
}
"""Titles of the resource types."""
SELECTORS: Final = (
    "principal", "host", "operation", "permission", "resource_type", "name", "pattern_type",
)  # fmt: skip
"""Parameters that select the entries to remove."""
WORDS: Final[Mapping[str, Sequence[str]]] = {
    "operation": OPERATIONS[1:],
    "permission": PERMISSIONS[1:],
    "resource_type": RESOURCE_TYPES[1:],
    "pattern_type": PATTERN_TYPES[1:],
}
"""Allowed words of the parameters that have words."""

ACLS: Final[Table[AclBinding]] = Table(
    Column(name="principal", title="Principal", key=lambda row: row.principal),
    Column(name="permission", title="Permission", key=lambda row: row.permission),
    Column(name="operation", title="Operation", key=lambda row: row.operation),
    Column(name="resource", title="Resource", key=lambda row: (row.resource_type, row.name)),
    Column(name="pattern", title="Applies to", key=lambda row: row.pattern_type),
    Column(name="host", title="From", key=lambda row: row.host),
    Column(name="act", title=""),
    sort="principal",
    text=lambda row: f"{row.principal} {row.name} {row.operation} {row.host}",
    search="Search principals and resources",
    filters=(
        Filter(
            name="type",
            title="Resource type",
            choices={"": "Any resource", **TYPES},
            test=lambda row, value: row.resource_type == value,
        ),
        Filter(
            name="permission",
            title="Permission",
            choices={"": "Allow and deny", "allow": "Allow", "deny": "Deny"},
            test=lambda row, value: row.permission == value,
        ),
    ),
)


async def list_acls(
    requests: CallerRequests, caller: Caller, chosen: AclFilter
) -> list[AclBinding]:
    """Return the entries that a filter selects, sorted."""
    answer = await requests.call(caller, "DescribeAcls", filter_body(chosen))
    if answer.error_code:
        raise refused(answer.error_code, answer.error_message, "ACLs")
    return sorted(
        binding_of(resource, entry) for resource in answer.resources for entry in resource.acls
    )


class AccessPages(Struct, frozen=True, kw_only=True):
    broker: Assembly
    pages: Pages
    requests: CallerRequests

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /console/access", DESCRIBE, ACLS.parameters)
    async def acls(self, request: Request) -> Response:
        """Show all entries, or that the broker has no authoriser."""
        table = None
        if self.broker.authoriser.refuses:
            found = await list_acls(self.requests, caller_of(request), AclFilter())
            table = ACLS.view(request, found)
        return self.pages.show(
            request,
            "access.html",
            title="Access",
            table=table,
            types=TYPES,
            may_alter=caller_of(request).rights.allows("alter", "cluster", CLUSTER),
        )

    # -- add --------------------------------------------------------------------------------------

    @routes.add("GET /console/acl-add", ALTER, ("principal", "resource_type", "name"))
    async def form(self, request: Request) -> Response:
        """Show the form for new entries, filled with the parameters."""
        return self._form(request, Form({n: [v] for n, v in request.query_params.items()}))

    @routes.add("POST /console/acl-add", ALTER)
    async def add(self, request: Request) -> Response:
        """Add an entry for each chosen operation."""
        form = form_of(request)
        try:
            bindings = _bindings(form)
            body = {"creations": [creation_body(binding) for binding in bindings]}
            answer = await self.requests.call(caller_of(request), "CreateAcls", body)
            check_rows(answer.results, "ACL")
        except PenstockError as error:
            return self._form(request, form, error)
        return self.pages.done(
            path("access"), f"{counted(len(bindings), 'entry', 'entries')} in force."
        )

    def _form(self, request: Request, form: Form, error: PenstockError | None = None) -> Response:
        return self.pages.show(
            request,
            "acl_add.html",
            title="Add entries",
            status=200 if error is None else status_of(error),
            form=form,
            types=TYPES,
            operations=OPERATIONS[2:],
            chosen=form.texts("operation"),
            error=error,
        )

    # -- remove -----------------------------------------------------------------------------------

    @routes.add("GET /console/acl-remove", ALTER, SELECTORS)
    async def preview_remove(self, request: Request) -> Response:
        """Show the entries that the parameters select."""
        form = Form({name: [value] for name, value in request.query_params.items()})
        return await self._remove_page(request, form)

    @routes.add("POST /console/acl-remove", ALTER)
    async def remove(self, request: Request) -> Response:
        """Remove the entries that the fields select."""
        form = form_of(request)
        try:
            chosen = _filter(form)
            form.check_confirmed(_confirmation(chosen))
            body = {"filters": [filter_body(chosen)]}
            answer = await self.requests.call(caller_of(request), "DeleteAcls", body)
            check_rows(answer.filter_results, "ACLs")
        except PenstockError as error:
            return await self._remove_page(request, form, error)
        [result] = answer.filter_results
        count = len(result.matching_acls)
        return self.pages.done(path("access"), f"{counted(count, 'entry', 'entries')} removed.")

    async def _remove_page(
        self, request: Request, form: Form, error: PenstockError | None = None
    ) -> Response:
        chosen = _filter(form)
        found = await list_acls(self.requests, caller_of(request), chosen)
        return self.pages.show(
            request,
            "acl_remove.html",
            title="Remove entries",
            status=200 if error is None else status_of(error),
            selectors={name: form.text(name) for name in SELECTORS},
            found=found,
            types=TYPES,
            confirmation=_confirmation(chosen),
            error=error,
        )


def _bindings(form: Form) -> list[AclBinding]:
    """Return the entries of a form, one for each operation; raises InvalidField."""
    kind = form.text("resource_type")
    if kind not in TYPES:
        raise InvalidField(f"resource type {kind[:64]!r} must be one of {', '.join(TYPES)}")
    operations = [word for word in form.texts("operation") if word in OPERATIONS[2:]]
    if not operations:
        raise InvalidField("choose at least one operation")
    name = CLUSTER if kind == "cluster" else form.text("name")
    if not name:
        raise InvalidField("name the resource; * means all")
    bindings = [
        AclBinding(
            resource_type=kind,
            name=name,
            pattern_type="prefixed" if form.text("pattern_type") == "prefixed" else "literal",
            principal=form.text("principal"),
            host=form.text("host", "*"),
            operation=operation,
            permission="deny" if form.text("permission") == "deny" else "allow",
        )
        for operation in operations
    ]
    for binding in bindings:
        if problem := wrong_operation(binding):
            raise InvalidField(problem)
    return bindings


def _filter(form: Form) -> AclFilter:
    """Return the filter of a form's selectors; raises InvalidField for an unknown word."""
    words = {name: form.text(name, ANY) for name in WORDS}
    for name, word in words.items():
        if word not in WORDS[name]:
            raise InvalidField(f"{name} {word[:64]!r} must be one of {', '.join(WORDS[name])}")
    return AclFilter(
        principal=form.text("principal") or None,
        host=form.text("host") or None,
        name=form.text("name") or None,
        **words,
    )


def _confirmation(chosen: AclFilter) -> str:
    """Return the text that confirms the removal: a principal, a resource, or `all`."""
    return chosen.principal or chosen.name or "all"
