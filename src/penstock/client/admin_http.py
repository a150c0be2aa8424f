"""The client of admin HTTP: one kept connection, bounded answers, errors by kind.

`ask` makes one attempt (and another where the kept connection turns out to be closed). `call` is
for what may be repeated: it goes on while the broker is away (connection refused, reset, answer
503 or another 5xx) until its time is over. Every other answer is the caller's to judge. No proxy
of the environment is used: admin addresses are inside. No redirection is followed, which might lead
credentials elsewhere, and none are sent without TLS but to this machine.
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

from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.base.urls import without_credentials
from penstock.client import limits
from penstock.client.errors import AdminUnavailable, InvalidArgument, NotHttp

if TYPE_CHECKING:
    import ssl

LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_TROUBLE: Final = (OSError, UnicodeError, http.client.HTTPException)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A status and the JSON object with it (empty when the body was none)."""

    status: int
    reason: str
    date: str | None
    content: bytes = field(repr=False)
    body: Mapping[str, Any]

    @property
    def error(self) -> str:
        """The broker's word for the error; empty when it has none."""
        return str(self.body.get("error", ""))

    @property
    def message(self) -> str:
        return str(self.body.get("message", "")) or f"status {self.status}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSecurity:
    """How an admin address is spoken to: the context of TLS (the system's authorities without one),
    and what makes the Authorization header of each request."""

    tls: ssl.SSLContext | None = None
    authorization: Callable[[], str] | None = field(default=None, repr=False)


NO_SECURITY: Final = AdminSecurity()


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What a request sends: pieces of bytes, `size_bytes` in all; may be sent again."""

    pieces: Iterable[Any]
    size_bytes: int
    content_type: str = "application/octet-stream"


class AdminHttp:
    """One admin address, for one thread.

    Raises:
        InvalidArgument: the URL is none of HTTP.
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
        """Drop the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(
        self, method: str, path: str, body: Body | None = None, *, timeout_seconds: float
    ) -> Answer:
        """One attempt; a connection that was kept and is closed by now is replaced once.

        Raises:
            AdminUnavailable: no answer that is HTTP; its cause is what the connection said.
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
        """One call, repeated while the broker is away, for at most `timeout_seconds`.

        Raises:
            AdminUnavailable: the time is over; the last trouble is in the message.
            NotHttp: something that does not speak HTTP answers.
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
                said = str(error) or repr(error)
                # An attempt that the end of the time cut off says less than the one before it.
                cut_off = attempt and self._clock.monotonic() >= deadline
                trouble = f"{trouble}; then {said}" if cut_off else said
            else:
                if answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                    return answer
                trouble = f"{answer.status} {answer.error}: {answer.message}"
            self.pause(attempt, deadline)
        raise AdminUnavailable(
            f"the admin address {self.url} did not do {method} {path} in {timeout_seconds:g} s;"
            f" at last: {trouble}"
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
        if not response.isclosed():  # what follows would be taken for the next answer
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
        """Wait before the attempt after this one, counted from 0, but not beyond the deadline."""
        chance = self._randomness.uniform()
        seconds = limits.ADMIN_BACKOFF.pause_seconds(attempt + 1, chance=chance)
        left = deadline - self._clock.monotonic()
        if left > 0:
            threading.Event().wait(min(seconds, left))


def _json(body: bytes) -> Mapping[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
