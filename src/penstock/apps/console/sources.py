"""Other processes that the console shows: pipelines, host agents and outboxes of its settings.

All sources of a kind are asked at the same time, each with a time limit. Requests for a page within
`SHARED_SECONDS` share the answers. A source without an answer is shown with the cause.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import ClassVar, Final, Generic, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from penstock.base.errors import InvalidError, PenstockError, UnavailableError
from penstock.base.http_listener import is_loopback
from penstock.base.system import Clock

ASK_SECONDS: Final = 2.0
"""Longest wait for the answer of a source."""
ANSWER_BYTES_MAX: Final = 1 << 20
"""Largest answer of a source."""
SHARED_SECONDS: Final = 1.0
"""Age up to which answers are shown again."""
RATE_SECONDS: Final = 8.0
"""Age from which the earlier one of the two rounds of a rate is replaced."""
TOKEN_BYTES_MAX: Final = 4096
_READ_BYTES: Final = 64 << 10
T = TypeVar("T")


class SourceSilent(UnavailableError):
    """A process does not answer, or its answer is unexpected."""

    code: ClassVar[str] = "network_exception"


class UnknownSource(InvalidError):
    """The console's settings have no such source."""

    code: ClassVar[str] = "resource_not_found"


class Source(Struct, Generic[T], frozen=True, kw_only=True):
    """Source with its answer; None if it did not answer, for the reason in `trouble`.

    `number` is its position in the setting, from 1.
    """

    number: int
    address: str
    answer: T | None
    trouble: str


class Round(Struct, Generic[T], frozen=True, kw_only=True):
    """Answers of all sources at a time, in seconds of the monotonic clock."""

    at: float
    sources: Sequence[Source[T]]

    def get(self, number: int) -> Source[T]:
        """Return the source with a number; raises UnknownSource."""
        if not 1 <= number <= len(self.sources):
            raise UnknownSource(f"the setting has no entry {number}, only {len(self.sources)}")
        return self.sources[number - 1]


class Sources(Generic[T]):
    """Sources of one setting. Belongs to the event loop.

    `ask` returns the answer of an address, or raises a PenstockError.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        ask: Callable[[str], Awaitable[T]],
        clock: Clock,
        *,
        shared_seconds: float = SHARED_SECONDS,
        ask_seconds: float = ASK_SECONDS,
    ) -> None:
        self.addresses = addresses
        self._ask = ask
        self._clock = clock
        self._shared_seconds = shared_seconds
        self._ask_seconds = ask_seconds
        self._asking = asyncio.Lock()
        self._newest: Round[T] | None = None
        self.before: Round[T] | None = None
        """Earlier round, from which rates are computed; None if there is none."""

    async def look(self) -> Round[T]:
        """Return the answers of all sources."""
        async with self._asking:
            newest, now = self._newest, self._clock.monotonic()
            if newest is not None and now - newest.at < self._shared_seconds:
                return newest
            if newest is not None and (self.before is None or now - self.before.at >= RATE_SECONDS):
                self.before = newest
            found = await asyncio.gather(
                *(self._asked(*entry) for entry in enumerate(self.addresses, 1))
            )
            self._newest = Round(at=self._clock.monotonic(), sources=found)
            return self._newest

    async def _asked(self, number: int, address: str) -> Source[T]:
        answer, trouble = None, ""
        try:
            async with asyncio.timeout(self._ask_seconds):
                answer = await self._ask(address)
        except TimeoutError:
            trouble = f"no answer within {self._ask_seconds:g} s"
        except PenstockError as error:
            trouble = str(error)
        return Source(number=number, address=address, answer=answer, trouble=trouble)


async def get_json(url: str, path: str, kind: type[T], *, authorization: str = "") -> T:
    """Return the JSON answer of a GET request, decoded as `kind`.

    `authorization` is the value of this header; it is sent over TLS or to this machine only. The
    caller limits the time.

    Raises:
        SourceSilent: no connection, another status than 200, or an answer that is too large or of
            another form.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    headers = [("host", parts.netloc), ("connection", "close"), ("accept", "application/json")]
    if authorization and (parts.scheme == "https" or is_loopback(host)):
        headers.append(("authorization", authorization))
    tls = await asyncio.to_thread(ssl.create_default_context) if parts.scheme == "https" else None
    try:
        status, content = await _received(host, parts.port or 0, path, headers, tls)
    except (OSError, UnicodeError) as error:
        raise SourceSilent(
            getattr(error, "strerror", "") or str(error) or type(error).__name__
        ) from error
    if status != HTTPStatus.OK:
        hint = ""
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            hint = "; it needs a token that may read its status"
        raise SourceSilent(f"{path} was answered with status {status}{hint}")
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise SourceSilent(f"the answer to {path} has an unexpected form: {error}") from error


async def _received(
    host: str,
    port: int,
    path: str,
    headers: list[tuple[str, str]],
    tls: ssl.SSLContext | None,
) -> tuple[int, bytes]:
    """Return status and body of a response; raises OSError, SourceSilent."""
    import h11

    machine, status, content = h11.Connection(h11.CLIENT), 0, bytearray()
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    try:
        request = h11.Request(method="GET", target=path, headers=headers)
        writer.write((machine.send(request) or b"") + (machine.send(h11.EndOfMessage()) or b""))
        while not isinstance(event := machine.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                data = await reader.read(_READ_BYTES)
                if not data and not status:
                    raise SourceSilent("the connection was closed without an answer")
                machine.receive_data(data)
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                content += event.data
                if len(content) > ANSWER_BYTES_MAX:
                    raise SourceSilent(f"the answer is larger than {ANSWER_BYTES_MAX:,} bytes")
    except h11.RemoteProtocolError as error:
        raise SourceSilent(f"the answer is not valid HTTP: {error}") from error
    finally:
        writer.close()
    return status, bytes(content)


async def bearer(file: str) -> str:
    """Return the Authorization header with the token in a file; empty without a file.

    Raises:
        SourceSilent: the file cannot be read, or its content is not a token.
    """

    def read() -> str:
        try:
            with Path(file).open("rb") as opened:
                token = opened.read(TOKEN_BYTES_MAX).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SourceSilent(f"the token cannot be read: {error}") from error
        if not token or not token.isprintable():
            raise SourceSilent(f"the token cannot be read: {file} must have one line of text")
        return token

    return f"Bearer {await asyncio.to_thread(read)}" if file else ""
