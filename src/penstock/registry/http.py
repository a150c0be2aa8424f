"""HTTP application of the schema registry: finds the handler of a request, and maps errors.

Paths may begin with `/contexts/.name`, which puts all unqualified subjects in that context. Names
in a path are percent-decoded one by one, so that a subject may contain a slash.

A request that does not find something is answered after the broker has looked for changes of other
brokers. Responses to reads are cached until the registry changes, for clients with all permissions.

Source: Confluent's Schema Registry API reference; its error responses have `error_code` and
`message`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request

from penstock.base.errors import InvalidError, PenstockError, RetriableError, UnavailableError
from penstock.base.http_listener import drained
from penstock.base.http_routes import HttpRoute, Routes
from penstock.registry.access import Caller, RegistryAccess
from penstock.registry.errors import RegistryError
from penstock.registry.service import SchemaRegistry
from penstock.registry.values import DEFAULT_CONTEXT
from penstock.security import AuthorisationFailed
from penstock.security.http_credentials import CHALLENGE, TooManyLogins
from penstock.security.listeners.http_authentication import NotAuthenticated

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

CONTENT_TYPE: Final = b"application/vnd.schemaregistry.v1+json"
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
    content_type: bytes = CONTENT_TYPE


Registered = HttpRoute[Any, None]


class Views(Protocol):
    """Object whose methods handle the routes declared in `routes`."""

    routes: ClassVar[Routes[Any, None]]


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
        return any(_match(one, segments) is not None for one in self._paths.get(len(segments), ()))


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
        try:
            caller = await self._access.admit(request)
            known = self._known(target) if caller.unlimited and request.method == "GET" else None
            answer = known or await self._answer(request, caller, target)
        except PenstockError as error:
            await _refuse(request, send, error)
        except ClientDisconnect:
            return
        except Exception:
            logger.exception("%s %s failed", request.method, scope["path"])
            message = "the registry failed to handle this request; the broker's log has the cause"
            await _send_error(send, 500, 50001, message)
        else:
            await _send(send, 200, answer)

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
            raise _NoRoute(known=self._table.knows(segments))
        route, views, names = found
        request.scope["path_params"] = names
        call = Call(
            caller=caller,
            names=names,
            request=request,
            body=await _body(request),
            context=context,
        )
        changes = request.method in ("PUT", "DELETE") or "versions" in request.scope["path"]
        changes = changes and request.method != "GET"
        generation = self._registry.generation
        try:
            value = await self._repeated(route.handler, views, call)
        except AuthorisationFailed as error:
            caller.denied(error)
            raise
        except PenstockError as error:
            if changes:
                caller.changed(_status(error)[0], str(error))
            raise
        if changes:
            caller.changed(200, "")
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


class _NoRoute(InvalidError):
    def __init__(self, *, known: bool) -> None:
        super().__init__("HTTP 405 Method Not Allowed" if known else "HTTP 404 Not Found")
        self.status = 405 if known else 404


class _BodyTooLarge(InvalidError):
    def __init__(self, size: int | str) -> None:
        super().__init__(
            f"the request body of {size} bytes exceeds the limit of {BODY_BYTES_MAX} bytes"
        )


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
        raise _BodyTooLarge(declared[:16])
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise _BodyTooLarge(f"more than {BODY_BYTES_MAX}")
    return bytes(body)


def _status(error: PenstockError) -> tuple[int, int]:
    """Return the HTTP status and the error code of an error."""
    if isinstance(error, RegistryError):
        return error.status, error.error_code
    if isinstance(error, _NoRoute):
        return error.status, error.status
    if isinstance(error, _BodyTooLarge):
        return 413, 413
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


async def _refuse(request: Request, send: Send, error: PenstockError) -> None:
    status, code = _status(error)
    headers: list[tuple[bytes, bytes]] = []
    if status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", CHALLENGE.encode()))
    if request.method not in ("GET", "DELETE", "HEAD") and not await drained(request):
        headers.append((b"connection", b"close"))
    await _send_error(send, status, code, str(error), headers)


async def _send_error(
    send: Send,
    status: int,
    code: int,
    message: str,
    headers: list[tuple[bytes, bytes]] | None = None,
) -> None:
    body = msgspec.json.encode({"error_code": code, "message": message})
    await _send(send, status, Answer(body), headers or [])


async def _send(
    send: Send, status: int, answer: Answer, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    own = [
        (b"content-type", answer.content_type),
        (b"content-length", b"%d" % len(answer.body)),
        *(headers or ()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": own})
    await send({"type": "http.response.body", "body": answer.body})
