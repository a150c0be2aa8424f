"""Routes of the admin interface, and their error responses.

Responses except `/metrics` are JSON. An error is `{"error": <Kafka's error name>, "message": <the
cause>}` with an HTTP status: 400 for invalid requests, 401 for invalid credentials, 403 for missing
permissions (`access.py`), 404 for unknown resources, 413 and 416 for what is too large or out of
range, 503 for unavailable dependencies. `/metrics` is rendered on a worker thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.base.errors import InvalidError, PenstockError, RetriableError, UnavailableError
from penstock.base.http_listener import drained, wrong_parameters
from penstock.base.metrics import render
from penstock.base.settings import whole_number
from penstock.broker.admin import (
    compaction,
    consolidation,
    damage,
    extents,
    metrics,
    queues,
    security,
    sinks,
    tiers,
    views,
)
from penstock.broker.admin.health import Health, Readiness
from penstock.broker.batch_commits.manifest import MANIFEST_BYTES_MAX
from penstock.broker.parts import parts_of
from penstock.security import CLUSTER, AuthorisationFailed
from penstock.security.http_credentials import CHALLENGE, TooManyFailures

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from penstock.base.metrics import Registry
    from penstock.base.system import Clock
    from penstock.broker.admin.access import AdminAccess, Caller
    from penstock.broker.settings import BrokerSettings

logger = logging.getLogger(__name__)

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
DRAINED_BYTES_MAX: Final = 64 << 20
"""Bytes of a failed upload or manifest that are read and discarded before the response, for
authorised senders."""
DRAINED_SECONDS: Final = 10.0
"""Time limit for that."""
_STATUS_OF_CODE: Final = {
    "unknown_topic_or_partition": 404,
    "unknown_topic_id": 404,
    "group_id_not_found": 404,
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

Endpoint = Callable[[Request], Awaitable[Response]]
View = Callable[[Any, Request], Awaitable[Any]]
"""Handler of a route, with its declared parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    settings: BrokerSettings
    node_id: int
    clock: Clock
    registry: Registry


def build_app(broker: object, readiness: Readiness, access: AdminAccess) -> ASGIApp:
    """Return the ASGI application of a broker with the parts that the views declare."""
    app = Starlette(
        routes=[access_checked(route, access) for route in _routes(broker, readiness)],
        exception_handlers={HTTPException: _http_error},
    )
    settings = parts_of(Parts, broker).settings
    return _BodyLimit(
        app,
        settings.admin_request_max_bytes,
        {
            ("PUT", "/v1/staging/"): settings.sink_staging_blob_max_bytes,
            ("POST", "/v1/sinks/"): MANIFEST_BYTES_MAX,
            ("POST", "/v1/diskless/"): consolidation.SEGMENT_POST_BYTES_MAX,
        },
    )


def _routes(broker: object, readiness: Readiness) -> list[Route]:
    own = parts_of(Parts, broker)
    viewed = parts_of(views.Parts, broker)
    objects = parts_of(consolidation.Parts, broker)
    shared = parts_of(queues.Parts, broker)

    async def living() -> Health:
        return readiness.alive()

    return [
        _route("/health", _health(own, readiness.look)),
        _route("/livez", _health(own, living)),
        _route("/readyz", _health(own, readiness.look)),
        _route("/metrics", _metrics(own.registry, parts_of(metrics.Parts, broker))),
        _route("/v1/cluster", _json(viewed, views.cluster)),
        _route("/v1/compaction", _json(parts_of(compaction.Parts, broker), compaction.compaction)),
        _route("/v1/damage", _json(parts_of(damage.Parts, broker), damage.damage)),
        _route("/v1/copies", _json(viewed, views.copies)),
        _route("/v1/losses", _json(viewed, views.losses)),
        _route("/v1/tiers", _json(parts_of(tiers.Parts, broker), tiers.tiers), ("topic",)),
        _route("/v1/topics", _json(viewed, views.topics)),
        _route("/v1/topics/{topic}", _json(viewed, views.topic)),
        _route(
            "/v1/topics/{topic}/partitions/{partition}/extents",
            _json(parts_of(extents.Parts, broker), extents.partition_extents),
            ("start", "end", "isolation"),
        ),
        _route(
            "/v1/security/reload",
            _json(parts_of(security.Parts, broker), security.reload),
            methods=["POST"],
        ),
        _route("/v1/groups", _json(viewed, views.groups)),
        _route("/v1/groups/{group:path}", _json(viewed, views.group)),
        _route("/v1/dead-letters", _json(shared, queues.dead_letters)),
        _route("/v1/queues/{group:path}", _json(shared, queues.queue)),
        _route("/v1/diskless/backlogs", _json(objects, consolidation.backlogs)),
        _route(
            "/v1/diskless/topics/{topic_id}/partitions/{partition}/runs",
            _json(objects, consolidation.lease),
            ("start", "all_ages"),
            methods=["POST"],
        ),
        _route(
            "/v1/diskless/topics/{topic_id}/partitions/{partition}/segments",
            _json(objects, consolidation.accept),
            methods=["POST"],
        ),
        *_sink_routes(parts_of(sinks.Parts, broker)),
    ]


def _sink_routes(staged: sinks.Parts) -> list[Route]:
    return [
        _route("/v1/staging", _json(staged, sinks.staging)),
        _route("/v1/staging/{name}", _json(staged, sinks.upload, 201), methods=["PUT"]),
        _route("/v1/sinks", _json(staged, sinks.sinks)),
        _route(
            "/v1/sinks/{query:path}/commits/{batch}",
            _json(staged, sinks.commit),
            ("check",),
            methods=["POST"],
        ),
        _route("/v1/sinks/{query:path}", _json(staged, sinks.sink)),
        _route(
            "/v1/sinks/{query:path}",
            _json(staged, sinks.forget),
            ("abandon",),
            methods=["DELETE"],
        ),
    ]


def _route(
    path: str,
    endpoint: Endpoint,
    parameters: tuple[str, ...] = (),
    methods: list[str] | None = None,
) -> Route:
    """Return a route that rejects query parameters other than these."""

    async def checked(request: Request) -> Response:
        if wrong := wrong_parameters(request.query_params.multi_items(), parameters):
            return json_response({"error": "invalid_request", "message": wrong}, 400)
        return await endpoint(request)

    return Route(path, checked, methods=methods)


def access_checked(route: Route, access: AdminAccess) -> Route:
    """Return a route for authorised requests only; raises KeyError without a row."""
    endpoint: Endpoint = route.endpoint
    method = next(iter(sorted(route.methods or ())), "GET")
    needs = access.needs(method, route.path)

    async def checked(request: Request) -> Response:
        try:
            caller = request.state.caller = await access.admit(request, needs)
        except PenstockError as error:
            return await _refused(request, error)
        refusal = _too_large_body(request)
        if refusal is not None:
            await drained(request, DRAINED_BYTES_MAX, DRAINED_SECONDS)
        response = refusal or await endpoint(request)
        if needs.audited:
            caller.changed(response.status_code)
        return response

    return Route(route.path, checked, methods=list(route.methods or ()))


async def _refused(request: Request, error: PenstockError) -> Response:
    response = error_response(error)
    if response.status_code == HTTPStatus.UNAUTHORIZED:
        response.headers["www-authenticate"] = CHALLENGE
    if isinstance(error, TooManyFailures) or not await drained(request):
        response.headers["connection"] = "close"
    return response


def json_response(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def error_response(error: PenstockError) -> Response:
    return json_response({"error": error.code, "message": str(error)}, status_of(error))


def status_of(error: PenstockError) -> int:
    """Return the HTTP status of an error: by its code if listed, else by its kind."""
    status = _STATUS_OF_CODE.get(error.code)
    if status is not None:
        return status
    if isinstance(error, InvalidError):
        return 400
    if isinstance(error, (UnavailableError, RetriableError)):
        return 503
    return 500


def _json(parts: Any, view: View, status: int = 200) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        try:
            return json_response(await view(parts, request), status)
        except PenstockError as error:
            if isinstance(error, AuthorisationFailed):
                request.state.caller.denied(error)
            response = error_response(error)
            if not await drained(request, DRAINED_BYTES_MAX, DRAINED_SECONDS):
                response.headers["connection"] = "close"
            return response
        except Exception:
            logger.exception("%s failed", request.url.path)
            return json_response(
                {
                    "error": "unknown_server_error",
                    "message": "the broker failed to handle this request; its log has the cause",
                },
                500,
            )

    return endpoint


def _health(parts: Parts, look: Callable[[], Awaitable[Health]]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        report = await look()
        caller: Caller = request.state.caller
        causes = caller.rights.allows("describe", "cluster", CLUSTER)
        body = report.as_json(parts.node_id, causes=causes)
        response = json_response(body, 200 if report.good else 503)
        # `penstock doctor` compares clocks with this header.
        response.headers["date"] = formatdate(parts.clock.now_ms() / 1000, usegmt=True)
        return response

    return endpoint


def _metrics(registry: Registry, groups: metrics.Parts) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        samples = [*registry.collect(), *await metrics.group_samples(groups)]
        text = await asyncio.to_thread(render, samples)
        return Response(text, headers={"content-type": METRICS_TYPE})

    return endpoint


async def _http_error(request: Request, error: Exception) -> Response:
    if (refusal := _too_large_body(request)) is not None:
        return refusal
    status = error.status_code if isinstance(error, HTTPException) else 500
    name = _STATUS_NAMES.get(status, "invalid_request")
    message = f"{request.method} {request.url.path}: {getattr(error, 'detail', error)}"
    return json_response({"error": name, "message": message}, status)


class _BodyLimit:
    """Middleware that rejects requests with too large bodies, announced or received.

    Routes with their own limits count while they read, and accept bodies of unknown size. Their
    errors are sent after authorisation, because authorised senders are still sending and read no
    response before the end of the body.
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
    response = json_response({"error": "invalid_request", "message": message}, 413)
    response.headers["connection"] = "close"
    return response
