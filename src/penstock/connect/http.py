"""Sink `http`: posts values to a URL as JSON arrays, as JSON Lines, or one in each request.

The requests of a partition are sent in order, those of several partitions in parallel.

| response                     | the sink                                                       |
|------------------------------|----------------------------------------------------------------|
| 2xx                          | continues                                                      |
| 408, 425, 429, 5xx, none     | sends the request again, after the time in `Retry-After`       |
| 401, 403, 404, 405, 407, 3xx | fails: the URL or the credentials are wrong                    |
| any other 4xx                | halves the request until it has found the rejected rows        |

A run sends a row again only if the response to its request is lost. A new run after a crash may
send rows again that the target has accepted. Redirections are not followed, and proxy variables of
the environment are ignored.
"""

from __future__ import annotations

import http.client
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import MISSING, dataclass
from email.utils import parsedate_to_datetime
from functools import cached_property
from http import HTTPStatus
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import InvalidSetting
from penstock.base.retry import Backoff
from penstock.base.settings import setting
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
from penstock.base.urls import without_credentials
from penstock.client.admin_http import LOCAL_HOSTS
from penstock.connect.converting import JsonConverter, whole
from penstock.connect.errors import ConnectorFailed, RowsRejected, SinkUnavailable
from penstock.connect.plugins import VALUE, ConnectorSettings, Sink, SinkBatch

BACKOFF: Final = Backoff(first_ms=100, ceiling_ms=5_000, steady=0.5)
ATTEMPTS_MAX: Final = 1_000
"""Most attempts of a request, within `retry_seconds`."""
RESPONSE_BYTES_MAX: Final = 1 << 20
"""Largest response that keeps its connection open."""
REASON_CHARS_MAX: Final = 300
RETRIED: Final = frozenset({408, 425, 429})
FATAL: Final = frozenset({401, 403, 404, 405, 407})
_CONTENT: Final = {
    "array": "application/json", "lines": "application/x-ndjson", "single": "application/json",
}  # fmt: skip
_TROUBLE: Final = (OSError, http.client.HTTPException)


class HttpSinkSettings(ConnectorSettings):
    """Keys of `[sink]` for `connector = "http"`."""

    url: str = setting(MISSING, "Required: URL of the requests, `http://` or `https://`.")
    method: str = setting("POST", "Method of the requests.", choices=("POST", "PUT", "PATCH"))
    body: str = setting(
        "array", "Body of a request: `array` is a JSON array of values, `lines` a JSON value on"
        " each line, `single` one value.", choices=tuple(_CONTENT),
    )  # fmt: skip
    request_rows: int = setting(
        500, "Most rows of a request.", 1, 1_000_000, shown="1 for `single`"
    )
    verbatim: bool = setting(
        False, "Whether values are sent as their bytes in the topic; else they are decoded,"
        " transformed, and written as JSON with null fields.",
    )  # fmt: skip
    headers: tuple[str, ...] = setting(
        (), "Headers of each request, as `Name: value`.", secret=True
    )
    bearer_token: str = setting("", "Token of the header `Authorization: Bearer`.", secret=True)
    user: str = setting("", "User of basic authentication.")
    password: str = setting("", "Password of `user`.", secret=True)
    ca_file: str = setting(
        "", "PEM file with the authorities that verify the server.", shown="the system's"
    )
    certificate_file: str = setting("", "PEM file with the client's certificate and key.")
    concurrency: int = setting(4, "Most requests at once; one for each partition.", 1, 256)
    timeout_seconds: float = setting(
        30.0, "Longest time of a request.", minimum=0.1, maximum=3600.0
    )
    retry_seconds: float = setting(
        3.0, "Time for which a request is sent again before the connector shows RETRYING and"
        " repeats the batch.", minimum=0.0, maximum=3600.0,
    )  # fmt: skip

    def __post_init__(self) -> None:
        shown = without_credentials(self.url)
        try:
            parts = urlsplit(self.url)
            valid = parts.hostname is not None and parts.port != 0
        except ValueError:
            valid = False
        if not valid or parts.scheme not in ("http", "https"):
            raise InvalidSetting("url", shown, "must have the form https://host/path")
        if parts.username is not None:
            raise InvalidSetting("url", shown, "must have no user; set user and password")
        if self.bearer_token and self.user:
            raise InvalidSetting("user", self.user, "set either bearer_token or user")
        secret = self.bearer_token or self.user
        if secret and parts.scheme == "http" and parts.hostname not in LOCAL_HOSTS:
            raise InvalidSetting("url", shown, "credentials are sent only to https:// or this host")
        if not all(":" in header for header in self.headers):
            raise InvalidSetting("headers", "…", "each header must have the form Name: value")

    @property
    def rows(self) -> int:
        """Most rows of a request."""
        return 1 if self.body == "single" else self.request_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lane:
    """Rows of a partition that are sent in order.

    Attributes:
        values: JSON texts as bytes.
        offsets: offset of each row in the log.
    """

    place: tuple[str, int]
    values: Any
    offsets: Any


class HttpSink(Sink[HttpSinkSettings]):
    """Sink that posts values to a URL."""

    settings_type: ClassVar[type[Any]] = HttpSinkSettings
    resumes = True

    def __init__(self, settings: HttpSinkSettings, connector: str) -> None:
        super().__init__(settings, connector)
        self.raw = settings.verbatim  # type: ignore[misc]
        parts = urlsplit(settings.url)
        self._host, self._port = parts.hostname or "", parts.port
        self._secure = parts.scheme == "https"
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._shown = without_credentials(settings.url)
        self._headers = _headers(settings)
        self._pool = ThreadPoolExecutor(settings.concurrency, "http-sink")
        self._idle: SimpleQueue[http.client.HTTPConnection] = SimpleQueue()
        self._sent: dict[tuple[str, int], int] = {}
        """Offsets behind the processed rows."""
        self._rejected: dict[tuple[str, int, int], str] = {}
        """Reasons by topic, partition and offset, until a call without these rows."""
        self._requests = self._retries = 0

    def problems(self) -> Sequence[str]:
        try:
            connection = self._connection()
            connection.connect()
            connection.close()
        except ssl.SSLError as error:
            return [f"url: TLS with {self._shown} fails: {error}; set ca_file, or correct the URL"]
        except _TROUBLE as error:
            return [f"url: {self._shown} cannot be reached: {error}; correct the URL, or start it"]
        return []

    def plan(self) -> Sequence[str]:
        settings = self.settings
        return [
            f"{settings.method} {self._shown} with up to {settings.rows} rows in a request"
            f" ({settings.body}), up to {settings.concurrency} requests at once"
        ]

    def facts(self) -> Mapping[str, Any]:
        return {"requests": self._requests, "retries": self._retries}

    def write(self, batch: SinkBatch) -> None:
        """Send rows; after `RowsRejected`, all rows but the rejected ones were accepted."""
        partitions, offsets = batch.partitions, batch.offsets
        lanes = self._lanes(batch, partitions, offsets)
        calls = [self._pool.submit(self._send, lane) for lane in lanes]
        failures = [error for error in (call.exception() for call in calls) if error is not None]
        if failures:
            raise next((e for e in failures if isinstance(e, ConnectorFailed)), failures[0])
        rejected: dict[int, str] = {}
        for (topic, partition, offset), reason in list(self._rejected.items()):
            if topic == batch.topic:
                found = np.flatnonzero((partitions == partition) & (offsets == offset))
                rejected |= dict.fromkeys(found.tolist(), reason)
                if not found.size and offset < batch.next_offsets.get(partition, 0):
                    del self._rejected[topic, partition, offset]
        if rejected:
            rows = sorted(rejected)
            raise RowsRejected(rows, [rejected[row] for row in rows])

    def close(self) -> None:
        self._pool.shutdown()
        with suppress(Empty):
            while True:
                self._idle.get_nowait().close()

    def _lanes(self, batch: SinkBatch, partitions: Any, offsets: Any) -> Iterator[_Lane]:
        texts = [
            JsonConverter().convert(part.topic, whole(part.rows.column(VALUE))).fill_null(b"null")
            for part in batch.parts
        ]
        values, order = pa.chunked_array(texts, pa.binary()), np.lexsort((offsets, partitions))
        for partition in np.unique(partitions).tolist():
            place = (batch.topic, partition)
            mask = (partitions == partition) & (offsets >= self._sent.get(place, 0))
            rows = order[mask[order]]
            if rows.size:
                yield _Lane(place=place, values=whole(values.take(rows)), offsets=offsets[rows])

    def _send(self, lane: _Lane) -> None:
        """Send the rows of a partition, and keep the reasons of rejected ones."""
        for first in range(0, lane.offsets.size, self.settings.rows):
            self._send_part(lane, first, min(first + self.settings.rows, lane.offsets.size))

    def _send_part(self, lane: _Lane, first: int, last: int) -> None:
        reason = self._post(self._body(lane.values.slice(first, last - first)))
        if reason is None or last - first == 1:
            offset = int(lane.offsets[last - 1])
            if reason is not None:
                self._rejected[(*lane.place, offset)] = reason
            self._sent[lane.place] = offset + 1
            return
        middle = (first + last) // 2
        self._send_part(lane, first, middle)
        self._send_part(lane, middle, last)

    def _body(self, values: Any) -> bytes:
        kind = self.settings.body
        bounds = pa.array([0, len(values)], pa.int32())
        joined = pc.binary_join(
            pa.ListArray.from_arrays(bounds, values), b"\n" if kind == "lines" else b","
        )
        content: bytes = joined[0].as_py()
        if kind == "array":
            return b"[%b]" % content
        return content + b"\n" if kind == "lines" else content

    # Requests

    def _post(self, body: bytes) -> str | None:
        """Send a request until it is accepted; return the reason of a rejection, else None.

        Raises:
            ConnectorFailed: the server rejects all requests.
            SinkUnavailable: no attempt within `retry_seconds` was successful.
        """
        deadline = SYSTEM_CLOCK.monotonic() + self.settings.retry_seconds
        for attempt in range(1, ATTEMPTS_MAX + 1):
            demanded = 0.0
            try:
                status, content, retry_after = self._once(body)
            except _TROUBLE as error:
                trouble = str(error) or type(error).__name__
            else:
                trouble = f"status {status} {content}"
                if 200 <= status < 300:
                    return None
                if status in FATAL or not 400 <= status < 600:
                    raise ConnectorFailed(
                        f"{self._shown} responds with {trouble}. {_remedy(status)}"
                    )
                if status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in RETRIED:
                    return trouble
                demanded = _seconds(retry_after)
            chance = SYSTEM_RANDOMNESS.uniform()
            pause = max(demanded, BACKOFF.pause_seconds(attempt, chance=chance))
            if SYSTEM_CLOCK.monotonic() + pause > deadline:
                break
            self._retries += 1
            threading.Event().wait(pause)
        unavailable = SinkUnavailable(f"{self._shown} does not accept requests: {trouble}")
        unavailable.pause_seconds = demanded
        raise unavailable

    def _once(self, body: bytes) -> tuple[int, str, str]:
        """Make one attempt; return the status, the begin of the response, and `Retry-After`."""
        self._requests += 1
        try:
            connection = self._idle.get_nowait()
        except Empty:
            connection = self._connection()
        try:
            connection.request(self.settings.method, self._path, body, self._headers)
            response = connection.getresponse()
            content = response.read(RESPONSE_BYTES_MAX)
        except BaseException:
            connection.close()
            raise
        if response.isclosed():
            self._idle.put(connection)
        else:
            connection.close()
        shown = content[:REASON_CHARS_MAX].decode("utf-8", "replace")
        return response.status, shown or response.reason, response.getheader("Retry-After", "")

    def _connection(self) -> http.client.HTTPConnection:
        seconds = self.settings.timeout_seconds
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=seconds, context=self._tls
        )

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        settings = self.settings
        try:
            context = ssl.create_default_context(cafile=settings.ca_file or None)
            if settings.certificate_file:
                context.load_cert_chain(settings.certificate_file)
        except OSError as error:
            raise ConnectorFailed(
                f"ca_file or certificate_file cannot be used: {error}; correct the path"
            ) from error
        return context


def _headers(settings: HttpSinkSettings) -> dict[str, str]:
    found = {"Content-Type": _CONTENT[settings.body]}
    if settings.bearer_token:
        found["Authorization"] = f"Bearer {settings.bearer_token}"
    if settings.user:
        pair = f"{settings.user}:{settings.password}".encode()
        found["Authorization"] = f"Basic {b64encode(pair).decode()}"
    for header in settings.headers:
        name, _, value = header.partition(":")
        found[name.strip()] = value.strip()
    return found


def _seconds(retry_after: str) -> float:
    """Return the time that the header `Retry-After` demands, in seconds; 0 without a valid one."""
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after[:9])
    with suppress(ValueError):
        at = parsedate_to_datetime(retry_after).timestamp()
        return max(0.0, at - SYSTEM_CLOCK.now_ms() / 1000)
    return 0.0


def _remedy(status: int) -> str:
    if status in (401, 403, 407):
        return "Correct bearer_token, or user and password"
    return "Correct the URL and the method" if status >= 400 else "Set the URL it redirects to"
