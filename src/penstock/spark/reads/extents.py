"""Extents from the admin address: byte ranges of files or objects that hold an offset range.

The broker answers `GET /v1/topics/{topic}/partitions/{n}/extents?start=&end=` from its indexes,
without reading any records. The first extent starts at the batch that contains `start`, and the
last one ends with the batch that contains `end - 1`. Readers then skip the other offsets.

Extents of a diskless topic name objects and come in pages. If an extent has a signed URL, its
reader needs no access rights to the store (`penstock.objects.signed_store`). Any broker can answer
for a diskless topic; for another topic only the leader can. Extents are optional: offsets without
extents are fetched from the leader.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote, unquote, urlsplit

from penstock.archive.planning import NoExtent, extent_from_json, trimmed
from penstock.base.ids import TopicPartition
from penstock.client.admin_http import NO_SECURITY, AdminSecurity, Answer
from penstock.client.errors import AdminUnavailable
from penstock.client.security import admin_security
from penstock.records.extents import Extent, SignedRange, file_extent
from penstock.records.transactions import AbortedRange
from penstock.spark.admin_http import BrokerAdmin, BrokerAdmins
from penstock.spark.errors import ExtentsUnavailable
from penstock.spark.options import SourceOptions

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_SECONDS: Final = 30.0
LEADER_SECONDS: Final = 5.0
"""Longest time for which extents are requested again while no broker is the leader."""
PAGES_MAX: Final = 10_000
"""Most pages for one range of a diskless partition; a page has up to a thousand extents."""
_WITHOUT: Final = frozenset(
    {
        HTTPStatus.MISDIRECTED_REQUEST,
        # A new leader may lag behind the log's end, or retention deleted the records.
        HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
    }
)
"""Status codes, in addition to 5xx, after which a range is read without extents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionExtents:
    """Extents of one offset range, and the partition's log start offset at that time."""

    topic_id: str
    log_start_offset: int
    extents: tuple[Extent, ...]
    aborted: tuple[AbortedRange, ...] = ()
    """Aborted transactions in the range; read_committed readers skip their batches."""
    store: str = ""
    """URL of the object store for a diskless topic, else empty."""
    signed: Mapping[str, SignedRange] = field(default_factory=dict)
    """Byte ranges of objects with signed URLs, by the key of the extent."""

    @property
    def size_bytes(self) -> int:
        return sum(extent.size_bytes for extent in self.extents)


class ExtentSource(Protocol):
    """Port that provides the extents of an offset range."""

    def extents(self, at: TopicPartition, start: int, end: int) -> PartitionExtents:
        """Return the extents of the offsets [start, end), which must be within the log.

        Raises:
            ExtentsUnavailable: the broker rejected the request or is unreachable.
        """
        ...


def extents_of(options: SourceOptions) -> HttpExtents | None:
    """Return the source of extents for these options; None if no admin address is set."""
    if not options.admin_url:
        return None
    return HttpExtents(options.admin_url, options.isolation, admin_security(options.security))


class HttpExtents:
    """Implementation of `ExtentSource` by HTTP requests to admin addresses.

    `admin_urls` are addresses separated by commas. `timeout_seconds` limits retries while no broker
    responds; `leader_seconds` limits them while brokers respond but none is the leader.
    """

    def __init__(
        self,
        admin_urls: str,
        isolation: str = "read_uncommitted",
        security: AdminSecurity = NO_SECURITY,
        *,
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
        leader_seconds: float = LEADER_SECONDS,
    ) -> None:
        self._admins = BrokerAdmins(admin_urls, security=security)
        self._isolation = isolation
        self._timeout_seconds = timeout_seconds
        self._leader_seconds = leader_seconds
        self._reached = False
        self._leaderless = False

    def extents(self, at: TopicPartition, start: int, end: int) -> PartitionExtents:
        found = self._page(at, start, end)
        pages = [found]
        while pages[-1].next_start is not None:
            if len(pages) == PAGES_MAX:
                raise ExtentsUnavailable(
                    f"{at}: offsets {start} to {end} have more than {PAGES_MAX} pages of extents."
                    " Read fewer offsets at a time, or consolidate the topic first"
                )
            pages.append(self._page(at, pages[-1].next_start, end))
        extents = tuple(
            wanted
            for page in pages
            for extent in page.found.extents
            if (wanted := trimmed(extent, start, end)) is not None
        )
        aborted = dict.fromkeys(range_ for page in pages for range_ in page.found.aborted)
        signed = {key: range_ for page in pages for key, range_ in page.found.signed.items()}
        return replace(found.found, extents=extents, aborted=tuple(aborted), signed=signed)

    def _page(self, at: TopicPartition, start: int, end: int) -> _Page:
        path = (
            f"/v1/topics/{quote(at.topic, safe='')}/partitions/{at.partition}"
            f"/extents?start={start}&end={end}&isolation={self._isolation}"
        )
        try:
            address, answer = self._admins.get(
                path,
                timeout_seconds=self._timeout_seconds,
                leader_seconds=0.0 if self._leaderless else self._leader_seconds,
            )
        except AdminUnavailable as error:
            if not self._reached:
                raise ExtentsUnavailable(
                    f"{error}. Set penstock.admin.url to the admin addresses of all brokers"
                ) from error
            return self._without(at, str(error))
        self._reached = True
        if answer.status == HTTPStatus.OK:
            self._leaderless = False
            return _page(at, start, answer.body)
        refusal = f"offsets {start} to {end}: {_said(address, answer)}"
        if answer.status in _WITHOUT or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return self._without(at, refusal)
        raise ExtentsUnavailable(f"{at} {refusal}")

    def _without(self, at: TopicPartition, reason: str) -> _Page:
        """Return a page without extents, so that Kafka fetches from the leader read the range.

        Until a broker returns extents again, later requests do not wait for a leader. Otherwise
        every range would wait.
        """
        self._leaderless = True
        logger.warning(
            "%s: fetching records from the leader: no broker returned extents: %s", at, reason
        )
        return _Page(PartitionExtents(topic_id="", log_start_offset=0, extents=()), None)

    def close(self) -> None:
        self._admins.close()


def _said(address: BrokerAdmin, answer: Answer) -> str:
    message = answer.body.get("message", answer.content[:200])
    return f"{address.url} answered {answer.status} {answer.error}: {message}"


class _Page(NamedTuple):
    found: PartitionExtents
    next_start: int | None


def _page(at: TopicPartition, start: int, answer: Mapping[str, Any]) -> _Page:
    try:
        store = str(answer.get("store", ""))
        signed: dict[str, SignedRange] = {}
        extents: Iterable[Extent] = (
            [_object_extent(item, answer, signed) for item in answer["objects"]]
            if store
            else map(_file_extent, answer["extents"])
        )
        found = PartitionExtents(
            topic_id=str(answer["topic_id"]),
            log_start_offset=int(answer["log_start_offset"]),
            extents=tuple(extents),
            aborted=tuple(
                [AbortedRange(*map(int, fields)) for fields in answer.get("aborted", ())]
            ),
            store=store,
            signed=signed,
        )
        next_start = answer.get("next_start")
        if next_start is not None and int(next_start) <= start:
            raise ValueError(f"next_start = {next_start} must be greater than start = {start}")
        return _Page(found, None if next_start is None else int(next_start))
    except (KeyError, IndexError, TypeError, ValueError, NoExtent) as error:
        raise ExtentsUnavailable(f"{at}: the response has invalid extents: {error!r}") from error


def _object_extent(
    item: Mapping[str, Any], answer: Mapping[str, Any], signed: dict[str, SignedRange]
) -> Extent:
    """Return the extent that a JSON item of the broker's response describes.

    If the item has a signed URL, the URL and its byte range are added to `signed` under a new key.
    The returned extent has this key, and its first byte is byte 0, as `SignedStore` expects.
    """
    extent = extent_from_json(item)
    if "url" not in item:
        return extent
    key = f"{extent.key}@{extent.byte_offset}"
    signed[key] = SignedRange(
        url=str(item["url"]),
        start=extent.byte_offset,
        size_bytes=extent.size_bytes,
        expires_ms=int(answer["urls_expire_ms"]),
    )
    return extent._replace(key=key, byte_offset=0)


def _file_extent(item: Mapping[str, Any]) -> Extent:
    url = urlsplit(str(item["url"]))
    return file_extent(
        unquote(url.path) if url.scheme == "file" else "",
        byte_offset=int(item["position"]),
        size_bytes=int(item["size_bytes"]),
        base_offset=int(item["base_offset"]),
        next_offset=int(item["next_offset"]),
    )
