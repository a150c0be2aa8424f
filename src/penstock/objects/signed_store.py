"""Reads of object ranges by signed URLs, without credentials of the store.

Each signed range appears as an object of this store. The caller chooses its name, and its first
byte is byte 0. Code that reads objects can therefore read ranges. A range is always requested as a
whole, as it was signed, because no URL covers the bytes between two ranges.

A URL grants access to its bytes until it expires, so it appears in no error and no log.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property, partial
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from penstock.base.errors import PenstockError
from penstock.objects.port import (
    THROTTLED_STATUS,
    ObjectNotFound,
    ObjectTruncated,
    StoreRefused,
    StoreThrottled,
    StoreUnavailable,
)
from penstock.objects.signing import range_header
from penstock.objects.threads import Threads
from penstock.records.extents import SignedRange

SIGNED_READS: Final = 16
"""Parallel reads by signed URLs. Each has its own thread and connection."""
SIGNED_READS_WAITING_MAX: Final = 1024
"""Reads that may wait for such a thread. Further ones fail with `StoreThrottled`."""
REFUSAL_BYTES_MAX: Final = 4096
"""Bytes of an error response that are searched for its error code."""

_TROUBLE: Final = (OSError, http.client.HTTPException)
_CODE: Final = re.compile(rb"<Code>([A-Za-z]{1,64})</Code>")


class SignedStore:
    """An `ObjectReader` of signed ranges, by key. `name` is used in messages.

    It does not follow redirections, and ignores the proxies of the environment.
    """

    def __init__(
        self, ranges: Mapping[str, SignedRange], *, name: str, request_timeout_ms: int
    ) -> None:
        self._ranges = ranges
        self._name = name
        self._timeout_seconds = request_timeout_ms / 1000
        self._threads = Threads(
            "signed-read",
            threads_max=SIGNED_READS,
            waiting_max=SIGNED_READS_WAITING_MAX,
        )
        self._idle: dict[str, list[http.client.HTTPConnection]] = {}
        self._open: set[http.client.HTTPConnection] = set()

    async def get(self, key: str, start: int, size_bytes: int) -> memoryview:
        wanted = self._ranges.get(key)
        if wanted is None:
            raise ObjectNotFound(key)
        if start + size_bytes > wanted.size_bytes:
            raise ObjectTruncated(key, start, size_bytes, wanted.size_bytes)
        content = await self._threads.run(partial(self._read, key, wanted))
        return content[start : start + size_bytes]

    async def close(self) -> None:
        for connection in list(self._open):  # wakes the threads that wait for answers
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
        await self._threads.close()
        for connection in self._open:
            connection.close()
        self._open.clear()

    def _read(self, key: str, wanted: SignedRange) -> memoryview:
        """Read a range over an idle connection. If that fails, or none is idle, use a new one."""
        origin, path = _split(wanted.url)
        idle = self._idle.setdefault(origin, [])
        with suppress(IndexError, *_TROUBLE):
            return self._asked(idle.pop(), idle, path, key, wanted)
        try:
            return self._asked(self._connected(origin), idle, path, key, wanted)
        except _TROUBLE as error:
            reason = str(error) if isinstance(error, OSError) else type(error).__name__
            raise StoreUnavailable(f"{self._name}: cannot read {key}: {reason}") from None

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    def _connected(self, origin: str) -> http.client.HTTPConnection:
        scheme, _, host = origin.partition("://")
        seconds = self._timeout_seconds
        connection = (
            http.client.HTTPSConnection(host, timeout=seconds, context=self._tls)
            if scheme == "https"
            else http.client.HTTPConnection(host, timeout=seconds)
        )
        self._open.add(connection)
        return connection

    def _asked(
        self,
        connection: http.client.HTTPConnection,
        idle: list[http.client.HTTPConnection],
        path: str,
        key: str,
        wanted: SignedRange,
    ) -> memoryview:
        whole = False
        try:
            headers = {"Range": range_header(wanted.start, wanted.size_bytes)}
            connection.request("GET", path, headers=headers)
            with connection.getresponse() as response:
                content = self._content(key, wanted, response)
                whole = not response.will_close
        finally:
            if whole:
                idle.append(connection)
            else:
                self._open.discard(connection)
                connection.close()
        return content

    def _content(
        self, key: str, wanted: SignedRange, response: http.client.HTTPResponse
    ) -> memoryview:
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            raise self._refusal(key, wanted, response)
        if response.length != wanted.size_bytes:
            raise ObjectTruncated(key, 0, wanted.size_bytes, response.length or 0)
        content = memoryview(bytearray(wanted.size_bytes))
        position = 0
        while position < len(content):
            count = response.readinto(content[position:])
            if not count:
                raise http.client.IncompleteRead(b"", len(content) - position)
            position += count
        return content

    def _refusal(
        self, key: str, wanted: SignedRange, response: http.client.HTTPResponse
    ) -> PenstockError:
        """Return the error for a response without the range.

        Its message has only the error code of the response, because the text may repeat the signed
        URL.
        """
        found = _CODE.search(response.read(REFUSAL_BYTES_MAX))
        code = found[1].decode() if found else ""
        status = response.status
        if status == HTTPStatus.NOT_FOUND and code != "NoSuchBucket":
            return ObjectNotFound(key)
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return ObjectTruncated(key, 0, wanted.size_bytes, 0)
        message = f"{self._name}: cannot read {key}: status {status} {code}".rstrip()
        if status in THROTTLED_STATUS:
            return StoreThrottled(message)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return StoreUnavailable(message)
        return StoreRefused(message)


def _split(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}", f"{parts.path}?{parts.query}"
