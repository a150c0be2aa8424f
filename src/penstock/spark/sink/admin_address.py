"""Calls to the admin address: one kept connection, bounded attempts, errors by kind.

A call that may be repeated is repeated while the broker is away (connection refused, reset,
answer 503 or another 5xx) until its time is over. Every other answer is the caller's to judge.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.spark.errors import InvalidOption
from penstock.spark.sink import limits
from penstock.spark.sink.errors import AdminUnavailable, NotPenstock

_SERVER_ERROR: Final = 500
_MILLISECONDS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A status and the JSON object with it (empty when the body was none)."""

    status: int
    body: Mapping[str, Any]

    @property
    def error(self) -> str:
        """The broker's word for the error; empty when it has none."""
        return str(self.body.get("error", ""))

    @property
    def message(self) -> str:
        return str(self.body.get("message", "")) or f"status {self.status}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What a request sends: pieces of bytes, `size_bytes` in all; may be sent again."""

    pieces: Iterable[Any]
    size_bytes: int
    content_type: str = "application/octet-stream"


class AdminAddress:
    """The admin address of a broker, for one thread."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidOption("penstock.admin.url", url, "must look like http://host:9644")
        self.url = url
        self._clock = clock
        self._randomness = randomness
        self._prefix = parts.path.rstrip("/")
        self._host, self._port = parts.hostname, parts.port
        self._secure = parts.scheme == "https"
        self._connection: http.client.HTTPConnection | None = None

    def call(
        self, method: str, path: str, body: Body | None = None, *, timeout_seconds: float
    ) -> Answer:
        """One call, repeated while the broker is away, for at most `timeout_seconds`.

        Raises:
            AdminUnavailable: the time is over; the last trouble is in the message.
            NotPenstock: something that does not speak HTTP answers.
        """
        deadline = self._clock.monotonic() + timeout_seconds
        trouble = "no attempt was made"
        for attempt in range(limits.ATTEMPTS_MAX):
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
                raise NotPenstock(self.url, "it does not speak HTTP") from error
            except (OSError, http.client.HTTPException) as error:
                self.close()
                said = str(error) or repr(error)
                # An attempt that the end of the time cut off says less than the one before it.
                cut_off = attempt and self._clock.monotonic() >= deadline
                trouble = f"{trouble}; then {said}" if cut_off else said
            else:
                if answer.status < _SERVER_ERROR:
                    return answer
                trouble = f"{answer.status} {answer.error}: {answer.message}"
            self._pause(attempt, deadline)
        raise AdminUnavailable(
            f"the admin address {self.url} did not do {method} {path} in {timeout_seconds:g} s;"
            f" at last: {trouble}"
        )

    def close(self) -> None:
        """Drop the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _once(self, method: str, path: str, body: Body | None, left: float) -> Answer:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            self._connection = kind(self._host, self._port, timeout=left)
        elif self._connection.sock is not None:
            self._connection.sock.settimeout(left)
        headers = {"Accept": "application/json"}
        if body is not None:
            headers |= {
                "Content-Length": str(body.size_bytes),
                "Content-Type": body.content_type,
            }
        pieces = None if body is None else body.pieces
        self._connection.request(method, self._prefix + path, body=pieces, headers=headers)
        response = self._connection.getresponse()
        return Answer(status=response.status, body=_json(response.read(limits.ANSWER_BYTES_MAX)))

    def _pause(self, attempt: int, deadline: float) -> None:
        longest_ms = min(limits.BACKOFF_FIRST_MS << min(attempt, 10), limits.BACKOFF_MAX_MS)
        seconds = longest_ms * (0.5 + self._randomness.uniform() / 2) / _MILLISECONDS
        left = deadline - self._clock.monotonic()
        if left > 0:
            threading.Event().wait(min(seconds, left))


def _json(body: bytes) -> Mapping[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
