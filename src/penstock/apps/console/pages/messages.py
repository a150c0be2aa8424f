"""Pages of a topic's messages: their routes. The views are imported at the first request.

They decode records by columns, so they import Arrow and NumPy, which other pages do not need. A
broker without PyArrow shows how to install it instead.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.apps.console.live import Streams
from penstock.apps.console.messages.parameters import PARAMETERS
from penstock.apps.console.rendering import Pages
from penstock.apps.console.requests import CallerRequests
from penstock.base.extras import MissingExtra, check_installed
from penstock.base.http_routes import Routes
from penstock.broker.admin.access import Needs
from penstock.broker.assembly import Assembly

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from penstock.apps.console.messages.list_views import ListViews
    from penstock.apps.console.messages.record_views import RecordViews
    from penstock.apps.console.messages.rules import Masking
    from penstock.registry.service import SchemaRegistry

MESSAGES: Final = "/console/topics/{topic}/messages"
RECORD: Final = f"{MESSAGES}/{{partition:int}}/{{offset:int}}"
PRODUCE: Final = "/console/topics/{topic}/produce"
READ: Final = Needs(operation="read", resource_type="topic", named="topic")
WRITE: Final = Needs(operation="write", resource_type="topic", named="topic")
_FORMATS: Final = ("kf", "vf", "message")


class MessageViews:
    """Views of messages, which are created at their first use. Belongs to the event loop."""

    def __init__(
        self,
        broker: Assembly,
        pages: Pages,
        requests: CallerRequests,
        schemas: SchemaRegistry | None,
        masking: Masking | None,
    ) -> None:
        """`schemas` is the broker's schema registry; None without one. So is `masking`."""
        self._broker = broker
        self._pages = pages
        self._requests = requests
        self._schemas = schemas
        self._masking = masking
        self._creating = asyncio.Lock()
        self._created: tuple[ListViews, RecordViews] | None = None

    async def lists(self) -> ListViews:
        """Return the views of lists; raises MissingExtra without PyArrow."""
        return (await self._views())[0]

    async def records(self) -> RecordViews:
        """Return the views of single records; raises MissingExtra without PyArrow."""
        return (await self._views())[1]

    def off(self, request: Request, error: MissingExtra) -> Response:
        """Return the page of a broker that cannot decode records."""
        topic = request.path_params["topic"]
        return self._pages.show(
            request,
            "messages_off.html",
            title=f"Messages of {topic}",
            topic=topic,
            package=error.package,
            extra=error.extra,
        )

    async def _views(self) -> tuple[ListViews, RecordViews]:
        async with self._creating:
            if self._created is None:
                self._created = await asyncio.to_thread(self._create)
        return self._created

    def _create(self) -> tuple[ListViews, RecordViews]:
        check_installed("client")
        from penstock.apps.console.messages.list_views import STREAMS_MAX, ListViews
        from penstock.apps.console.messages.queries import Lists
        from penstock.apps.console.messages.record_views import RecordViews

        lists = Lists(self._broker, self._requests, self._schemas, self._masking)
        streams = Streams(
            "searches, live lists and exports are under way at this broker",
            STREAMS_MAX,
            self._broker.settings.admin_max_connections,
        )
        return (
            ListViews(pages=self._pages, lists=lists, streams=streams),
            RecordViews(pages=self._pages, lists=lists, requests=self._requests),
        )


class MessagePages(Struct, frozen=True, kw_only=True):
    views: MessageViews

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add(f"GET {MESSAGES}", READ, PARAMETERS)
    async def messages(self, request: Request) -> Response:
        try:
            lists = await self.views.lists()
        except MissingExtra as error:
            return self.views.off(request, error)
        return await lists.messages(request)

    @routes.add(f"GET {MESSAGES}/stream", READ, (*PARAMETERS, "rows"))
    async def stream(self, request: Request) -> Response:
        return await (await self.views.lists()).stream(request)

    @routes.add(f"GET {MESSAGES}/export", READ, (*PARAMETERS, "rows", "format"))
    async def export(self, request: Request) -> Response:
        return await (await self.views.lists()).export(request)

    @routes.add(f"GET {MESSAGES}/live", READ, PARAMETERS)
    async def live(self, request: Request) -> Response:
        return await (await self.views.lists()).live(request)

    @routes.add(f"GET {RECORD}", READ, (*_FORMATS, "all"))
    async def record(self, request: Request) -> Response:
        return await (await self.views.records()).record(request)

    @routes.add(f"GET {RECORD}/{{side}}", READ, (*_FORMATS, "as"))
    async def content(self, request: Request) -> Response:
        return await (await self.views.records()).content(request)

    @routes.add(f"GET {PRODUCE}", WRITE, ("partition", "offset"))
    async def produce_form(self, request: Request) -> Response:
        try:
            records = await self.views.records()
        except MissingExtra as error:
            return self.views.off(request, error)
        return await records.produce_form(request)

    @routes.add(f"POST {PRODUCE}", WRITE, ("partition", "offset"))
    async def produce(self, request: Request) -> Response:
        return await (await self.views.records()).produce(request)
