"""Extents (byte ranges with the records of an offset range), and consolidation by remote workers.

Spark reads the records there, without the broker.

`GET /v1/topics/{topic}/partitions/{n}/extents?start=&end=` returns ranges of whole batches in
segment files, for the offsets `[start, min(end, high watermark))`. Defaults are the log start
offset and the high watermark. With `isolation=read_committed` the range ends at the last stable
offset, and `aborted` has its aborted transactions: producer id, first and last offset. A range
outside the log gets status 416. A reader compares `machine_id` with its own to find whether the
files are on its machine. Extents in an object store are in `objects`
(`diskless.formats.extent_json`), in pages: `next_start` is the start of the next page, or null.
Readers open the store with their own credentials.

Access to these files or to the store is not limited to one topic. With an authoriser, files are
therefore omitted, and extents of objects are cut to the requested range. Each has a `url` that the
broker has signed for these bytes until `urls_expire_ms` (`penstock.objects.signing`). Extents in a
store without signed URLs are omitted. Readers fetch omitted ranges from the broker. The setting
`extents.direct.files.enable` includes all files and objects, or omits them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple
from uuid import UUID

import msgspec
from msgspec import Struct

from penstock.archive.planning import Long, NoExtent, extent_from_json, extent_to_json, trimmed
from penstock.base.errors import InvalidError
from penstock.base.http_routes import Routes
from penstock.base.ids import TopicPartition
from penstock.base.settings import INT_MAX, LONG_MAX, whole_number
from penstock.broker.admin.access import DESCRIBE, Needs
from penstock.broker.net.errors import NoObjectStore, UnknownTopicId
from penstock.control.values.diskless import PartitionKey, SegmentSwap
from penstock.partitions import look_up_watermarks
from penstock.records import OffsetOutOfRange
from penstock.records.extents import READ_COMMITTED, READ_UNCOMMITTED, Extent

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.base.system import Clock
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.broker.requests.tracing import BrokerTraces
    from penstock.diskless.topics.service import DisklessService
    from penstock.objects.signing import Signing
    from penstock.partitions import Partition
    from penstock.records.transactions import AbortedTransaction
    from penstock.security import Authoriser


OBJECT_EXTENTS_PER_PAGE: Final = 1_000
"""Largest number of extents in one response; `next_start` is the start of the next page."""

OBJECT_LAYOUTS_PER_PAGE_BYTES: Final = 4 << 20
"""Limit of all extents' layouts in one response before base64; a single one may be larger."""

ABORTED_PER_PAGE: Final = 100_000
"""Largest number of aborted transactions in one response, besides those open at its start."""

MACHINE_ID_FILES: Final = (Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id"))


ISOLATION_LEVELS: Final = {
    "read_uncommitted": READ_UNCOMMITTED,
    "read_committed": READ_COMMITTED,
}


class BadParameter(InvalidError):
    """Path or query parameter with an invalid value."""

    code: ClassVar[str] = "invalid_request"


@cache
def machine_id() -> str:
    """Return an identifier of this machine, equal in all its processes; empty without one."""
    for path in MACHINE_ID_FILES:
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text:
            return text
    return ""


def number(name: str, text: str, maximum: int) -> int:
    """Parse a whole number from 0 to `maximum`; raises BadParameter."""
    found = whole_number(text, maximum)
    if found is None:
        raise BadParameter(f"{name} = {text[:32]!r}: must be a whole number from 0 to {maximum}")
    return found


def flag(query: Mapping[str, str], name: str) -> bool:
    """Parse `true` or `false`; false if absent; raises BadParameter."""
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise BadParameter(f"{name} = {text[:32]!r}: must be true or false")
    return text == "true"


def requested_range(log: Partition, query: Mapping[str, str]) -> tuple[int, int]:
    """Return the requested offsets [start, end); raises BadParameter, OffsetOutOfRange."""
    start = log.log_start_offset
    end = log.high_watermark
    if "start" in query:
        start = number("start", query["start"], LONG_MAX)
    if "end" in query:
        end = number("end", query["end"], LONG_MAX)
    if end < start:
        raise BadParameter(f"start = {start} is above end = {end}")
    if not log.log_start_offset <= start <= log.high_watermark:
        raise OffsetOutOfRange(log.topic_partition, start, log.log_start_offset, log.high_watermark)
    return start, min(end, log.high_watermark)


def isolation(query: Mapping[str, str]) -> int:
    """Parse an isolation level, by default `read_uncommitted`; raises BadParameter."""
    text = query.get("isolation", "read_uncommitted")
    if text not in ISOLATION_LEVELS:
        known = " or ".join(ISOLATION_LEVELS)
        raise BadParameter(f"isolation = {text[:32]!r}: must be {known}")
    return ISOLATION_LEVELS[text]


class Page(NamedTuple):
    """First part of a requested range, up to `end`, with its extents and aborted transactions."""

    end: int
    extents: Sequence[Extent] = ()
    aborted: Sequence[AbortedTransaction] = ()


async def first_page(partition: Partition, start: int, end: int, *, committed: bool) -> Page:
    """Return the first page of the range [start, end). It covers at least one offset."""
    extents = _first(await partition.extents(start, end, limit=OBJECT_EXTENTS_PER_PAGE))
    if partition.store_url and extents:
        end = min(end, extents[-1].next_offset)
    if not committed:
        return Page(end, extents)
    aborted = await partition.all_aborted(start, end)
    if len(aborted) > ABORTED_PER_PAGE and start < aborted[ABORTED_PER_PAGE].first_offset:
        end = aborted[ABORTED_PER_PAGE].first_offset
        aborted = aborted[:ABORTED_PER_PAGE]
        extents = _first(await partition.extents(start, end, limit=OBJECT_EXTENTS_PER_PAGE))
    return Page(end, extents, aborted)


def _first(extents: Sequence[Extent]) -> Sequence[Extent]:
    ends = accumulate(len(extent.layout) for extent in extents)
    count = sum(1 for end in ends if end <= OBJECT_LAYOUTS_PER_PAGE_BYTES)
    return extents[: max(1, count)]


class ExtentViews(Struct, frozen=True, kw_only=True):
    settings: BrokerSettings
    authoriser: Authoriser
    clock: Clock
    cluster: ClusterMetadata
    partitions: PartitionRegistry
    diskless: DisklessService | None
    traces: BrokerTraces | None

    @property
    def names_files(self) -> bool:
        """Whether responses may name segment files and unsigned objects, which readers open."""
        word = self.settings.extents_direct_files_enable
        return word == "true" or (word == "auto" and not self.authoriser.refuses)

    @property
    def signing(self) -> Signing | None:
        """Signer of the URLs of one response; None if the store has no signed URLs."""
        if self.diskless is None or self.diskless.url_signer is None:
            return None
        return self.diskless.url_signer.signing(
            now_ms=self.clock.now_ms(), lifetime_ms=self.settings.extents_url_lifetime_ms
        )

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add(
        "GET /v1/topics/{topic}/partitions/{partition}/extents",
        Needs(operation="read", resource_type="topic", named="topic"),
        ("start", "end", "isolation"),
    )
    async def partition_extents(self, request: Request) -> dict[str, Any]:
        """Return one page of the extents of an offset range. The store's URL has no credentials."""
        started = self.clock.monotonic()
        topic = request.path_params["topic"]
        index = number("partition", request.path_params["partition"], INT_MAX)
        place = self.partitions.topics.get(topic)
        if place is None or index >= len(place.partitions):
            await self.cluster.refresh()  # another broker may have just created it
        partition = self.partitions.partition(topic, index)
        await look_up_watermarks(
            [partition]
        )  # another broker may have committed what the reader requests
        start, end = requested_range(partition, request.query_params)
        committed = isolation(request.query_params) == READ_COMMITTED
        if committed:
            end = min(end, partition.last_stable_offset)
        page = Page(end)
        if start < end:
            page = await first_page(partition, start, end, committed=committed)
            self._trace(partition.topic_partition, start, page.end, started)
        answer: dict[str, Any] = {
            "topic": topic,
            "topic_id": str(partition.topic_id),
            "partition": index,
            "leader_epoch": partition.leader_epoch,
            "log_start_offset": partition.log_start_offset,
            "high_watermark": partition.high_watermark,
            "last_stable_offset": partition.last_stable_offset,
            "machine_id": machine_id(),
            "extents": [
                _in_file(partition, extent)
                for extent in page.extents
                if extent.kind == "file" and self.names_files
            ],
            "next_start": page.end if page.end < end else None,
        }
        if committed:
            answer["aborted"] = [
                [aborted.producer_id, aborted.first_offset, aborted.last_offset]
                for aborted in page.aborted
            ]
        if partition.store_url:
            answer["store"] = partition.store_url
            answer |= self._in_store(
                [extent for extent in page.extents if extent.kind != "file"], start, end
            )
        return answer

    def _trace(self, partition: TopicPartition, start: int, end: int, started: float) -> None:
        """Record a span for each traced batch at offsets [start, end)."""
        if self.traces is not None:
            batches = self.traces.within(partition, start, end)
            self.traces.fetched(batches, started=started, client_id="extents")

    @routes.add(
        "GET /v1/topics/{topic}/traces",
        Needs(operation="read", resource_type="topic", named="topic"),
        ("ranges",),
    )
    async def traced(self, request: Request) -> dict[str, Any]:
        """Return the trace contexts of batches in ranges of offsets: `partition:start-end,…`.

        Only contexts of traces that this broker has recorded, and still keeps, are returned.
        """
        topic = request.path_params["topic"]
        found: list[str] = []
        traces, ranges = self.traces, request.query_params.get("ranges", "")
        if traces is None or not ranges:
            return {"topic": topic, "traces": found}
        for text in ranges.split(","):
            index, _, offsets = text.partition(":")
            start, _, end = offsets.partition("-")
            where = TopicPartition(topic, number("partition", index, INT_MAX))
            first, last = number("start", start, LONG_MAX), number("end", end, LONG_MAX)
            found += [batch.context.traceparent for batch in traces.within(where, first, last)]
        return {"topic": topic, "traces": found}

    def _in_store(self, extents: Sequence[Extent], start: int, end: int) -> dict[str, Any]:
        signing = self.signing
        if signing is None:
            return {"objects": [extent_to_json(extent) for extent in extents if self.names_files]}
        cut = [trimmed(extent, start, end) for extent in extents if extent.layout]
        return {
            "objects": [
                {
                    **extent_to_json(part),
                    "url": signing.url(part.key, part.byte_offset, part.size_bytes),
                }
                for part in cut
                if part is not None
            ],
            "urls_expire_ms": signing.expires_ms,
        }


def _in_file(partition: Partition, extent: Extent) -> dict[str, Any]:
    return {
        "url": Path(extent.key).as_uri(),
        "position": extent.byte_offset,
        "size_bytes": extent.size_bytes,
        "base_offset": extent.base_offset,
        "next_offset": extent.next_offset,
        "leader_epoch": partition.epoch_at(extent.base_offset),
        "max_timestamp": extent.max_timestamp,
    }


# Consolidation of diskless topics by remote workers such as Spark jobs: the queue of their work.
#
# A worker leases a run, which is a sequence of extents of one partition in write-ahead objects. It
# merges them into one sealed segment, and posts the segment to replace the run.
#
# | request                                                    | response                         |
# |------------------------------------------------------------|----------------------------------|
# | `GET /v1/diskless/backlogs`                                | partitions with write-ahead      |
# |                                                            | extents, at most a thousand      |
# | `POST /v1/diskless/topics/{id}/partitions/{n}/runs?start=` | a run, a reserved key, and the   |
# |                                                            | start of the next look-up        |
# | `POST /v1/diskless/topics/{id}/partitions/{n}/segments`    | confirmation that the segment    |
# |                                                            | has replaced the run             |
#
# With `all_ages=true`, young and small runs are leased too. If the run has been replaced meanwhile,
# a posted segment gets status 409 and its object is deleted later. Records are not sent through
# this interface.


SEGMENT_POST_BYTES_MAX: Final = 64 << 20
"""Largest body with which a segment is posted: the extents that it replaces, and its own."""


_CONSOLIDATE: Final = Needs(operation="alter")


class _Posted(msgspec.Struct):
    object_id: Long
    size_bytes: Long
    replaced: list[dict[str, Any]]
    extents: list[dict[str, Any]]


class BadSegment(InvalidError):
    """Posted body that is not a valid segment, or too large."""

    code: ClassVar[str] = "invalid_request"


class ConsolidationViews(Struct, frozen=True, kw_only=True):
    partitions: PartitionRegistry
    diskless: DisklessService | None

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /v1/diskless/backlogs", DESCRIBE)
    async def backlogs(self, request: Request) -> dict[str, Any]:
        """Return the diskless partitions with extents to consolidate, most bytes first."""
        found = await self._service().work_queue.backlogs()
        rows = []
        for backlog in found:
            topic = self.partitions.topics_by_id.get(backlog.topic_id.bytes)
            if topic is not None:
                rows.append(
                    {
                        "topic": topic.topic.name,
                        "topic_id": str(backlog.topic_id),
                        "partition": backlog.partition,
                        "extents": backlog.extents,
                        "size_bytes": backlog.size_bytes,
                        "oldest_timestamp": backlog.oldest_timestamp,
                    }
                )
        return {"partitions": rows}

    @routes.add(
        "POST /v1/diskless/topics/{topic_id}/partitions/{partition}/runs",
        _CONSOLIDATE,
        ("start", "all_ages"),
        body_bytes_max=lambda _: SEGMENT_POST_BYTES_MAX,
    )
    async def lease(self, request: Request) -> dict[str, Any]:
        """Lease adjacent extents of a partition to a client that merges them into a sealed segment.

        The first extent is at or above offset `start`. The response also has the reserved key of
        the segment.
        """
        service, key = self._service(), self._key(request)
        query = request.query_params
        start = number("start", query.get("start", "0"), LONG_MAX)
        found = await service.work_queue.lease(key, start, all_ages=flag(query, "all_ages"))
        return {
            "store": service.store_url,
            "run": [extent_to_json(extent) for extent in found.run],
            "lease": None if found.lease is None else found.lease._asdict(),
            "next_start": found.following,
        }

    @routes.add(
        "POST /v1/diskless/topics/{topic_id}/partitions/{partition}/segments",
        _CONSOLIDATE,
        body_bytes_max=lambda _: SEGMENT_POST_BYTES_MAX,
    )
    async def accept(self, request: Request) -> dict[str, Any]:
        service, key = self._service(), self._key(request)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > SEGMENT_POST_BYTES_MAX:
                raise BadSegment(f"the body exceeds the limit of {SEGMENT_POST_BYTES_MAX} bytes")
        swap = await asyncio.to_thread(_swap, key, bytes(body))
        await service.work_queue.complete(swap)
        return {"object_id": swap.object_id, "extents": len(swap.replaced)}

    def _service(self) -> DisklessService:
        if self.diskless is None:
            raise NoObjectStore("this broker has no object store")
        return self.diskless

    def _key(self, request: Request) -> PartitionKey:
        text = request.path_params["topic_id"]
        index = number("partition", request.path_params["partition"], INT_MAX)
        try:
            topic = self.partitions.topics_by_id.get(UUID(text).bytes)
        except ValueError:
            topic = None
        if topic is None or not topic.diskless:
            raise UnknownTopicId(f"no diskless topic has id {text[:40]}")
        partition = self.partitions.partition_of(topic, index)
        return partition.topic_id, index


def _swap(key: PartitionKey, body: bytes) -> SegmentSwap:
    try:
        posted = msgspec.json.decode(body, type=_Posted)
        replaced, extents = (
            tuple(map(extent_from_json, found)) for found in (posted.replaced, posted.extents)
        )
    except (msgspec.MsgspecError, NoExtent, RecursionError, ValueError) as error:
        raise BadSegment(f"the body is not a valid segment: {error}") from None
    return SegmentSwap(
        topic_id=key[0],
        partition=key[1],
        object_id=posted.object_id,
        size_bytes=posted.size_bytes,
        replaced=replaced,
        extents=extents,
    )
