"""Application of the console: its parts, its pages and the headers of its responses.

A page is a method of a class with `routes`, which declare its path and the permission that it
needs. The class is constructed in `_views`. The broker's admin interface authenticates, authorises
and audits the requests (`broker/admin_app.py`).

Source: Content Security Policy Level 3; OWASP Secure Headers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException

from penstock.apps.console.assets import AssetViews, read_assets
from penstock.apps.console.forms import Tokens
from penstock.apps.console.live import LiveViews, Sampler
from penstock.apps.console.pages.access import AccessPages
from penstock.apps.console.pages.brokers import BrokerPages
from penstock.apps.console.pages.diskless import SNAPSHOTS_MAX, DisklessPages
from penstock.apps.console.pages.groups import GroupPages
from penstock.apps.console.pages.hosts import HostPages, agent_sources
from penstock.apps.console.pages.messages import MessagePages, MessageViews
from penstock.apps.console.pages.outboxes import OutboxPages, outbox_sources
from penstock.apps.console.pages.overview import OverviewPages
from penstock.apps.console.pages.pipelines import PipelinePages, pipeline_sources
from penstock.apps.console.pages.placement import PlacementPages
from penstock.apps.console.pages.queues import QueuePages
from penstock.apps.console.pages.quotas import QuotaPages
from penstock.apps.console.pages.schema_changes import SchemaChanges
from penstock.apps.console.pages.schemas import SchemaPages, SchemasOff
from penstock.apps.console.pages.storage import StoragePages, Switches
from penstock.apps.console.pages.topics import TopicPages
from penstock.apps.console.pages.transactions import TransactionPages
from penstock.apps.console.pages.users import UserPages
from penstock.apps.console.rendering import SHARED_TEMPLATES, Pages
from penstock.apps.console.requests import CallerRequests
from penstock.broker.admin_app import Endpoints, LazyPart, serving
from penstock.control.plane import cluster_secret

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from penstock.apps.console.assets import Asset
    from penstock.apps.console.messages.rules import Masking
    from penstock.apps.console.pages.planner import PlannerPages
    from penstock.broker.admin.access import AdminAccess
    from penstock.broker.admin_app import Views
    from penstock.broker.assembly import Assembly
    from penstock.registry.service import SchemaRegistry

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
PLANNER: Final = "/console/planner"
"""Path of the planner's first page. All of its paths are below it."""
PLANS: Final = "plans"
"""Name of the directory of saved plans."""
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


async def build_console(
    broker: Assembly,
    access: AdminAccess,
    schemas: SchemaRegistry | None,
    directory: Path,
    masking: Masking | None,
) -> ASGIApp:
    """Return the console of a broker; `schemas` is None without a schema registry.

    `directory` is the console's own in the broker's data directory; it need not exist. `masking` is
    None if no fields are masked.

    Raises:
        PenstockError: the control plane does not answer.
    """
    secret = await cluster_secret(broker.control, broker.randomness)
    assets = await asyncio.to_thread(read_assets)
    pages = Pages(
        settings=broker.settings,
        node_id=broker.node_id,
        secured=broker.authoriser.refuses,
        assets=assets,
        tokens=Tokens(secret.forms, broker.randomness),
    )
    await asyncio.to_thread(pages.load, SHARED_TEMPLATES)
    pages.loading = asyncio.get_running_loop().create_task(asyncio.to_thread(pages.load, ()))

    async def unrouted(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        message = f"{request.method} {request.url.path}: {getattr(error, 'detail', error)}"
        return pages.failed(request, status, "resource_not_found", message)

    def served(views: Iterable[Views]) -> ASGIApp:
        endpoints = Endpoints(access, pages.failed, pages.check)
        for part in views:
            endpoints.add(part)
        return serving(endpoints, broker.settings, unrouted)

    async def planner() -> ASGIApp:
        views = await asyncio.to_thread(_planner, broker, pages, requests, directory, masking)
        return served([views])

    requests = CallerRequests(broker)
    app = served(_views(broker, pages, assets, requests, schemas, masking))
    return _with_headers(LazyPart(app, PLANNER, planner))


def _planner(
    broker: Assembly,
    pages: Pages,
    requests: CallerRequests,
    directory: Path,
    masking: Masking | None,
) -> PlannerPages:
    """Return the pages of the planner, whose modules are imported when they are first used."""
    from penstock.apps.console.pages.planner import COMPUTED_MAX, PlannerPages
    from penstock.apps.console.plans import PlanStore

    return PlannerPages(
        broker=broker,
        pages=pages,
        requests=requests,
        store=PlanStore(directory / PLANS),
        computing=asyncio.Semaphore(COMPUTED_MAX),
        masking=masking,
    )


def _views(
    broker: Assembly,
    pages: Pages,
    assets: dict[str, Asset],
    requests: CallerRequests,
    schemas: SchemaRegistry | None,
    masking: Masking | None,
) -> Iterable[Views]:
    sampler = Sampler(broker)
    yield AssetViews(assets=assets)
    yield LiveViews(sampler=sampler)
    yield OverviewPages(broker=broker, pages=pages, sampler=sampler)
    yield TopicPages(broker=broker, pages=pages, requests=requests)
    yield StoragePages(broker=broker, pages=pages, requests=requests, switches=Switches())
    messages = MessageViews(broker, pages, requests, schemas, masking)
    yield MessagePages(views=messages)
    yield GroupPages(broker=broker, pages=pages, requests=requests)
    yield BrokerPages(broker=broker, pages=pages)
    yield PlacementPages(broker=broker, pages=pages, requests=requests)
    yield AccessPages(broker=broker, pages=pages, requests=requests)
    yield UserPages(broker=broker, pages=pages, requests=requests)
    yield DisklessPages(broker=broker, pages=pages, snapshots=deque(maxlen=SNAPSHOTS_MAX))
    pipelines = pipeline_sources(broker)
    yield PipelinePages(broker=broker, pages=pages, messages=messages, sources=pipelines)
    yield HostPages(pages=pages, sources=agent_sources(broker))
    outboxes = outbox_sources(broker)
    yield OutboxPages(broker=broker, pages=pages, requests=requests, sources=outboxes)
    yield TransactionPages(broker=broker, pages=pages, requests=requests)
    yield QueuePages(broker=broker, pages=pages, requests=requests)
    yield QuotaPages(broker=broker, pages=pages, requests=requests)
    if schemas is None:
        yield SchemasOff(pages=pages)
    else:
        yield SchemaPages(registry=schemas, pages=pages)
        yield SchemaChanges(registry=schemas, pages=pages)


def _with_headers(app: ASGIApp) -> ASGIApp:
    async def with_headers(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await app(scope, receive, sending)

    return with_headers
