"""Client of an HTTP interface of a broker, with one kept connection and bounded responses.

`ask` makes one attempt, and a second one if the kept connection was closed. `call` is for
idempotent requests. It retries until its timeout while the broker is unavailable: connection
refused, reset, or a status of 500 or above. Callers handle all other responses. Proxy variables of
the environment are ignored, because admin addresses are internal. Redirections are not followed,
because they could send credentials to another address. Credentials require TLS, except to this
host.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from penstock.base.retry import Backoff
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.base.urls import without_credentials
from penstock.client import errors
from penstock.client.errors import AdminUnavailable, InvalidArgument, NotHttp

if TYPE_CHECKING:
    import ssl

ADMIN_BACKOFF: Final = Backoff(first_ms=50, ceiling_ms=2_000, steady=0.5)
"""Pauses between them."""

LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_TROUBLE: Final = (OSError, UnicodeError, http.client.HTTPException)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Response: its status, and its JSON object, which is empty if the body has none."""

    status: int
    reason: str
    date: str | None
    content: bytes = field(repr=False)
    body: Mapping[str, Any]

    @property
    def error(self) -> str:
        """Error name from the broker; empty if the response has none."""
        return str(self.body.get("error", ""))

    @property
    def message(self) -> str:
        return str(self.body.get("message", "")) or f"status {self.status}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSecurity:
    """TLS context of an admin address, and a function that returns the Authorization header.

    Without a context, the system's authorities verify the server. The function is called for each
    request.
    """

    tls: ssl.SSLContext | None = None
    authorization: Callable[[], str] | None = field(default=None, repr=False)


NO_SECURITY: Final = AdminSecurity()


class Body(Struct, frozen=True, kw_only=True):
    """Body of an HTTP request: byte pieces of `size_bytes` in total. They are read again for a
    retry, so they must not be a generator.
    """

    pieces: Iterable[Any]
    size_bytes: int
    content_type: str = "application/octet-stream"


class AdminHttp:
    """Client of one admin address, or of the address that `name` names in errors, for one thread.

    Raises:
        InvalidArgument: the URL is not an HTTP URL.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
        security: AdminSecurity = NO_SECURITY,
        name: str = "admin address",
        example: str = "http://host:9644",
    ) -> None:
        self._name = name
        try:
            parts = urlsplit(url)
            host, self._port = parts.hostname, parts.port
        except ValueError:
            host = None
        if host is None or parts.scheme not in {"http", "https"}:
            shown = without_credentials(url)
            raise InvalidArgument(f"{name} {shown!r}: must have the form {example}")
        if parts.username is not None or parts.password is not None:
            raise InvalidArgument(f"{name}: must not contain a user or a password")
        self.url = without_credentials(url)
        self._security = security
        self._clock = clock
        self._randomness = randomness
        self._prefix = parts.path.rstrip("/")
        self._host = host
        self._secure = parts.scheme == "https"
        if security.authorization and not (self._secure or host in LOCAL_HOSTS):
            raise InvalidArgument(
                f"{name} {self.url!r}: credentials are only sent to https://"
                " addresses or to localhost"
            )
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> AdminHttp:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(
        self, method: str, path: str, body: Body | None = None, *, timeout_seconds: float
    ) -> Answer:
        """Make one attempt, and a second one if the kept connection was closed.

        Raises:
            AdminUnavailable: there was no HTTP response; the connection's error is the cause.
        """
        if self._connection is not None:
            try:
                return self._once(method, path, body, timeout_seconds)
            except _TROUBLE:
                self.close()
        try:
            return self._once(method, path, body, timeout_seconds)
        except _TROUBLE as error:
            self.close()
            raise AdminUnavailable(
                f"the {self._name} {self.url} cannot be reached: {error}"
            ) from error

    def call(
        self, method: str, path: str, body: Body | None = None, *, timeout_seconds: float
    ) -> Answer:
        """Make a call, and retry for at most `timeout_seconds` while the broker is unavailable.

        Raises:
            AdminUnavailable: the timeout has passed; the message has the last error.
            NotHttp: the address uses another protocol.
        """
        deadline = self._clock.monotonic() + timeout_seconds
        trouble = "the timeout passed before the first attempt"
        for attempt in range(errors.ADMIN_ATTEMPTS_MAX):
            left = deadline - self._clock.monotonic()
            if left <= 0:
                break
            try:
                answer = self._once(method, path, body, left)
            except http.client.RemoteDisconnected:
                self.close()
                trouble = (
                    "it closes connections without a response, like a Kafka listener;"
                    " Apache Kafka has no admin address"
                )
            except http.client.BadStatusLine as error:
                self.close()
                raise NotHttp(
                    f"the server at the {self._name} {self.url} does not use HTTP"
                ) from error
            except _TROUBLE as error:
                self.close()
                text = str(error) or repr(error)
                # The error of an attempt cut short by the deadline is less specific: keep both.
                cut_off = attempt and self._clock.monotonic() >= deadline
                trouble = f"{trouble}; then {text}" if cut_off else text
            else:
                if answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                    return answer
                trouble = f"{answer.status} {answer.error}: {answer.message}"
            self.pause(attempt, deadline)
        raise AdminUnavailable(
            f"{method} {path} failed at the {self._name} {self.url} for"
            f" {timeout_seconds:g} s; the last error: {trouble}"
        )

    def _once(self, method: str, path: str, body: Body | None, timeout_seconds: float) -> Answer:
        if self._connection is None:
            self._connection = self._new(timeout_seconds)
        elif self._connection.sock is not None:
            self._connection.sock.settimeout(timeout_seconds)
        headers = {"Accept": "application/json"}
        if self._security.authorization is not None:
            headers["Authorization"] = self._security.authorization()
        if body is not None:
            headers |= {
                "Content-Length": str(body.size_bytes),
                "Content-Type": body.content_type,
            }
        pieces = None if body is None else body.pieces
        self._connection.request(method, self._prefix + path, body=pieces, headers=headers)
        response = self._connection.getresponse()
        bytes_max = errors.ADMIN_ANSWER_BYTES_MAX
        whole = response.chunked or response.length is not None
        content = response.read(bytes_max)
        # `read` raises no error if a killed server has cut off the headers or the body.
        if not whole or (response.length and len(content) < bytes_max):
            raise http.client.IncompleteRead(content, response.length)
        if not response.isclosed():  # the rest would be read as the next response
            self.close()
        return Answer(
            status=response.status,
            reason=response.reason,
            date=response.getheader("Date"),
            content=content,
            body=_json(content),
        )

    def _new(self, timeout_seconds: float) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout_seconds)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=timeout_seconds, context=self._security.tls
        )

    def pause(self, attempt: int, deadline: float) -> None:
        """Wait before the retry of an attempt, longer after each one, but not beyond the deadline.

        `attempt` is the number of the failed attempt, counted from 0.
        """
        chance = self._randomness.uniform()
        seconds = ADMIN_BACKOFF.pause_seconds(attempt + 1, chance=chance)
        left = deadline - self._clock.monotonic()
        if left > 0:
            threading.Event().wait(min(seconds, left))


def _json(body: bytes) -> Mapping[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
