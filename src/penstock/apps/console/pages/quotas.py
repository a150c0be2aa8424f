"""Pages of quotas: list with the use now, set, remove."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.apps.console.formats import UNKNOWN, path, size
from penstock.apps.console.forms import Form, InvalidField, form_of
from penstock.apps.console.rendering import Pages
from penstock.apps.console.requests import CallerRequests, check_rows, refused
from penstock.apps.console.tables import Column, Filter, Table
from penstock.base.errors import PenstockError
from penstock.base.http_routes import Routes
from penstock.broker.admin.access import Caller, Needs, caller_of
from penstock.broker.admin_app import status_of
from penstock.broker.assembly import Assembly
from penstock.broker.quotas.entities import (
    CLIENT_ID,
    CLIENT_KEYS,
    CONSUMER,
    IP,
    IP_KEYS,
    PRODUCER,
    USER,
)
from penstock.client.access import entity_text
from penstock.security import CLUSTER

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

DESCRIBE_CONFIGS: Final = Needs(operation="describe_configs")
ALTER_CONFIGS: Final = Needs(operation="alter_configs")
BYTE_RATES: Final = (PRODUCER, CONSUMER)
KEYS: Final = {**CLIENT_KEYS, **IP_KEYS}
KINDS: Final = {USER: "User", CLIENT_ID: "Client id", IP: "Address"}
DEFAULT_PREFIX: Final = "default-"
"""Beginning of the names of fields that select the default entity of a kind."""
SELECTORS: Final = (*KINDS, *(f"{DEFAULT_PREFIX}{kind}" for kind in KINDS))

Entity = Mapping[str, str | None]


class ListedQuota(Struct, frozen=True, kw_only=True):
    """Quota of an entity; `used` is the highest recent use on this broker, divided by the quota.

    `used` is None if no client of the entity is measured on this broker.
    """

    entity: Entity
    key: str
    value: float
    used: float | None

    @property
    def shown(self) -> str:
        return entity_text(self.entity)

    @property
    def value_text(self) -> str:
        if self.key in BYTE_RATES:
            return f"{size(self.value)}/s"
        return f"{self.value:.15g}{' %' if self.key == 'request_percentage' else '/s'}"

    @property
    def used_text(self) -> str:
        return UNKNOWN if self.used is None else f"{100 * self.used:.0f} %"


QUOTAS: Final[Table[ListedQuota]] = Table(
    Column(name="entity", title="Applies to", key=lambda row: row.shown),
    Column(name="quota", title="Quota", key=lambda row: row.key),
    Column(name="value", title="Limit of each broker", key=lambda row: row.value, number=True),
    Column(name="used", title="Used here now", key=lambda row: row.used, number=True),
    Column(name="act", title=""),
    sort="entity",
    text=lambda row: f"{row.shown} {row.key}",
    search="Search users, client ids and addresses",
    filters=(
        Filter(
            name="kind",
            title="Kind",
            choices={"": "All", **KINDS},
            test=lambda row, value: value in row.entity,
        ),
        Filter(
            name="quota",
            title="Quota",
            choices={"": "Any quota", **{key: key for key in KEYS}},
            test=lambda row, value: row.key == value,
        ),
    ),
)


class QuotaPages(Struct, frozen=True, kw_only=True):
    broker: Assembly
    pages: Pages
    requests: CallerRequests

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /console/quotas", DESCRIBE_CONFIGS, QUOTAS.parameters)
    async def quotas(self, request: Request) -> Response:
        caller = caller_of(request)
        return self.pages.show(
            request,
            "quotas.html",
            title="Quotas",
            table=QUOTAS.view(request, await self._listed(caller, {})),
            may_alter=caller.rights.allows("alter_configs", "cluster", CLUSTER),
            keys=KEYS,
            selectors_of=selectors_of,
        )

    async def _listed(self, caller: Caller, entity: Entity) -> list[ListedQuota]:
        """Return the quotas of one entity, or of all if it is empty."""
        components = [
            {"entity_type": kind, "match_type": 1 if name is None else 0, "match": name}
            for kind, name in entity.items()
        ]
        body = {"components": components, "strict": bool(entity)}
        answer = await self.requests.call(caller, "DescribeClientQuotas", body)
        if answer.error_code:
            raise refused(answer.error_code, answer.error_message, "quotas")
        used = self.broker.quotas.used()
        return [
            ListedQuota(
                entity=found,
                key=value.key,
                value=float(value.value),
                used=_used(used, found, value.key),
            )
            for entry in answer.entries or ()
            for found in [{part.entity_type: part.entity_name for part in entry.entity}]
            for value in entry.values
        ]

    @routes.add("GET /console/quota-set", ALTER_CONFIGS, SELECTORS)
    async def form(self, request: Request) -> Response:
        """Show the form for the quotas of an entity, filled with those that it has."""
        fields = {name: [value] for name, value in request.query_params.items()}
        form = Form(fields)
        entity = _entity(form)
        if entity:
            for row in await self._listed(caller_of(request), entity):
                fields[row.key] = [f"{row.value:.15g}"]
        return self._form(request, form)

    @routes.add("POST /console/quota-set", ALTER_CONFIGS)
    async def set_quotas(self, request: Request) -> Response:
        """Set the quotas of an entity; those whose field is empty are removed."""
        form, caller = form_of(request), caller_of(request)
        try:
            entity = _entity(form)
            if not entity:
                raise InvalidField("name a user, a client id or an address, or choose a default")
            values = {key: _value(key, text) for key in KEYS if (text := form.text(key))}
            known = {row.key for row in await self._listed(caller, entity)}
            changes = [
                {"key": key, "value": value, "remove": False} for key, value in values.items()
            ]
            changes += [
                {"key": key, "value": 0.0, "remove": True} for key in sorted(known - {*values})
            ]
            await self._alter(caller, entity, changes)
        except PenstockError as error:
            return self._form(request, form, error)
        return self.pages.done(path("quotas"), f"The quotas of {entity_text(entity)} were changed.")

    async def _alter(self, caller: Caller, entity: Entity, changes: list[dict[str, Any]]) -> None:
        parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
        body = {"entries": [{"entity": parts, "ops": changes}], "validate_only": False}
        answer = await self.requests.call(caller, "AlterClientQuotas", body)
        check_rows(answer.entries, f"the quotas of {entity_text(entity)}")

    def _form(self, request: Request, form: Form, error: PenstockError | None = None) -> Response:
        return self.pages.show(
            request,
            "quota_set.html",
            title="Set quotas",
            status=200 if error is None else status_of(error),
            form=form,
            kinds=KINDS,
            keys=KEYS,
            error=error,
        )

    @routes.add("GET /console/quota-remove", ALTER_CONFIGS, SELECTORS)
    async def preview_remove(self, request: Request) -> Response:
        """Show the quotas of an entity that would be removed."""
        form = Form({name: [value] for name, value in request.query_params.items()})
        return await self._remove_page(request, form)

    @routes.add("POST /console/quota-remove", ALTER_CONFIGS)
    async def remove(self, request: Request) -> Response:
        """Remove all quotas of an entity."""
        form, caller = form_of(request), caller_of(request)
        entity = _entity(form)
        try:
            form.check_confirmed(entity_text(entity))
            known = await self._listed(caller, entity)
            changes = [{"key": row.key, "value": 0.0, "remove": True} for row in known]
            await self._alter(caller, entity, changes)
        except PenstockError as error:
            return await self._remove_page(request, form, error)
        return self.pages.done(path("quotas"), f"The quotas of {entity_text(entity)} were removed.")

    async def _remove_page(
        self, request: Request, form: Form, error: PenstockError | None = None
    ) -> Response:
        entity = _entity(form)
        return self.pages.show(
            request,
            "quota_remove.html",
            title="Remove quotas",
            status=200 if error is None else status_of(error),
            entity=entity_text(entity),
            selectors=selectors_of(entity),
            found=await self._listed(caller_of(request), entity) if entity else [],
            error=error,
        )


def selectors_of(entity: Entity) -> dict[str, str]:
    """Return the fields that select an entity."""
    return {
        (kind if name is not None else f"{DEFAULT_PREFIX}{kind}"): name or "true"
        for kind, name in entity.items()
    }


def _entity(form: Form) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for kind in KINDS:
        if form.text(f"{DEFAULT_PREFIX}{kind}"):
            found[kind] = None
        elif name := form.text(kind):
            found[kind] = name
    return found


def _value(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidField(f"{key} {text[:64]!r} must be a number") from None


def _used(used: Mapping[tuple[str, str, str], float], entity: Entity, key: str) -> float | None:
    """Return the highest use of the meters that have a quota's entity, or None without a meter.

    The default of a kind has the meters of all names. A meter without a name is shared by all.
    """
    user, client_id = entity.get(USER, ""), entity.get(CLIENT_ID, entity.get(IP, ""))
    found = [
        ratio
        for (quota, found_user, found_client), ratio in used.items()
        if quota == key and user in (None, found_user) and client_id in (None, found_client)
    ]
    return max(found, default=None)
