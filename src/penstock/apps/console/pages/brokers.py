"""Pages of brokers: list and detail."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.apps.console.pages.topics import SOURCES
from penstock.apps.console.rendering import Pages
from penstock.apps.console.tables import Column, Filter, Table
from penstock.base.errors import InvalidError
from penstock.base.http_routes import Routes
from penstock.base.settings import INT_MAX, whole_number
from penstock.broker.admin.access import DESCRIBE, Needs, caller_of
from penstock.broker.admin.health import disk_space
from penstock.broker.assembly import Assembly
from penstock.broker.configuration.configs import ConfigEntry, ConfigSource, describe_broker
from penstock.control import Broker
from penstock.security import CLUSTER

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


class UnknownBroker(InvalidError):
    """Broker id that is not registered."""

    code: ClassVar[str] = "resource_not_found"


class ListedBroker(Struct, frozen=True, kw_only=True):
    """Broker with the numbers of partitions that it leads and of which it has replicas."""

    broker: Broker
    is_live: bool
    leads: int
    replicas: int


BROKERS: Final[Table[ListedBroker]] = Table(
    Column(name="id", title="Broker", key=lambda row: row.broker.broker_id, number=True),
    Column(name="address", title="Address", key=lambda row: (row.broker.host, row.broker.port)),
    Column(name="rack", title="Rack", key=lambda row: row.broker.rack or ""),
    Column(name="roles", title="Roles", key=lambda row: row.broker.roles),
    Column(name="leads", title="Leads", key=lambda row: row.leads, number=True),
    Column(name="replicas", title="Replicas", key=lambda row: row.replicas, number=True),
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
        view = BROKERS.view(request, self._listed())
        return self.pages.show(request, "brokers.html", title="Brokers", table=view)

    @routes.add("GET /console/brokers/{broker}", DESCRIBE, SETTINGS.parameters)
    async def show_broker(self, request: Request) -> Response:
        """Show a broker; health, disk and settings only of the one that serves this page."""
        await self.broker.cluster.look()
        text = request.path_params["broker"]
        rows = [row for row in self._listed() if str(row.broker.broker_id) == text]
        if not rows or whole_number(text, INT_MAX) is None:
            raise UnknownBroker(f"broker {text!r} is not registered")
        own = rows[0].broker.broker_id == self.broker.node_id
        return self.pages.show(
            request,
            "broker.html",
            title=f"Broker {text}",
            row=rows[0],
            own=await self._own(request) if own else None,
            sources=SOURCES,
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

    def _listed(self) -> list[ListedBroker]:
        image, live = self.broker.cluster.image, self.broker.cluster.live
        leads, replicas = Counter[int](), Counter[int]()
        for served in self.broker.partitions.topics.values():
            if served.diskless:
                continue
            for row in served.topic.partitions:
                leads[row.leader] += 1
                replicas.update(row.replicas)
        return [
            ListedBroker(
                broker=found,
                is_live=found.broker_id in live,
                leads=leads[found.broker_id],
                replicas=replicas[found.broker_id],
            )
            for found in image.brokers
        ]
