"""Extents: which bytes of which file hold an offset range, as the admin address tells it.

The broker answers `GET /v1/topics/{topic}/partitions/{n}/extents?start=&end=` from its indexes,
so this costs it one lookup per segment and no payload byte. A range's extents start at the batch
that holds `start` and end with the batch that holds `end - 1`; neighbours may share a batch, and
readers cut to offsets.

Of a diskless topic it names objects of a store instead of files, in pages; they are asked for one
after the other. Any broker answers for such a topic, and the leader for another one, so several
addresses may be given: the next is asked where one does not answer or does not lead.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote, unquote, urlsplit

from penstock.base.ids import TopicPartition
from penstock.control.batch_index.values import DisklessExtent
from penstock.diskless.formats.extent_json import NoExtent, extent_from_json
from penstock.spark.errors import ExtentsUnavailable, InvalidOption
from penstock.spark.object_planning import trimmed

REQUEST_TIMEOUT_SECONDS: Final = 30.0
RESPONSE_BYTES_MAX: Final = 64 << 20
PAGES_MAX: Final = 10_000
"""Answers about one range of a diskless partition, of a thousand extents each."""
_ASK_ANOTHER: Final = frozenset(
    {
        http.HTTPStatus.NOT_FOUND,  # a topic that it has not heard of yet
        http.HTTPStatus.MISDIRECTED_REQUEST,
        http.HTTPStatus.SERVICE_UNAVAILABLE,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A run of whole batches in one file. `path` is None when the bytes are not in a file."""

    path: str | None
    position: int
    size_bytes: int
    base_offset: int
    next_offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionExtents:
    """The extents of one range, and the partition's bounds at the moment of the answer."""

    topic_id: str
    log_start_offset: int
    extents: tuple[Extent, ...]
    store: str = ""
    objects: tuple[DisklessExtent, ...] = ()
    """Of a diskless topic: the store's URL, and what lies in it, instead of extents."""

    @property
    def size_bytes(self) -> int:
        files = sum(extent.size_bytes for extent in self.extents)
        return files + sum(extent.size_bytes for extent in self.objects)


class ExtentSource(Protocol):
    """Tells where the bytes of an offset range are."""

    def extents(self, at: TopicPartition, start: int, end: int) -> PartitionExtents:
        """The extents of [start, end), which must lie within the log.

        Raises:
            ExtentsUnavailable: the broker refused or could not be reached.
        """
        ...


class HttpExtents:
    """`ExtentSource` over admin addresses, separated by commas; they are asked in turns."""

    def __init__(self, admin_urls: str) -> None:
        self._addresses = [_Address(url.strip()) for url in admin_urls.split(",")]

    def extents(self, at: TopicPartition, start: int, end: int) -> PartitionExtents:
        found = self._page(at, start, end)
        pages = [found]
        while pages[-1].next_start is not None:
            if len(pages) == PAGES_MAX:
                raise ExtentsUnavailable(
                    f"{at} offsets {start} to {end} lie in more extents than {PAGES_MAX} answers"
                    " name: read less at a time, or let the brokers consolidate the topic first"
                )
            pages.append(self._page(at, pages[-1].next_start, end))
        objects = tuple(
            wanted
            for page in pages
            for extent in page.found.objects
            if (wanted := trimmed(extent, start, end)) is not None
        )
        return replace(found.found, objects=objects)

    def _page(self, at: TopicPartition, start: int, end: int) -> _Page:
        path = (
            f"/v1/topics/{quote(at.topic, safe='')}/partitions/{at.partition}"
            f"/extents?start={start}&end={end}"
        )
        for number, address in enumerate(self._addresses, start=1):
            try:
                status, body = address.get(path)
            except ExtentsUnavailable:
                if number == len(self._addresses):
                    raise
                continue
            if status == http.HTTPStatus.OK:
                # Who has answered is asked first from now on.
                self._addresses.insert(0, self._addresses.pop(number - 1))
                return _page(at, _json(body))
            if number == len(self._addresses) or status not in _ASK_ANOTHER:
                answer = _json(body)
                raise ExtentsUnavailable(
                    f"{at} offsets {start} to {end}: {address.url} answered {status} "
                    f"{answer.get('error', '')}: {answer.get('message', body[:200])}"
                )
        raise ExtentsUnavailable(f"{at}: there is no admin address")

    def close(self) -> None:
        """Drop the connections."""
        for address in self._addresses:
            address.close()


class _Address:
    """One admin address; one kept connection, one retry on a stale one."""

    def __init__(self, admin_url: str) -> None:
        parts = urlsplit(admin_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidOption("penstock.admin.url", admin_url, "must look like http://host:9644")
        self.url = admin_url
        self._prefix = parts.path.rstrip("/")
        self._host = parts.hostname
        self._port = parts.port
        self._secure = parts.scheme == "https"
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Drop the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of an answer; raises ExtentsUnavailable."""
        for last_try in (False, True):
            try:
                if self._connection is None:
                    self._connection = self._connect()
                self._connection.request("GET", self._prefix + path)
                response = self._connection.getresponse()
                return response.status, response.read(RESPONSE_BYTES_MAX)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if last_try:
                    raise ExtentsUnavailable(
                        f"the admin address {self.url} cannot be reached: {error}"
                    ) from error
        raise ExtentsUnavailable(self.url)

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=REQUEST_TIMEOUT_SECONDS)


def _json(body: bytes) -> Mapping[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


class _Page(NamedTuple):
    """One answer, and where the next begins."""

    found: PartitionExtents
    next_start: int | None


def _page(at: TopicPartition, answer: Mapping[str, Any]) -> _Page:
    try:
        found = PartitionExtents(
            topic_id=str(answer["topic_id"]),
            log_start_offset=int(answer["log_start_offset"]),
            extents=tuple(
                Extent(
                    path=_file_path(str(item["url"])),
                    position=int(item["position"]),
                    size_bytes=int(item["size_bytes"]),
                    base_offset=int(item["base_offset"]),
                    next_offset=int(item["next_offset"]),
                    leader_epoch=int(item["leader_epoch"]),
                )
                for item in answer["extents"]
            ),
            store=str(answer.get("store", "")),
            objects=tuple(map(extent_from_json, answer.get("objects", ()))),
        )
        next_start = answer.get("next_start")
        if next_start is not None and int(next_start) <= found.objects[-1].base_offset:
            raise ValueError(f"next_start = {next_start} does not go on")
        return _Page(found, None if next_start is None else int(next_start))
    except (KeyError, IndexError, TypeError, ValueError, NoExtent) as error:
        raise ExtentsUnavailable(
            f"{at}: the extents are not in the form expected: {error!r}"
        ) from error


def _file_path(url: str) -> str | None:
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "file" else None
