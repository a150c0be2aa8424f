"""HTTP application of the schema registry: finds the handler of a request, and maps errors.

Paths may begin with `/contexts/.name`, which puts all unqualified subjects in that context. Names
in a path are percent-decoded one by one, so that a subject may contain a slash.

A request that does not find something is answered after the broker has looked for changes of other
brokers. Responses to reads are cached until the registry changes, for clients with all permissions.

The content type of a response is the one of `CONTENT_TYPES` that the header Accept prefers. A
request body has one of these types, `application/octet-stream`, or no type. Forms are rejected,
which also keeps pages of other sites from sending changes.

Source: Confluent's Schema Registry API reference; its error responses have `error_code` and
`message`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request

from penstock.base.errors import InvalidError, PenstockError, RetriableError, UnavailableError
from penstock.base.http_listener import drained
from penstock.base.http_routes import HttpRoute, Routes
from penstock.registry.access import CHANGES, Caller, Effect, RegistryAccess
from penstock.registry.errors import RegistryError
from penstock.registry.service import SchemaRegistry
from penstock.registry.values import DEFAULT_CONTEXT
from penstock.security import AuthorisationFailed
from penstock.security.authoriser import ANONYMOUS
from penstock.security.http_credentials import CHALLENGE, TooManyLogins
from penstock.security.listeners.http_authentication import NotAuthenticated

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

CONTENT_TYPES: Final = (
    b"application/vnd.schemaregistry.v1+json",
    b"application/vnd.schemaregistry+json",
    b"application/json",
)
"""Content types of responses, the preferred one first."""
_BODY_TYPES: Final = (*CONTENT_TYPES, b"application/octet-stream", b"")
_ACCEPT_BYTES_MAX: Final = 512
"""Length of a header Accept from which it is ignored."""
BODY_BYTES_MAX: Final = 4 << 20
"""Largest request body; a schema of `SCHEMA_BYTES_MAX` fits, with its escapes."""
CACHED_MAX: Final = 20_000
"""Most responses that are cached."""
CACHED_BYTES_MAX: Final = 64 << 20
"""Most bytes of cached responses."""
_CONTEXTS: Final = "contexts"


class Call(Struct, frozen=True, kw_only=True):
    """A request: its sender, the names in its path, its parameters and its body."""

    caller: Caller
    names: Mapping[str, str]
    request: Request
    body: bytes
    context: str = DEFAULT_CONTEXT

    def flag(self, *names: str) -> bool:
        """Return whether a parameter is true; clients write it in upper or lower case."""
        return any(self.request.query_params.get(name, "").lower() == "true" for name in names)

    def text(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)


class Answer(Struct, frozen=True):
    """Response whose body is already encoded."""

    body: bytes


Registered = HttpRoute[Any, Effect]


class Views(Protocol):
    """Object whose methods handle the routes declared in `routes`."""

    routes: ClassVar[Routes[Any, Effect]]


class _Table:
    """Routes by method and number of path segments."""

    def __init__(self) -> None:
        self._routes: dict[tuple[str, int], list[tuple[tuple[str, ...], Registered, Any]]] = {}
        self._paths: dict[int, list[tuple[str, ...]]] = {}

    def add(self, views: Views) -> None:
        for route in views.routes.declared:
            pattern = tuple(route.path.strip("/").split("/"))
            key = route.method, len(pattern)
            self._routes.setdefault(key, []).append((pattern, route, views))
            self._paths.setdefault(len(pattern), []).append(pattern)

    def find(
        self, method: str, segments: list[str]
    ) -> tuple[Registered, Any, dict[str, str]] | None:
        for pattern, route, views in self._routes.get((method, len(segments)), ()):
            names = _match(pattern, segments)
            if names is not None:
                return route, views, names
        return None

    def knows(self, segments: list[str]) -> bool:
        """Return whether the path exists, with any method."""
        patterns = self._paths.get(len(segments), ())
        return any(_match(pattern, segments) is not None for pattern in patterns)


def _match(pattern: tuple[str, ...], segments: list[str]) -> dict[str, str] | None:
    names: dict[str, str] = {}
    for wanted, given in zip(pattern, segments, strict=True):
        if wanted.startswith("{"):
            names[wanted[1:-1]] = given
        elif wanted != given:
            return None
    return names


class RegistryApp:
    """ASGI application of the registry."""

    def __init__(
        self,
        registry: SchemaRegistry,
        access: RegistryAccess,
        views: Iterable[Views],
    ) -> None:
        self._registry = registry
        self._access = access
        self._table = _Table()
        for handlers in views:
            self._table.add(handlers)
        self._cached: OrderedDict[bytes, Answer] = OrderedDict()
        self._cached_bytes = 0
        self._generation = -1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        target = scope["raw_path"] + b"?" + scope["query_string"]
        preferred = accepted(_header(scope, b"accept"))
        content_type = preferred or CONTENT_TYPES[0]
        try:
            caller = await self._access.admit(request)
            cached = preferred and caller.unlimited and request.method == "GET"
            known = self._known(target) if cached else None
            answer = known or await self._answer(request, caller, target)
        except PenstockError as error:
            await _refuse(request, send, error, content_type)
        except ClientDisconnect:
            return
        except Exception:
            logger.exception("%s %s failed", request.method, scope["path"])
            message = "the registry failed to handle this request; the broker's log has the cause"
            await _send(send, 500, _error_body(50001, message), content_type)
        else:
            await _send(send, 200, answer.body, content_type)

    # Cache

    def _known(self, target: bytes) -> Answer | None:
        if self._generation != self._registry.generation:
            self._generation = self._registry.generation
            self._cached.clear()
            self._cached_bytes = 0
        return self._cached.get(target)

    def _remember(self, target: bytes, answer: Answer, generation: int) -> None:
        if generation != self._registry.generation or generation != self._generation:
            return
        self._cached[target] = answer
        self._cached_bytes += len(answer.body) + len(target)
        while len(self._cached) > CACHED_MAX or self._cached_bytes > CACHED_BYTES_MAX:
            dropped, content = self._cached.popitem(last=False)
            self._cached_bytes -= len(content.body) + len(dropped)

    # Handling

    async def _answer(self, request: Request, caller: Caller, target: bytes) -> Answer:
        segments, context = _segments(request.scope["raw_path"])
        found = self._table.find(request.method, segments)
        if found is None:
            known = self._table.knows(segments)
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED if known else HTTPStatus.NOT_FOUND)
        if segments != [""]:  # probes request `/`, and accept any type
            _check_types(request.scope)
        route, views, names = found
        request.scope["path_params"] = names
        call = Call(
            caller=caller,
            names=names,
            request=request,
            body=await _body(request),
            context=context,
        )
        generation = self._registry.generation
        try:
            value = await self._repeated(route.handler, views, call)
        except AuthorisationFailed as error:
            caller.log.denied(error)
            if caller.known.principal == ANONYMOUS:  # some clients send credentials only after 401
                raise NotAuthenticated(str(error), f"{error}. Send credentials") from None
            raise
        except PenstockError as error:
            if route.access is CHANGES:
                caller.log.changed(_status(error)[0], str(error))
            raise
        if route.access is CHANGES:
            caller.log.changed(200)
        answer = value if isinstance(value, Answer) else Answer(msgspec.json.encode(value))
        if request.method == "GET" and caller.unlimited:
            self._remember(target, answer, generation)
        return answer

    async def _repeated(
        self, handler: Callable[..., Awaitable[Any]], views: Any, call: Call
    ) -> Any:
        """Call a handler; call it again if it fails and other brokers have changed the registry."""
        try:
            return await handler(views, call)
        except RegistryError:
            before = self._registry.generation
            await self._registry.refresh()
            if self._registry.generation == before:
                raise
        return await handler(views, call)


class _Refused(InvalidError):
    """Request that HTTP itself rejects, before a handler is called."""

    def __init__(self, status: HTTPStatus, remedy: str = "") -> None:
        super().__init__(f"HTTP {status} {status.phrase}{remedy}")
        self.status = status


def _body_too_large(size: int | str) -> _Refused:
    return _Refused(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f": the request body of {size} bytes exceeds the limit of {BODY_BYTES_MAX} bytes",
    )


def _header(scope: Scope, name: bytes) -> bytes:
    return next((value for known, value in scope["headers"] if known == name), b"")


def _check_types(scope: Scope) -> None:
    """Reject a request that accepts no type of ours, or whose body is of another type."""
    names = b", ".join(CONTENT_TYPES).decode()
    if accepted(_header(scope, b"accept")) is None:
        raise _Refused(HTTPStatus.NOT_ACCEPTABLE, f": the header Accept must allow one of {names}")
    given = _header(scope, b"content-type").partition(b";")[0].strip().lower()
    if scope["method"] in ("POST", "PUT") and given not in _BODY_TYPES:
        raise _Refused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f": the header Content-Type must be one of {names}"
        )


@lru_cache(maxsize=256)
def accepted(header: bytes) -> bytes | None:
    """Return the content type that a header Accept prefers; None if it allows none of ours.

    Of equally preferred types, the first of `CONTENT_TYPES` is returned.
    """
    if not header or len(header) > _ACCEPT_BYTES_MAX:
        return CONTENT_TYPES[0]
    ranges: dict[bytes, float] = {}
    for item in header.lower().split(b","):
        name, *parameters = (part.strip() for part in item.split(b";"))
        kind = b"*/*" if name == b"*" or name.startswith(b"*/") else name
        ranges[kind] = max(_quality(parameters), ranges.get(kind, 0.0))
    wide = ranges.get(b"application/*", ranges.get(b"*/*", 0.0))
    best = max(CONTENT_TYPES, key=lambda kind: ranges.get(kind, wide))
    return best if ranges.get(best, wide) > 0 else None


def _quality(parameters: Iterable[bytes]) -> float:
    for parameter in parameters:
        if parameter.startswith(b"q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0.0
    return 1.0


def _segments(raw_path: bytes) -> tuple[list[str], str]:
    """Return a path's decoded segments, and the context of its prefix `/contexts/.name`."""
    parts = raw_path.strip(b"/").split(b"/")
    decoded = [unquote_to_bytes(part).decode("utf-8", "replace") for part in parts]
    if decoded[0] == _CONTEXTS and len(decoded) > 1:
        name = decoded[1].strip(":")
        return decoded[2:] or [""], name if name.startswith(".") else f".{name}"
    return decoded, DEFAULT_CONTEXT


async def _body(request: Request) -> bytes:
    if request.method in ("GET", "DELETE", "HEAD"):
        return b""
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared[:16]) > BODY_BYTES_MAX:
        raise _body_too_large(declared[:16])
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise _body_too_large(f"more than {BODY_BYTES_MAX}")
    return bytes(body)


def _status(error: PenstockError) -> tuple[int, int]:
    """Return the HTTP status and the error code of an error."""
    if isinstance(error, RegistryError):
        return error.status, error.error_code
    if isinstance(error, _Refused):
        return error.status, error.status
    if isinstance(error, NotAuthenticated):
        return 401, 40101
    if isinstance(error, AuthorisationFailed):
        return 403, 40301
    if isinstance(error, TooManyLogins) or error.code == "throttling_quota_exceeded":
        return 429, 42901
    if isinstance(error, InvalidError):
        return 400, 400
    if isinstance(error, (UnavailableError, RetriableError)):
        return 503, 50001
    return 500, 50001


async def _refuse(request: Request, send: Send, error: PenstockError, content_type: bytes) -> None:
    status, code = _status(error)
    headers: list[tuple[bytes, bytes]] = []
    if status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", CHALLENGE.encode()))
    if request.method not in ("GET", "DELETE", "HEAD") and not await drained(request):
        headers.append((b"connection", b"close"))
    await _send(send, status, _error_body(code, str(error)), content_type, headers)


def _error_body(code: int, message: str) -> bytes:
    return msgspec.json.encode({"error_code": code, "message": message})


async def _send(
    send: Send,
    status: int,
    body: bytes,
    content_type: bytes,
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    own = [
        (b"content-type", content_type),
        (b"content-length", b"%d" % len(body)),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": own})
    await send({"type": "http.response.body", "body": body})
