"""Work for those who consolidate diskless topics from afar, as Spark jobs do.

| request                                                    | answer                           |
|------------------------------------------------------------|----------------------------------|
| `GET /v1/diskless/backlogs`                                | partitions with write-ahead      |
|                                                            | extents, at most a thousand      |
| `POST /v1/diskless/topics/{id}/partitions/{n}/runs?start=` | a run, a reserved key, and where |
|                                                            | to look next                     |
| `POST /v1/diskless/topics/{id}/partitions/{n}/segments`    | the segment has taken the run's  |
|                                                            | place                            |

`all_ages=true` leases what is young and little too. A segment that comes too late is 409, and its
object is swept. No byte of a record passes through here.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID

import msgspec

from penstock.archive.formats.extent_json import (
    Long,
    NoExtent,
    extent_from_json,
    extent_to_json,
)
from penstock.base.errors import InvalidError
from penstock.base.settings import INT_MAX, LONG_MAX
from penstock.broker.admin.extents import flag, number
from penstock.broker.errors import NoObjectStore, UnknownTopicId
from penstock.control.batch_index.values import SegmentSwap

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.broker.partition_registry import PartitionRegistry
    from penstock.control.batch_index.values import PartitionKey
    from penstock.diskless.service import DisklessService

SEGMENT_POST_BYTES_MAX: Final = 64 << 20
"""Body of a segment that is handed in: the extents that it replaces, and its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What these views use."""

    partitions: PartitionRegistry
    diskless: DisklessService | None


class _Posted(msgspec.Struct):
    object_id: Long
    size_bytes: Long
    replaced: list[dict[str, Any]]
    extents: list[dict[str, Any]]


class BadSegment(InvalidError):
    """What was handed in is no segment, or too much."""

    code: ClassVar[str] = "invalid_request"


async def backlogs(parts: Parts, request: Request) -> dict[str, Any]:
    """The partitions with something to consolidate, the most first."""
    found = await _service(parts).work_queue.backlogs()
    rows = []
    for one in found:
        topic = parts.partitions.topics_by_id.get(one.topic_id.bytes)
        if topic is not None:
            rows.append(
                {
                    "topic": topic.topic.name,
                    "topic_id": str(one.topic_id),
                    "partition": one.partition,
                    "extents": one.extents,
                    "size_bytes": one.size_bytes,
                    "oldest_timestamp": one.oldest_timestamp,
                }
            )
    return {"partitions": rows}


async def lease(parts: Parts, request: Request) -> dict[str, Any]:
    """A run of one partition from `start` on, and a key to write its segment under."""
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


async def accept(parts: Parts, request: Request) -> dict[str, Any]:
    """Put a segment in the place of a run."""
    service, key = _service(parts), _key(parts, request)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > SEGMENT_POST_BYTES_MAX:
            raise BadSegment(f"the body has more than {SEGMENT_POST_BYTES_MAX} bytes")
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
        raise BadSegment(f"the body is not in the form expected: {error}") from None
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
        raise UnknownTopicId(f"there is no diskless topic of id {text[:40]}")
    partition = parts.partitions.partition_of(topic, index)
    return partition.topic_id, index
