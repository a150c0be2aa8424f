"""Application of the admin interface: endpoints of the declared routes, and error responses.

Responses except `/metrics` are JSON. An error is `{"error": <Kafka's error name>, "message": <the
cause>}` with an HTTP status: 400 for invalid requests, 401 for invalid credentials, 403 for missing
permissions (`access.py`), 404 for unknown resources, 413 for too large bodies, 416 for offsets out
of range, 503 for unavailable dependencies. `/metrics` is rendered in parts, so that other requests
are handled in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from penstock.base.errors import InvalidError, PenstockError, RetriableError, UnavailableError
from penstock.base.http_listener import drained, wrong_parameters
from penstock.base.http_routes import (
    METRICS_TYPE,
    OPENMETRICS_TYPE,
    Endpoint,
    HttpRoute,
    Routes,
    error_response,
    json_response,
    unrouted,
)
from penstock.base.metrics import Exposition, Registry, accepts_openmetrics
from penstock.base.pause import pause
from penstock.base.settings import whole_number
from penstock.broker.admin.access import CONSOLE, OPEN, AdminAccess, Needs, caller_of
from penstock.broker.admin.extents import ConsolidationViews, ExtentViews
from penstock.broker.admin.sinks import SinkViews
from penstock.broker.admin.views import (
    GroupMetricsSource,
    LagViews,
    LogViews,
    QueueViews,
    TopicViews,
)
from penstock.security import CLUSTER, AuthorisationFailed
from penstock.security.http_credentials import CHALLENGE, TooManyFailures

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from penstock.base.system import Clock
    from penstock.broker.admin.health import Health, Readiness
    from penstock.broker.assembly import Assembly
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.net.security import SecurityService


logger = logging.getLogger(__name__)

SAMPLES_PER_TURN: Final = 4_000
"""Samples that are rendered in one turn of the event loop, which takes about a millisecond."""
DRAINED_BYTES_MAX: Final = 64 << 20
"""Largest rest of a failed request's body that is read and discarded before the response, if the
sender is authorised."""
DRAINED_SECONDS: Final = 10.0
"""Time limit for reading this rest."""
_STATUS_OF_CODE: Final = {
    "unknown_topic_or_partition": 404,
    "unknown_topic_id": 404,
    "group_id_not_found": 404,
    "transactional_id_not_found": 404,
    "offset_out_of_range": 416,
    "not_leader_or_follower": 421,
    "not_coordinator": 421,
    "resource_not_found": 404,
    "duplicate_resource": 409,
    "inconsistent_topic_id": 409,
    "producer_fenced": 409,
    "concurrent_transactions": 409,
    "invalid_update_version": 409,
    "message_too_large": 413,
    "sasl_authentication_failed": 401,
    "cluster_authorization_failed": 403,
    "topic_authorization_failed": 403,
    "group_authorization_failed": 403,
    "transactional_id_authorization_failed": 403,
    "throttling_quota_exceeded": 429,
}
_SIZE_CHARS_MAX: Final = 32
_STATUS_NAMES: Final = {404: "resource_not_found", 405: "unsupported_version"}


ConsoleFactory = Callable[["Assembly", AdminAccess], Awaitable["ASGIApp"]]
"""Function that returns the console of a broker. Its argument `access` admits the requests."""
ErrorResponse = Callable[[Request, int, str, str], Response]
"""Function that returns the response for an error: its arguments are the request, the HTTP status,
Kafka's name of the error, and the message."""
Check = Callable[[Request], Awaitable[None]]
"""Function that raises a PenstockError if an admitted request must be rejected."""


def build_app(
    broker: Assembly, access: AdminAccess, console: ConsoleFactory | None = None
) -> ASGIApp:
    """Return the ASGI application of a broker; `console` creates the console at its first use."""
    endpoints = Endpoints(access)
    endpoints.add(_broker_views(broker))
    endpoints.add(_topic_views(broker))
    endpoints.add(LogViews(node_id=broker.node_id, store=broker.store, tiers=broker.tiers))
    endpoints.add(
        ExtentViews(
            settings=broker.settings,
            authoriser=broker.authoriser,
            clock=broker.clock,
            cluster=broker.cluster,
            partitions=broker.partitions,
            diskless=broker.diskless,
            traces=broker.traces,
        )
    )
    endpoints.add(_lag_views(broker))
    endpoints.add(QueueViews(node_id=broker.node_id, cluster=broker.cluster, share=broker.share))
    endpoints.add(ConsolidationViews(partitions=broker.partitions, diskless=broker.diskless))
    endpoints.add(
        SinkViews(
            settings=broker.settings,
            control=broker.control,
            partitions=broker.partitions,
            sinks=broker.sinks,
        )
    )
    app = serving(endpoints, broker.settings, _http_error)
    if console is None:
        return app
    return _with_front_page(LazyPart(app, CONSOLE, lambda: console(broker, access)))


def serving(
    endpoints: Endpoints,
    settings: BrokerSettings,
    http_error: Callable[[Request, Exception], Awaitable[Response]],
) -> ASGIApp:
    """Return the application that serves collected endpoints, within the limits of bodies.

    `http_error` returns the response to requests that match no route.
    """
    app = Starlette(routes=endpoints.mounted, exception_handlers={HTTPException: http_error})
    return _BodyLimit(app, settings.admin_request_max_bytes, endpoints.body_limits)


class LazyPart:
    """Application that passes requests below a path to a part, which it creates once.

    `create` is called at the first such request. Other requests are passed to `app`.
    """

    def __init__(self, app: ASGIApp, prefix: str, create: Callable[[], Awaitable[ASGIApp]]) -> None:
        self._app = app
        self._prefix = prefix
        self._create = create
        self._creating = asyncio.Lock()
        self._part: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        below = path == self._prefix or path.startswith(f"{self._prefix}/")
        await (await self._created() if below else self._app)(scope, receive, send)

    async def _created(self) -> ASGIApp:
        async with self._creating:
            if self._part is None:
                self._part = await self._create()
        return self._part


def _with_front_page(app: ASGIApp) -> ASGIApp:
    """Return an application that redirects `/` to the console."""

    async def with_front_page(scope: Scope, receive: Receive, send: Send) -> None:
        front = scope.get("path") == "/" and scope["method"] == "GET"
        shown = RedirectResponse(CONSOLE, HTTPStatus.SEE_OTHER) if front else app
        await shown(scope, receive, send)

    return with_front_page


def _broker_views(broker: Assembly) -> BrokerViews:
    return BrokerViews(
        coordinator=broker.coordinator,
        end_offsets=broker.end_offsets,
        settings=broker.settings,
        node_id=broker.node_id,
        clock=broker.clock,
        lag=lambda: broker.lag,
        registry=broker.registry,
        readiness=broker.readiness,
        security_service=broker.security_service,
    )


def _topic_views(broker: Assembly) -> TopicViews:
    return TopicViews(
        node_id=broker.node_id,
        control=broker.control,
        cluster=broker.cluster,
        partitions=broker.partitions,
        coordinator=broker.coordinator,
        end_offsets=broker.end_offsets,
        migrations=broker.migrations,
        replicas=broker.replicas,
        lag=lambda: broker.lag,
    )


def _lag_views(broker: Assembly) -> LagViews:
    return LagViews(
        node_id=broker.node_id,
        control=broker.control,
        cluster=broker.cluster,
        partitions=broker.partitions,
        coordinator=broker.coordinator,
        end_offsets=broker.end_offsets,
        lag=lambda: broker.lag,
    )


def _json_error(request: Request, status: int, code: str, message: str) -> Response:
    return error_response(status, code, message)


class Views(Protocol):
    """Object whose methods handle the routes declared in `routes`, such as all routes of topics."""

    routes: ClassVar[Routes[Any, Needs]]


class Endpoints:
    """Collector of Starlette routes: each endpoint checks access, body size and parameters.

    `errors` returns the responses for errors. `check` may reject admitted requests.
    """

    def __init__(
        self, access: AdminAccess, errors: ErrorResponse = _json_error, check: Check | None = None
    ) -> None:
        self._access = access
        self._errors = errors
        self._check = check
        self.mounted: list[Route] = []
        self.body_limits: dict[tuple[str, str], int] = {}
        """Body limits of routes that have their own, by method and beginning of the path."""

    def add(self, views: Views) -> None:
        for route in views.routes.declared:
            endpoint = self._endpoint(route, views)
            self.mounted.append(Route(route.path, endpoint, methods=[route.method]))
            if route.body_bytes_max is not None:
                prefix = route.path.partition("{")[0]
                self.body_limits[route.method, prefix] = route.body_bytes_max(views)

    def _endpoint(self, route: HttpRoute[Any, Needs], views: Views) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            try:
                caller = request.state.caller = await self._access.admit(request, route.access)
            except PenstockError as error:
                return await self._refused(request, error)
            refusal = _too_large_body(request)
            if refusal is not None:
                await drained(request, DRAINED_BYTES_MAX, DRAINED_SECONDS)
            response = refusal or await self._answer(route, views, request)
            if route.access.audited:
                caller.log.changed(response.status_code)
            return response

        return endpoint

    async def _answer(
        self, route: HttpRoute[Any, Needs], views: Views, request: Request
    ) -> Response:
        if wrong := wrong_parameters(request.query_params.multi_items(), route.parameters):
            return self._errors(request, 400, "invalid_request", wrong)
        try:
            if self._check is not None:
                await self._check(request)
            value = await route.handler(views, request)
        except PenstockError as error:
            if isinstance(error, AuthorisationFailed):
                caller_of(request).log.denied(error)
            response = self._failed(request, error)
            if not await drained(request, DRAINED_BYTES_MAX, DRAINED_SECONDS):
                response.headers["connection"] = "close"
            return response
        except Exception:
            logger.exception("%s failed", request.url.path)
            message = "the broker failed to handle this request; its log has the cause"
            return self._errors(request, 500, "unknown_server_error", message)
        return value if isinstance(value, Response) else json_response(value, route.status)

    async def _refused(self, request: Request, error: PenstockError) -> Response:
        response = self._failed(request, error)
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            response.headers["www-authenticate"] = CHALLENGE
        if isinstance(error, TooManyFailures) or not await drained(request):
            response.headers["connection"] = "close"
        return response

    def _failed(self, request: Request, error: PenstockError) -> Response:
        return self._errors(request, status_of(error), error.code, str(error))


class BrokerViews(GroupMetricsSource, frozen=True, kw_only=True):
    settings: BrokerSettings
    node_id: int
    clock: Clock
    registry: Registry
    readiness: Readiness
    security_service: SecurityService

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /health", OPEN)
    @routes.add("GET /readyz", OPEN)
    async def ready(self, request: Request) -> Response:
        """Return the results of all health checks; status 503 if one of them fails (readiness)."""
        return self._health(request, await self.readiness.look())

    @routes.add("GET /livez", OPEN)
    async def alive(self, request: Request) -> Response:
        """Return the checks whose failure requires a restart (liveness); 503 if one fails."""
        return self._health(request, self.readiness.alive())

    def _health(self, request: Request, report: Health) -> Response:
        caller = caller_of(request)
        causes = caller.rights.allows("describe", "cluster", CLUSTER)
        # `penstock doctor` compares clocks with this header.
        date = formatdate(self.clock.now_ms() / 1000, usegmt=True)
        body = report.as_json(self.node_id, causes=causes)
        return json_response(body, 200 if report.good else 503, {"date": date})

    @routes.add("GET /metrics", Needs(operation="describe", metrics=True))
    async def exposition(self, request: Request) -> Response:
        """Return all metrics as Prometheus text, or as OpenMetrics if the client asks for it."""
        samples = [*self.registry.collect(), *await self.group_samples()]
        openmetrics = accepts_openmetrics(request.headers.get("accept", ""))
        text = Exposition(openmetrics=openmetrics)
        for start in range(0, len(samples), SAMPLES_PER_TURN):
            text.add(samples[start : start + SAMPLES_PER_TURN])
            await pause(0)
        kind = OPENMETRICS_TYPE if openmetrics else METRICS_TYPE
        return Response(text.finish(), headers={"content-type": kind})

    @routes.add("POST /v1/security/reload", Needs(operation="alter", audited=True))
    async def reload(self, request: Request) -> dict[str, Any]:
        """Reload the files of certificates and users; return an error message for each failure.

        The previous content of a file that cannot be loaded stays in use.
        """
        failures = await self.security_service.listener_group.reload()
        return {"node_id": self.node_id, "failures": failures}


def status_of(error: PenstockError) -> int:
    """Return the HTTP status of an error: by its code if the table has it, else by its kind."""
    status = _STATUS_OF_CODE.get(error.code)
    if status is not None:
        return status
    if isinstance(error, InvalidError):
        return 400
    if isinstance(error, (UnavailableError, RetriableError)):
        return 503
    return 500


async def _http_error(request: Request, error: Exception) -> Response:
    return _too_large_body(request) or unrouted(request, error, _STATUS_NAMES)


class _BodyLimit:
    """Middleware that rejects requests whose body is too large or of unknown size.

    Routes with limits of their own (`own_limits`) also accept bodies of unknown size, because their
    handlers count the bytes while they read. If the declared size is too large for such a route,
    the endpoint sends the rejection after authorisation, and first reads the body of an authorised
    client. The client would otherwise not read the response while it still sends.
    """

    def __init__(
        self, app: ASGIApp, limit_bytes: int, own_limits: dict[tuple[str, str], int]
    ) -> None:
        self._app = app
        self._limit_bytes = limit_bytes
        self._own_limits = own_limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit_bytes, streamed = self._limit(scope)
        for name, value in scope.get("headers", ()):
            size = value.decode("latin-1")
            if name == b"content-length" and whole_number(size, limit_bytes) is None:
                refusal = _too_large(size[:_SIZE_CHARS_MAX], limit_bytes)
                if not streamed:
                    await refusal(scope, receive, send)
                    return
                scope["state"]["refusal"] = refusal
            if name == b"transfer-encoding" and not streamed:
                await _too_large("unknown", limit_bytes)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _limit(self, scope: Scope) -> tuple[int, bool]:
        for (method, prefix), limit_bytes in self._own_limits.items():
            if scope.get("method") == method and scope.get("path", "").startswith(prefix):
                return limit_bytes, True
        return self._limit_bytes, False


def _too_large_body(request: Request) -> Response | None:
    refusal: Response | None = getattr(request.state, "refusal", None)
    return refusal


def _too_large(size: str, limit_bytes: int) -> Response:
    message = f"request body of {size} bytes exceeds the limit of {limit_bytes} bytes"
    response = error_response(413, "invalid_request", message)
    response.headers["connection"] = "close"
    return response
