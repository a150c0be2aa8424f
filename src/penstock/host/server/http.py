"""HTTP front of the agent: ingest for programs without a client, health, metrics, status.

`POST /v1/ingest?topic=&partition=` accepts `application/octet-stream`, which is one chunk, or
`application/x-ndjson`, in which each line is a chunk and must be JSON. Errors:

| status, error                  | cause                                       | retry       |
|--------------------------------|---------------------------------------------|-------------|
| 400 invalid_request            | the request is malformed, or without rules  | never       |
|                                | its Host or Origin names another listener   |             |
| 400 invalid_json               | a line is not JSON; `line` has its number   | never       |
| 401 sasl_authentication_failed | there are rules, but no valid credentials   | never       |
| 403 topic_authorization_failed | the rules do not allow the topic            | never       |
| 404 not_found                  | the path does not exist                     | never       |
| 404 unknown_topic_or_partition | the sink does not have the topic            | never       |
| 405 method_not_allowed         | `Allow` has the allowed methods             | never       |
| 408 request_timeout            | the body took too long                      | yes         |
| 413 content_too_large          | the body or a line exceeds a limit          | never       |
| 415 unsupported_media_type     | another content type, or an encoding        | never       |
| 422 sink_refused               | the sink has rejected it permanently        | never       |
| 429 throttling_quota_exceeded  | there is not enough credit                  | Retry-After |
| 429 sink_busy                  | the sink could not accept it now            | Retry-After |
| 503 sink_unavailable           | the sink did not respond within             | Retry-After |
|                                | `host.http.timeout.ms`, or cannot reach the |             |
|                                | system that it depends on                   |             |
| 503 agent_draining             | the agent is stopping                       | Retry-After |

An error is `{"error": …, "message": …}`. For 429 it also has `dimension`, `limit` and `value` of
the missing credit. If a body of several frames was accepted only in part, `accepted_chunks` has the
number of accepted chunks. Lines are accepted in the order of the body. After a 503 for a timeout,
the sink may still accept the body.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.base.errors import InvalidError, PenstockError
from penstock.base.http_listener import (
    HttpListener,
    client_address,
    is_loopback,
    parse_address,
    wrong_parameters,
)
from penstock.base.http_routes import (
    METRICS_TYPE,
    Endpoint,
    HttpRoute,
    Routes,
    error_response,
    json_response,
    unrouted,
)
from penstock.base.metrics import Metrics, Registry, Sample, counters, gauge, render
from penstock.base.settings import INT_MAX, whole_number
from penstock.base.system import SYSTEM_RANDOMNESS, Clock
from penstock.host.credits import Credit
from penstock.host.port import NO_PARTITION
from penstock.host.server.connection import HostConnection
from penstock.host.server.connections import NAME_CHARS_SHOWN, Connections, late
from penstock.host.server.ingest import (
    HttpProducer,
    NotJson,
    Outcome,
    OutOfCredit,
    Part,
    TooMuch,
    check_json,
    line_parts,
)
from penstock.host.server.settings import HttpSecuritySettings
from penstock.host.sinks.counting import retryable
from penstock.security.audit import AuditEvent
from penstock.security.http_credentials import (
    CHALLENGE,
    NotForHere,
    PasswordVerifier,
    TooManyFailures,
    TooManyLogins,
    check_meant,
    names_of_listener,
)
from penstock.security.listeners.files import ListenerFiles
from penstock.security.listeners.http_authentication import (
    Authentication,
    Failures,
    Identities,
    NotAuthenticated,
    Shown,
)
from penstock.security.listeners.listener_group import Gate, ListenerGroup

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.host.access import Permission
    from penstock.host.server.access_file import Access


# Authentication and authorization of the HTTP front's requests, by the agent's rules.
#
# Without rules, every request whose Host and Origin name this listener may do everything, as on the
# socket. With rules, requests need credentials, except to `/livez` and `/readyz`. Passwords and
# tokens from this host are accepted without TLS too.


LISTENER: Final = "host.http.listener"
"""Setting of the listener, which is also the interface's name in the audit log."""
HOSTS: Final = "host.http.hosts"
NEEDED: Final = "basic or bearer credentials are required"


class NotAllowed(InvalidError):
    """The rules do not allow this request."""

    code: ClassVar[str] = "topic_authorization_failed"


class HttpAccess:
    """Checks requests against an agent's rules."""

    def __init__(
        self, access: Access, files: ListenerFiles, failures: Failures, hosts: Collection[str]
    ) -> None:
        """Create the checks; `hosts` are the names under which clients may address the listener."""
        self._hosts = hosts
        self._access = access
        self._files = files
        self._authentication = Authentication(
            LISTENER,
            self._identities,
            self._known,
            PasswordVerifier(SYSTEM_RANDOMNESS),
            access.audit,
            failures,
            plain_loopback=True,
        )

    async def permission(self, request: Request) -> Permission | None:
        """Return the permission of the client that sent a request; None if there are no rules.

        Raises:
            NotAuthenticated: the credentials match no rule.
            TooManyLogins: too many passwords wait to be verified, or too many were wrong.
        """
        return None if self._access.rules is None else await self._authentication.who(request)

    def _identities(self) -> Identities:
        rules = self._access.rules
        return Identities(
            credentials=None if rules is None else rules.credentials,
            tokens=self._files.tokens,
            fixed_tokens=() if rules is None else rules.tokens.keys(),
            name_of=self._files.principal_of,
        )

    def _known(self, request: Request, shown: Shown) -> Permission:
        rules, name = self._access.rules, shown.name
        if not shown.mechanism:
            raise NotAuthenticated("no credentials", NEEDED)
        found = None
        if rules is not None and shown.token_sha256:
            found = rules.tokens.get(shown.token_sha256)
        elif rules is not None:
            found = (rules.users if shown.mechanism == "basic" else rules.names).get(name)
        if found is None:
            raise NotAuthenticated(f"host.acl.file has no rule for {name}")
        return found

    def check_meant(self, request: Request) -> None:
        """Raise NotForHere if there are no rules, and Host or Origin name another listener.

        Without rules, requests have no credentials, so a web page in a browser on this host could
        publish.
        """
        if self._access.rules is None:
            check_meant(request.headers, self._hosts, HOSTS)

    def check_topic(self, request: Request, permission: Permission | None, topic: str) -> None:
        """Raise NotAllowed if the permission does not include publishing to the topic."""
        if permission is None or permission.allows(topic):
            return
        reason = permission.refusal(topic)
        self._denied(request, permission, reason, topic)
        raise NotAllowed(reason)

    def check_observer(self, request: Request, permission: Permission | None) -> None:
        """Raise NotAllowed if the permission does not include reading metrics and status."""
        if permission is None or permission.observes:
            return
        reason = f"{permission.principal} may not read metrics and status"
        self._denied(request, permission, reason)
        raise NotAllowed(reason)

    def _denied(
        self, request: Request, permission: Permission, reason: str, topic: str | None = None
    ) -> None:
        self._access.audit.record(
            AuditEvent(
                event="denial",
                outcome="denied",
                principal=permission.principal,
                address=client_address(request),
                listener=LISTENER,
                operation=f"{request.method} {request.url.path}",
                resource_type="" if topic is None else "topic",
                resources=() if topic is None else (topic,),
                reason=reason,
            )
        )


PRODUCERS_SHOWN_MAX: Final = 200


def _state(connections: Connections) -> str:
    """Return `draining`, `blocked` while the sink accepts no frames, or `serving`."""
    if connections.draining:
        return "draining"
    return "blocked" if connections.sink_trouble else "serving"


def status_of(connections: Connections) -> dict[str, Any]:
    """Return the agent's state as JSON; of many producers only the oldest are included."""
    machines = [connection.machine for connection in connections]
    totals = connections.totals.with_open(machines)
    in_use = [machine.window.taken for machine in machines]
    left_ms = (
        max(0, int(connections.drain_by_ms - connections.now_ms()))
        if connections.draining
        else None
    )
    return {
        "state": _state(connections),
        "drain_left_ms": left_ms,
        "socket": connections.settings.socket_path,
        "sink": {
            "name": connections.sink.name,
            "retained_bytes": connections.sink.retained_bytes,
            "trouble": connections.sink_trouble,
            "frames": connections.sink_frames,
        },
        "connections": {
            "open": len(connections),
            "max": connections.settings.connections_max,
            "refused": totals.refused_connections,
            "denied": totals.denied_connections,
            "with_ring": sum(machine.ring is not None for machine in machines),
        },
        "credit": {
            "granted_bytes": connections.budget.granted_bytes,
            "total_bytes": connections.budget.total_bytes,
            "in_use": {
                "chunks": sum(taken.slots for taken in in_use),
                "events": sum(taken.events for taken in in_use),
                "bytes": sum(taken.payload_bytes for taken in in_use),
            },
        },
        "accepted": {
            "chunks": totals.accepted_chunks,
            "events": totals.accepted_events,
            "bytes": totals.accepted_bytes,
        },
        "received_bytes": connections.bytes_in,
        "sent_bytes": connections.bytes_out,
        "frames": totals.frames,
        "failed_frames": totals.failed_frames,
        "overdrafts": totals.overdrafts,
        "violations": totals.violations,
        "lost_frames": totals.lost_frames,
        "producers": [_producer(item) for item in islice(connections, PRODUCERS_SHOWN_MAX)],
    }


def _producer(connection: HostConnection) -> dict[str, Any]:
    machine = connection.machine
    return {
        "producer_id": machine.producer_id,
        "producer_epoch": machine.producer_epoch,
        "name": machine.client_name[:NAME_CHARS_SHOWN],
        "state": machine.state.value,
        "frames_in_flight": len(machine.in_flight),
        "credit_left": _credit(machine.window.available),
        "credit": _credit(machine.window.granted),
        "accepted_chunks": machine.accepted_chunks,
        "accepted_bytes": machine.accepted_bytes,
    }


def _credit(credit: Credit) -> dict[str, int]:
    return {"chunks": credit.slots, "events": credit.events, "bytes": credit.payload_bytes}


logger = logging.getLogger(__name__)

NAME: Final = "HTTP"
"""Name of the interface in logs and metrics."""
BODY_SECONDS_MAX: Final = 30.0
"""Maximum time in seconds for a body to arrive, because it holds credit meanwhile."""

OCTETS: Final = "application/octet-stream"
INGEST_PARAMETERS: Final = ("topic", "partition")
LINES: Final = "application/x-ndjson"
IDENTITY: Final = "identity"

DENIALS: Final = (NotAllowed, NotAuthenticated, NotForHere, TooManyLogins)
_RETRY_LATER: Final = {429, 503}
_ERROR_NAMES: Final = {404: "not_found", 405: "method_not_allowed"}


class _Refused(Exception):
    """A request is answered with an error status."""

    def __init__(self, status: int, error: str, message: str, **facts: object) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": error, "message": message, **facts}


class HttpMetrics(Metrics, prefix="penstock_host_http_"):
    """Metrics of the HTTP front."""

    in_flight = gauge("in_flight", "Ingest requests in progress.")
    requests: dict[str, int] = counters(
        "requests_total", "Responses to ingest requests, by status.", "status"
    )


Rule = Literal["open", "observer", "publisher"]
"""Access rule of a route: open to all, to observers of the agent, or to publishers.

The handler of a publishers' route checks the topic itself.
"""
_ROUTES: Final = Routes["HttpFront", Rule]()


class HttpFront:
    """HTTP interface of one agent."""

    def __init__(
        self,
        connections: Connections,
        registry: Registry,
        security: HttpSecuritySettings,
        clock: Clock,
    ) -> None:
        self._connections = connections
        self._registry = registry
        self._settings = connections.settings
        self._producer = HttpProducer(self._settings, connections.sink, connections.now_ms)
        self._security = security
        self._clock = clock
        self.listener_group = ListenerGroup[ListenerFiles](security.bounds, clock.monotonic)
        self._listener = HttpListener()
        self.metrics = HttpMetrics()
        registry.add(self._samples)
        registry.add(self.listener_group.samples)

    @property
    def address(self) -> tuple[str, int]:
        return self._listener.address

    # Life

    async def start(self) -> tuple[str, int]:
        """Listen on `host.http.listener`; return the address with the bound port.

        Raises:
            InvalidSetting: the setting is not an address.
            InvalidError: a file with certificates cannot be used.
            OSError: the address cannot be bound.
        """
        settings = self._settings
        address = parse_address(settings.http_listener, setting=LISTENER)
        files = await self.listener_group.open(NAME, self._files)
        access = self._connections.access
        if access.rules is not None and not (self._security.has_tls or is_loopback(address[0])):
            logger.warning(
                "%s %s has no TLS, so passwords and fixed tokens of host.acl.file are accepted"
                " only from this host", LISTENER, settings.http_listener,
            )  # fmt: skip
        self._access = HttpAccess(
            access,
            files,
            Gate(self.listener_group, NAME),
            names_of_listener(address[0], settings.http_hosts),
        )
        beside = settings.socket_takeover  # the next agent listens beside this one
        return await self._listener.start(
            self.app(),
            address,
            connections_max=settings.http_max_connections,
            reuse_port=beside,
            bind=self.listener_group.http(NAME, reuse_port=beside),
        )

    def _files(self) -> ListenerFiles:
        return ListenerFiles(
            NAME,
            self._security,
            self._clock,
            has_tls=self._security.has_tls,
            has_tokens=self._security.has_tokens,
        )

    def drain(self) -> None:
        """Stop accepting connections if another agent can listen on the same port.

        Otherwise, connections are accepted and answered with 503 agent_draining.
        """
        if self._settings.socket_takeover:
            self._listener.leave()

    async def stop(self) -> None:
        """Stop listening, wait a moment for open requests, and close connections."""
        await self._listener.stop()
        await self.listener_group.close()

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route(route.path, self._endpoint(route), methods=[route.method])
                for route in _ROUTES.declared
            ],
            exception_handlers={HTTPException: _http_error},
        )

    def _samples(self) -> Iterator[Sample]:
        self.metrics.requests = defaultdict(int, sorted(self.metrics.requests.items()))
        return self.metrics.samples()

    # Routes

    def _endpoint(self, route: HttpRoute[HttpFront, Rule]) -> Endpoint:
        """Return the ASGI endpoint of a route, which checks parameters and access before its
        handler.

        The handler of a publishers' route makes these checks itself.
        """

        async def endpoint(request: Request) -> Response:
            if route.access != "publisher":
                wrong = wrong_parameters(request.query_params.multi_items(), route.parameters)
                if wrong:
                    return error_response(400, "invalid_request", wrong)
            if route.access == "observer":
                try:
                    permission = await self._access.permission(request)
                    self._access.check_observer(request, permission)
                except DENIALS as error:
                    return self._denied(error)
            value = await route.handler(self, request)
            return value if isinstance(value, Response) else json_response(value, route.status)

        return endpoint

    def _for_good(self, error: PenstockError) -> Response:
        if error.code == "unknown_topic_or_partition":
            return self._no(404, _error(error))
        return self._no(422, _error(error, "sink_refused"))

    def _denied(self, error: PenstockError) -> Response:
        if isinstance(error, TooManyLogins):
            response = self._no(429, _error(error))
            if isinstance(error, TooManyFailures):
                response.headers["connection"] = "close"
            return response
        if isinstance(error, NotForHere):
            return self._no(400, _error(error))
        response = self._no(403 if isinstance(error, NotAllowed) else 401, _error(error))
        if isinstance(error, NotAuthenticated):
            response.headers["www-authenticate"] = CHALLENGE
        return response

    @_ROUTES.add("GET /livez", "open")
    async def _livez(self, request: Request) -> dict[str, str]:
        """Return ok while the loop runs."""
        return {"status": "ok"}

    @_ROUTES.add("GET /readyz", "open")
    async def _readyz(self, request: Request) -> Response:
        """Return ok while producers are accepted and the sink accepts frames, else 503."""
        connections = self._connections
        if connections.serving and not connections.sink_trouble:
            return json_response({"status": "ok"})
        cause = "the agent is draining" if connections.draining else "the agent is starting"
        if connections.serving:
            cause = f"the sink does not accept frames: {connections.sink_trouble}"
        return json_response({"status": "failing", "cause": cause}, 503)

    @_ROUTES.add("GET /metrics", "observer")
    async def _metrics(self, request: Request) -> Response:
        """Return all metrics as Prometheus text."""
        samples = list(self._registry.collect())
        text = await asyncio.to_thread(render, samples)
        return Response(text, headers={"content-type": METRICS_TYPE})

    @_ROUTES.add("GET /v1/status", "observer")
    async def _status(self, request: Request) -> dict[str, Any]:
        """Return the agent's state."""
        return {**status_of(self._connections), "ingest_requests": dict(self.metrics.requests)}

    @_ROUTES.add("POST /v1/ingest", "publisher", INGEST_PARAMETERS)
    async def _ingest(self, request: Request) -> Response:
        """Publish the body; return 200 when the sink has accepted all of it."""
        self.metrics.in_flight += 1
        try:
            response = await self._answer(request)
        finally:
            self.metrics.in_flight -= 1
        if not getattr(request.state, "read", False):
            response.headers["connection"] = "close"  # of the body nothing more is read
        self.metrics.requests[str(response.status_code)] += 1
        return response

    async def _answer(self, request: Request) -> Response:
        try:
            outcome = await self._take(request)
            return json_response(_facts(outcome))
        except _Refused as refused:
            return self._no(refused.status, refused.body)
        except OutOfCredit as error:
            body = {"dimension": error.dimension, "limit": error.limit, "value": error.value}
            return self._no(429, {**_error(error), **body}, error.retry_after_ms)
        except TooMuch as error:
            return self._no(413, _error(error, "content_too_large"))
        except NotJson as error:
            return self._no(400, {**_error(error, "invalid_json"), "line": error.line})
        except PenstockError as error:
            if isinstance(error, DENIALS):
                return self._denied(error)
            if retryable(error):
                return self._no(503, _error(error, "sink_unavailable"))
            return self._for_good(error)
        except ClientDisconnect:
            return error_response(400, "network_exception", "the client closed the connection")
        except Exception:
            logger.exception("an ingest request failed")
            message = "the agent failed on this request; the agent's log has the cause"
            return error_response(500, "unknown_server_error", message)

    async def _take(self, request: Request) -> Outcome:
        if self._connections.draining:
            raise _Refused(503, "agent_draining", "the agent is draining")
        self._access.check_meant(request)
        permission = await self._access.permission(request)
        kind = ",".join(request.headers.getlist("content-type"))
        kind = kind.partition(";")[0].strip().lower()
        encoding = ",".join(request.headers.getlist("content-encoding")) or IDENTITY
        if kind not in (OCTETS, LINES):
            raise _media(f"content type {kind!r} is not supported; use {OCTETS} or {LINES}")
        if encoding.strip().lower() != IDENTITY:
            raise _media(
                f"content encoding {encoding!r} is not supported; use {IDENTITY}, because"
                " bodies are not decompressed"
            )
        topic, partition = _query(request)
        topic = topic or self._settings.http_topic
        self._access.check_topic(request, permission, topic)
        body = bytearray()
        try:
            await self._receive(request, body)
            view = memoryview(body).toreadonly()
            parts = self._parts(view, kind)
        except BaseException:
            self._producer.window.restore(0, 0, len(body))
            raise
        outcome = await self._deliver(view, parts, topic, partition)
        if outcome.failed is not None:
            raise _Refused(
                429 if outcome.failed.retryable else 422,
                "sink_busy" if outcome.failed.retryable else "sink_refused",
                outcome.failed.reason,
                retry_after_ms=outcome.failed.retry_after_ms,
                **_facts(outcome),
            )
        return outcome

    async def _deliver(
        self, body: memoryview, parts: list[Part], topic: str, partition: int
    ) -> Outcome:
        """Pass the parts to the sink, and wait for its verdicts within the time limit.

        After the time limit the sink still keeps the parts and their credit.
        """
        timeout_ms = self._settings.http_timeout_ms
        handed = False
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                partition = await self._producer.target(topic, partition)
                work = self._producer.deliver(body, parts, topic=topic, partition=partition)
                handed = True
                return await asyncio.shield(work)
        except TimeoutError:
            error = late(self._connections.sink, timeout_ms)
            told = "; it may still accept the body" if handed else ""
            raise _Refused(503, "sink_unavailable", f"{error}{told}") from None
        finally:
            if not handed:
                self._producer.window.restore(0, 0, len(body))

    def _parts(self, body: memoryview, kind: str) -> list[Part]:
        most = self._producer.frame_bytes_max
        if kind == LINES and (parts := list(line_parts(body, most))):
            check_json(body, parts)
            return parts
        if kind == LINES or not body:
            raise _Refused(400, "invalid_request", "the body is empty")
        if len(body) > most:
            raise TooMuch(f"a chunk of {len(body)} bytes exceeds the limit of {most}")
        return [Part(0, len(body), np.array((len(body),), dtype=np.uint32))]

    async def _receive(self, request: Request, body: bytearray) -> None:
        """Receive the body into `body`, taking credit for each byte."""
        most = self._producer.body_bytes_max
        announced = request.headers.get("content-length", "")
        if announced and whole_number(announced, most) is None:
            raise TooMuch(f"a request body of {announced} bytes exceeds the limit of {most}")
        try:
            async with asyncio.timeout(BODY_SECONDS_MAX):
                async for piece in request.stream():
                    if len(body) + len(piece) > most:
                        raise TooMuch(f"the request body exceeds the limit of {most} bytes")
                    self._producer.acquire(Credit(0, 0, len(piece)))
                    body += piece
        except TimeoutError:
            raise _Refused(
                408, "request_timeout", f"the body did not arrive within {BODY_SECONDS_MAX:.0f} s"
            ) from None
        request.state.read = True

    def _no(self, status: int, body: dict[str, object], retry_after_ms: int = 0) -> Response:
        """Return an error response, with a retry time if the request may be retried."""
        if status in _RETRY_LATER:
            given = body.get("retry_after_ms")
            pause_ms = retry_after_ms or (given if isinstance(given, int) else 0)
            pause_ms = pause_ms or self._settings.retry_after_ms
            response = json_response({**body, "retry_after_ms": pause_ms}, status)
            response.headers["retry-after"] = str(max(1, -(-pause_ms // 1000)))
        else:
            response = json_response(body, status)
        return response


def _media(message: str) -> _Refused:
    return _Refused(415, "unsupported_media_type", message)


def _query(request: Request) -> tuple[str, int]:
    if wrong := wrong_parameters(request.query_params.multi_items(), INGEST_PARAMETERS):
        raise _Refused(400, "invalid_request", wrong)
    topic = request.query_params.get("topic", "")
    text = request.query_params.get("partition", "")
    if not text:
        return topic, NO_PARTITION
    partition = whole_number(text, INT_MAX)
    if partition is None:
        message = f"partition {text[:32]!r}: must be 0 to {INT_MAX}"
        raise _Refused(400, "invalid_request", message)
    return topic, partition


def _facts(outcome: Outcome) -> dict[str, object]:
    return {
        "accepted_chunks": outcome.accepted_chunks,
        "accepted_events": outcome.accepted_events,
    }


def _error(error: PenstockError, name: str = "") -> dict[str, object]:
    return {"error": name or error.code, "message": str(error)}


async def _http_error(request: Request, error: Exception) -> Response:
    response = unrouted(request, error, _ERROR_NAMES)
    response.headers.update(getattr(error, "headers", None) or {})
    return response
