"""Pages of brokers: list and detail."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID

from msgspec import Struct

from penstock.apps.console.pages.partitions import behind
from penstock.apps.console.pages.reassigning import stored
from penstock.apps.console.pages.topics import SOURCES
from penstock.apps.console.rendering import Pages
from penstock.apps.console.tables import Column, Filter, Table
from penstock.base.errors import InvalidError
from penstock.base.http_routes import Routes
from penstock.broker.admin.access import DESCRIBE, Needs, caller_of
from penstock.broker.admin.health import disk_space
from penstock.broker.assembly import Assembly
from penstock.broker.configuration.configs import (
    ConfigEntry,
    ConfigSource,
    describe_broker,
    excluded_brokers,
)
from penstock.control import Broker
from penstock.security import CLUSTER

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


DRAINS: Final = ("alter", "alter_configs")
"""Operations on the cluster that draining a broker requires."""


class UnknownBroker(InvalidError):
    """Broker id that is not registered."""

    code: ClassVar[str] = "resource_not_found"


class ListedBroker(Struct, frozen=True, kw_only=True):
    """Broker with the number of partitions that it leads, and numbers of its replicas.

    `behind` are those that are out of sync, `leaving` those that a reassignment removes. A broker
    that is not registered, but holds replicas, has no address and no roles. An `excluded` broker
    gets no new replicas.
    """

    broker: Broker
    is_live: bool
    excluded: bool
    leads: int
    replicas: int
    behind: int
    leaving: int

    @property
    def is_registered(self) -> bool:
        return bool(self.broker.host)


BROKERS: Final[Table[ListedBroker]] = Table(
    Column(name="id", title="Broker", key=lambda row: row.broker.broker_id, number=True),
    Column(name="address", title="Address", key=lambda row: (row.broker.host, row.broker.port)),
    Column(name="rack", title="Rack", key=lambda row: row.broker.rack or ""),
    Column(name="roles", title="Roles", key=lambda row: row.broker.roles),
    Column(name="leads", title="Leads", key=lambda row: row.leads, number=True),
    Column(name="replicas", title="Replicas", key=lambda row: row.replicas, number=True),
    Column(name="behind", title="Out of sync", key=lambda row: row.behind, number=True),
    Column(name="state", title="State", key=lambda row: not row.is_live),
    sort="id",
    text=lambda row: f"{row.broker.broker_id} {row.broker.host} {row.broker.rack}",
    search="Search brokers",
)

SETTINGS: Final[Table[ConfigEntry]] = Table(
    Column(name="name", title="Setting", key=lambda row: row.name),
    Column(name="value", title="Value"),
    Column(name="source", title="Set by", key=lambda row: int(row.source)),
    sort="name",
    text=lambda row: f"{row.name} {row.value} {row.documentation}",
    search="Search settings",
    filters=(
        Filter(
            name="show",
            title="Show",
            choices={"set": "Changed settings", "all": "All settings"},
            test=lambda row, value: value == "all" or row.source != ConfigSource.DEFAULT,
            default="set",
        ),
    ),
)


class BrokerPages(Struct, frozen=True, kw_only=True):
    broker: Assembly
    pages: Pages

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /console/brokers", DESCRIBE, BROKERS.parameters)
    async def brokers(self, request: Request) -> Response:
        await self.broker.cluster.look()
        view = BROKERS.view(request, listed_brokers(self.broker))
        return self.pages.show(request, "brokers.html", title="Brokers", table=view)

    @routes.add("GET /console/brokers/{broker}", DESCRIBE, SETTINGS.parameters)
    async def show_broker(self, request: Request) -> Response:
        """Show a broker; health, disk and settings only of the one that serves this page."""
        row = await listed_broker(self.broker, request)
        allows = caller_of(request).rights.allows
        own = row.broker.broker_id == self.broker.node_id
        return self.pages.show(
            request,
            "broker.html",
            title=f"Broker {row.broker.broker_id}",
            row=row,
            own=await self._own(request) if own else None,
            sources=SOURCES,
            may_drain=all(allows(operation, "cluster", CLUSTER) for operation in DRAINS),
        )

    async def _own(self, request: Request) -> dict[str, Any]:
        broker = self.broker
        health = await broker.readiness.look()
        table = None
        if caller_of(request).rights.allows("describe_configs", "cluster", CLUSTER):
            table = SETTINGS.view(request, describe_broker(broker.topic_admin.levels()))
        return {
            "checks": health.checks,
            "directory": broker.store.directory,
            "disk_space": await asyncio.to_thread(disk_space, broker.store.directory),
            "table": table,
        }


def listed_brokers(broker: Assembly) -> list[ListedBroker]:
    """Return the registered brokers, and others that hold replicas."""
    image, live = broker.cluster.image, broker.cluster.live
    leads, replicas, lagging, leaving = (Counter[int]() for _ in range(4))
    for _, row in stored(image):
        leads[row.leader] += 1
        for replica in row.replicas:
            replicas[replica] += 1
        if len(row.isr) < len(row.replicas) or not live.issuperset(row.replicas):
            lagging.update(behind(row, live))
        if row.move:
            leaving.update(row.removing)
    registered = {found.broker_id: found for found in image.brokers}
    excluded = excluded_brokers(broker.topic_admin.levels())
    return [
        ListedBroker(
            broker=registered.get(broker_id) or _unregistered(broker_id),
            is_live=broker_id in live,
            excluded=broker_id in excluded,
            leads=leads[broker_id],
            replicas=replicas[broker_id],
            behind=lagging[broker_id],
            leaving=leaving[broker_id],
        )
        for broker_id in {*registered, *replicas}
    ]


async def listed_broker(broker: Assembly, request: Request) -> ListedBroker:
    """Return the broker of a path; raises UnknownBroker."""
    await broker.cluster.look()
    text = request.path_params["broker"]
    for row in listed_brokers(broker):
        if str(row.broker.broker_id) == text:
            return row
    raise UnknownBroker(f"broker {text!r} is not registered, and holds no replicas")


def _unregistered(broker_id: int) -> Broker:
    return Broker(
        broker_id=broker_id,
        host="",
        port=0,
        rack=None,
        incarnation=UUID(int=0),
        epoch=0,
        roles=(),
    )
