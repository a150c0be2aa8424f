"""Handlers of requests for associations of topics with subjects.

Source: Confluent's Schema Registry API, as its clients use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, cast

import msgspec
from msgspec import Struct

from penstock.base.http_routes import Routes
from penstock.registry import decisions
from penstock.registry.access import CHANGES, READS, Effect
from penstock.registry.errors import InvalidRequest
from penstock.registry.http import Call
from penstock.registry.routes import SchemaBody, decoded, page, subject_of
from penstock.registry.service import SchemaRegistry
from penstock.registry.state import RegistryState
from penstock.registry.values import Association, guid_of, parse_subject


class AssociationItem(Struct, rename="camel", omit_defaults=True):
    subject: str | None = None
    association_type: str | None = None
    lifecycle: str | None = None
    frozen: bool | None = None
    schema: SchemaBody | None = None
    normalize: bool | None = None


class AssociationBody(Struct, rename="camel"):
    resource_name: str = ""
    resource_namespace: str = ""
    resource_id: str = ""
    resource_type: str | None = None
    associations: list[AssociationItem] = []


class AssociationViews:
    """Associations of topics with subjects."""

    routes: ClassVar[Routes[Any, Effect]] = Routes()

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    @routes.add("POST /associations", CHANGES)
    async def create(self, call: Call) -> Any:
        """Associate a resource with subjects, and register schemas that the request has."""
        return await self._stored(call, replace_existing=False)

    @routes.add("PUT /associations", CHANGES)
    async def replace(self, call: Call) -> Any:
        """Associate a resource with subjects, and replace its associations of the same types."""
        return await self._stored(call, replace_existing=True)

    async def _stored(self, call: Call, *, replace_existing: bool) -> Any:
        body = decoded(call, AssociationBody)
        if not (body.resource_name and body.resource_id and body.associations):
            raise InvalidRequest("resourceName, resourceId and associations are required")
        wanted: list[Association] = []
        items: list[dict[str, Any]] = []
        for item in body.associations:
            made = _association(body, item)
            subject = parse_subject(made.subject, call.context)
            call.caller.check("write", subject)
            if item.schema is not None:
                await self._registry.register(
                    subject, item.schema.content(), normalize=bool(item.normalize)
                )
            wanted.append(made)
            shown = {
                "subject": made.subject,
                "associationType": made.association_type,
                "lifecycle": made.lifecycle,
                "frozen": made.frozen,
            }
            items.append(shown if item.schema is None else {**shown, "schema": item.schema})
        decide: Callable[[RegistryState], Any] = partial(
            decisions.associate, associations=wanted, replace_existing=replace_existing
        )
        await self._registry.change(decide)
        return {
            "resourceName": body.resource_name,
            "resourceNamespace": body.resource_namespace,
            "resourceId": body.resource_id,
            "resourceType": body.resource_type or "topic",
            "associations": items,
        }

    @routes.add("GET /associations/resources/{namespace}/{name}", READS)
    async def of_resource(self, call: Call) -> Any:
        """Return the associations of a resource by its name; the namespace `-` means any."""
        namespace, name = call.names["namespace"], call.names["name"]
        found = [
            item
            for item in self._registry.state.associations.values()
            if item.resource_name == name and namespace in ("-", item.resource_namespace)
        ]
        return self._shown(call, found)

    @routes.add("GET /associations/resources/{id}", READS)
    async def of_resource_id(self, call: Call) -> Any:
        """Return the associations of a resource by its id."""
        found = [
            item
            for item in self._registry.state.associations.values()
            if item.resource_id == call.names["id"]
        ]
        return self._shown(call, found)

    @routes.add("GET /associations/subjects/{subject}", READS)
    async def of_subject(self, call: Call) -> Any:
        """Return the associations of a subject."""
        subject = subject_of(call)
        found = [
            item
            for item in self._registry.state.associations.values()
            if parse_subject(item.subject) == subject
        ]
        return self._shown(call, found)

    def _shown(self, call: Call, found: Iterable[Association]) -> Any:
        parameters = call.request.query_params
        types, kind = parameters.getlist("associationType"), call.text("resourceType")
        lifecycle = call.text("lifecycle")
        chosen = [
            item
            for item in found
            if (not types or item.association_type in types)
            and kind in ("", item.resource_type)
            and lifecycle in ("", item.lifecycle)
            and call.caller.sees(parse_subject(item.subject))
        ]
        shown = [msgspec.to_builtins(item) for item in chosen]
        defaults: Mapping[str, Any] = {
            "resourceType": "topic", "associationType": "value", "lifecycle": "WEAK",
            "frozen": False,
        }  # fmt: skip
        return page(call, [{**defaults, **item} for item in shown])

    @routes.add("DELETE /associations/resources/{id}", CHANGES)
    async def delete(self, call: Call) -> Any:
        """Delete the associations of a resource."""
        identifier = call.names["id"]
        state = self._registry.state
        for (resource, _), item in state.associations.items():
            if resource == identifier:
                call.caller.check("write", parse_subject(item.subject))
        decide: Callable[[RegistryState], Any] = partial(
            decisions.dissociate,
            resource_id=identifier,
            resource_type=call.text("resourceType") or None,
            types=call.request.query_params.getlist("associationType"),
            cascade=call.flag("cascadeLifecycle"),
        )
        await self._registry.change(decide)
        return {}


def _association(body: AssociationBody, item: AssociationItem) -> Association:
    kind = item.association_type or "value"
    lifecycle = (item.lifecycle or "WEAK").upper()
    if kind not in ("key", "value") or lifecycle not in ("STRONG", "WEAK"):
        raise InvalidRequest(
            f"associationType {kind[:64]!r} must be key or value, and lifecycle"
            f" {lifecycle[:64]!r} STRONG or WEAK"
        )
    return Association(
        subject=item.subject or f"{body.resource_name}-{kind}",
        guid=guid_of([body.resource_id, kind]),
        resource_name=body.resource_name,
        resource_namespace=body.resource_namespace,
        resource_id=body.resource_id,
        resource_type=body.resource_type or "topic",
        association_type=kind,
        lifecycle=cast("Any", lifecycle),
        frozen=bool(item.frozen),
    )
