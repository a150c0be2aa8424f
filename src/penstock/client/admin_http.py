"""Client of the admin HTTP interface: one kept connection, bounded responses, errors by kind.

`ask` makes one attempt, and a second one if the kept connection turns out to be closed. `call` is
for idempotent requests: it retries while the broker is unavailable (connection refused, reset,
status 503 or another 5xx) until its timeout. The caller judges every other response. Proxies of the
environment are ignored, since admin addresses are internal. Redirections are not followed, since
they might send credentials elsewhere, and credentials need TLS except to this machine.
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
from penstock.client import limits
from penstock.client.errors import AdminUnavailable, InvalidArgument, NotHttp

if TYPE_CHECKING:
    import ssl

ADMIN_BACKOFF: Final = Backoff(first_ms=50, ceiling_ms=2_000, steady=0.5)
"""Pauses between them."""

LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_TROUBLE: Final = (OSError, UnicodeError, http.client.HTTPException)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Status of a response with its JSON object (empty if the body has none)."""

    status: int
    reason: str
    date: str | None
    content: bytes = field(repr=False)
    body: Mapping[str, Any]

    @property
    def error(self) -> str:
        """Error name from the broker; empty if it sent none."""
        return str(self.body.get("error", ""))

    @property
    def message(self) -> str:
        return str(self.body.get("message", "")) or f"status {self.status}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSecurity:
    """TLS context of an admin address (without one the system's authorities), and a function that
    makes the Authorization header of each request."""

    tls: ssl.SSLContext | None = None
    authorization: Callable[[], str] | None = field(default=None, repr=False)


NO_SECURITY: Final = AdminSecurity()


class Body(Struct, frozen=True, kw_only=True):
    """Body of a request: pieces of `size_bytes` in all, which may be sent again."""

    pieces: Iterable[Any]
    size_bytes: int
    content_type: str = "application/octet-stream"


class AdminHttp:
    """Client of one admin address, for one thread.

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
    ) -> None:
        try:
            parts = urlsplit(url)
            host, self._port = parts.hostname, parts.port
        except ValueError:
            host = None
        if host is None or parts.scheme not in {"http", "https"}:
            shown = without_credentials(url)
            raise InvalidArgument(f"admin address {shown!r}: must look like http://host:9644")
        if parts.username is not None or parts.password is not None:
            raise InvalidArgument("an admin address has no user and no password in it")
        self.url = without_credentials(url)
        self._security = security
        self._clock = clock
        self._randomness = randomness
        self._prefix = parts.path.rstrip("/")
        self._host = host
        self._secure = parts.scheme == "https"
        if security.authorization and not (self._secure or host in LOCAL_HOSTS):
            raise InvalidArgument(
                f"admin address {self.url!r}: credentials are sent over https:// alone,"
                " or to localhost"
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
        """Make one attempt; replace a kept connection once if it turns out to be closed.

        Raises:
            AdminUnavailable: there was no HTTP response; its cause is the connection's error.
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
                f"the admin address {self.url} cannot be reached: {error}"
            ) from error

    def call(
        self, method: str, path: str, body: Body | None = None, *, timeout_seconds: float
    ) -> Answer:
        """Make a call and retry while the broker is unavailable, for at most `timeout_seconds`.

        Raises:
            AdminUnavailable: the timeout has passed; the message has the last error.
            NotHttp: the address answers with another protocol.
        """
        deadline = self._clock.monotonic() + timeout_seconds
        trouble = "no attempt was made"
        for attempt in range(limits.ADMIN_ATTEMPTS_MAX):
            left = deadline - self._clock.monotonic()
            if left <= 0:
                break
            try:
                answer = self._once(method, path, body, left)
            except http.client.RemoteDisconnected:
                self.close()
                trouble = (
                    "it closes connections without an answer (as a Kafka listener does; Apache"
                    " Kafka has no admin address)"
                )
            except http.client.BadStatusLine as error:
                self.close()
                raise NotHttp(f"the admin address {self.url} does not speak HTTP") from error
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
            f"the admin address {self.url} did not complete {method} {path} in"
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
        content = response.read(limits.ADMIN_ANSWER_BYTES_MAX)
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
        """Wait before the attempt after this one, counted from 0, up to the deadline."""
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
