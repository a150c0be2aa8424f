"""Routes of an HTTP interface, each declared once, at its handler.

A declaration has the method, the path, the required access and the query parameters. The interface
constructs an endpoint for each declaration, which checks access and parameters. The handler's
docstring documents the route.

This module is separate from `http_listener`, which imports the web packages only when it starts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

S = TypeVar("S")
A = TypeVar("A")
Handler = Callable[[S, Any], Awaitable[Any]]
"""Function that handles a request with the services `S` of its interface. Its second argument is
Starlette's `Request`, or the interface's own type of requests. It returns a `Response`, or a value
that is sent as JSON."""
Endpoint = Callable[[Request], Awaitable[Response]]


class HttpRoute(Struct, Generic[S, A], frozen=True, kw_only=True):
    """Declaration of a route."""

    method: str
    path: str
    access: A
    handler: Handler[S]
    parameters: Sequence[str] = ()
    """Names of the query parameters that the route accepts."""
    status: int = 200
    """HTTP status if the handler returns a value."""
    body_bytes_max: Callable[[S], int] | None = None
    """Function that returns the body limit of a handler that counts the bytes it reads. None means
    that the limit of the interface applies."""


class Routes(Generic[S, A]):
    """Declared routes of one part of an interface, in the order in which they are matched."""

    def __init__(self) -> None:
        self.declared: list[HttpRoute[S, A]] = []

    def add(
        self,
        route: str,
        access: A,
        parameters: Sequence[str] = (),
        *,
        status: int = 200,
        body_bytes_max: Callable[[S], int] | None = None,
    ) -> Callable[[Handler[S]], Handler[S]]:
        """Return a decorator that declares a handler for `route`, such as `GET /v1/topics`."""
        method, _, path = route.partition(" ")

        def declare(handler: Handler[S]) -> Handler[S]:
            declared = HttpRoute(
                method=method,
                path=path,
                access=access,
                handler=handler,
                parameters=parameters,
                status=status,
                body_bytes_max=body_bytes_max,
            )
            self.declared.append(declared)
            return handler

        return declare


def json_response(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    content = msgspec.json.encode(value)
    return Response(content, status, media_type="application/json", headers=headers)


def error_response(status: int, error: str, message: str) -> Response:
    return json_response({"error": error, "message": message}, status)


def unrouted(request: Request, error: Exception, names: Mapping[int, str]) -> Response:
    """Return the response to a request that matches no route.

    `names` are the names of errors by HTTP status.
    """
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = f"{request.method} {request.url.path}: {getattr(error, 'detail', error)}"
    return error_response(status, names.get(status, "invalid_request"), message)
