"""Consolidation of diskless topics by remote workers such as Spark jobs: the queue of their work.

A worker leases a run, which is a sequence of extents of one partition in write-ahead objects. It
merges them into one sealed segment, and posts the segment to replace the run.

| request                                                    | response                         |
|------------------------------------------------------------|----------------------------------|
| `GET /v1/diskless/backlogs`                                | partitions with write-ahead      |
|                                                            | extents, at most a thousand      |
| `POST /v1/diskless/topics/{id}/partitions/{n}/runs?start=` | a run, a reserved key, and the   |
|                                                            | start of the next look-up        |
| `POST /v1/diskless/topics/{id}/partitions/{n}/segments`    | confirmation that the segment    |
|                                                            | has replaced the run             |

With `all_ages=true`, young and small runs are leased too. If the run has been replaced meanwhile,
a posted segment gets status 409 and its object is deleted later. Records are not sent through this
interface.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID

import msgspec
from msgspec import Struct

from penstock.archive.formats.extent_json import (
    Long,
    NoExtent,
    extent_from_json,
    extent_to_json,
)
from penstock.base.errors import InvalidError
from penstock.base.http_routes import Routes
from penstock.base.settings import INT_MAX, LONG_MAX
from penstock.broker.admin.access import DESCRIBE, Needs
from penstock.broker.admin.extents import flag, number
from penstock.broker.errors import NoObjectStore, UnknownTopicId
from penstock.control.batch_index.values import SegmentSwap

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.broker.partition_registry import PartitionRegistry
    from penstock.control.batch_index.values import PartitionKey
    from penstock.diskless.service import DisklessService

SEGMENT_POST_BYTES_MAX: Final = 64 << 20
"""Largest body with which a segment is posted: the extents that it replaces, and its own."""


class Parts(Struct, frozen=True, kw_only=True):
    partitions: PartitionRegistry
    diskless: DisklessService | None


routes: Final = Routes[Parts, Needs]()
_CONSOLIDATE: Final = Needs(operation="alter")


class _Posted(msgspec.Struct):
    object_id: Long
    size_bytes: Long
    replaced: list[dict[str, Any]]
    extents: list[dict[str, Any]]


class BadSegment(InvalidError):
    """Posted body that is not a valid segment, or too large."""

    code: ClassVar[str] = "invalid_request"


@routes.add("GET /v1/diskless/backlogs", DESCRIBE)
async def backlogs(parts: Parts, request: Request) -> dict[str, Any]:
    """Return the partitions with extents to merge, those with most bytes first."""
    found = await _service(parts).work_queue.backlogs()
    rows = []
    for backlog in found:
        topic = parts.partitions.topics_by_id.get(backlog.topic_id.bytes)
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
async def lease(parts: Parts, request: Request) -> dict[str, Any]:
    """Lease a run of one partition at or above offset `start`, with a key for its segment."""
    service, key = _service(parts), _key(parts, request)
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
async def accept(parts: Parts, request: Request) -> dict[str, Any]:
    service, key = _service(parts), _key(parts, request)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > SEGMENT_POST_BYTES_MAX:
            raise BadSegment(f"the body exceeds the limit of {SEGMENT_POST_BYTES_MAX} bytes")
    swap = await asyncio.to_thread(_swap, key, bytes(body))
    await service.work_queue.complete(swap)
    return {"object_id": swap.object_id, "extents": len(swap.replaced)}


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


def _service(parts: Parts) -> DisklessService:
    if parts.diskless is None:
        raise NoObjectStore("this broker has no object store")
    return parts.diskless


def _key(parts: Parts, request: Request) -> PartitionKey:
    text = request.path_params["topic_id"]
    index = number("partition", request.path_params["partition"], INT_MAX)
    try:
        topic = parts.partitions.topics_by_id.get(UUID(text).bytes)
    except ValueError:
        topic = None
    if topic is None or not topic.diskless:
        raise UnknownTopicId(f"no diskless topic has id {text[:40]}")
    partition = parts.partitions.partition_of(topic, index)
    return partition.topic_id, index
