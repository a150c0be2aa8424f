"""Extents: where the bytes of an offset range lie, so that Spark reads them without the broker.

`GET /v1/topics/{topic}/partitions/{n}/extents?start=&end=` answers with runs of whole batches in
segment files, for `[start, min(end, high watermark))`; left out, `start` is the first offset and
`end` the high watermark. A range that does not lie in the log is 416. `machine_id` tells a
reader whether the files are on its own machine. Of diskless partitions the answer names
objects of the store instead, in pages: it is the store that a reader opens, by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.base.errors import InvalidError
from penstock.base.settings import INT_MAX, LONG_MAX
from penstock.broker.errors import NoObjectStore
from penstock.diskless.formats.extent_json import extent_to_json
from penstock.diskless.partition import DisklessPartition
from penstock.records import OffsetOutOfRange

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.broker.state import BrokerState
    from penstock.control.batch_index.values import DisklessExtent
    from penstock.partitions import Partition

OBJECT_EXTENTS_PER_PAGE: Final = 1_000
"""Extents in one answer; `next_start` says where to go on."""

OBJECT_LAYOUTS_PER_PAGE_BYTES: Final = 4 << 20
"""What the layouts of one answer take together before base64; one extent's may take more."""

MACHINE_ID_FILES: Final = (Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id"))


class BadParameter(InvalidError):
    """A path or query parameter that is no number in its range."""

    code: ClassVar[str] = "invalid_request"


@cache
def machine_id() -> str:
    """An identifier that processes of one machine share; empty when the system has none."""
    for path in MACHINE_ID_FILES:
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text:
            return text
    return ""


def number(name: str, text: str, maximum: int) -> int:
    """Read a whole number from 0 to `maximum`.

    Raises:
        BadParameter: it is none; the message names the parameter, the bound and the text.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= maximum):
        raise BadParameter(f"{name} = {text[:32]!r}: must be a whole number from 0 to {maximum}")
    return int(text)


def flag(query: Mapping[str, str], name: str) -> bool:
    """Read `true` or `false`, which it is when it is not given.

    Raises:
        BadParameter: it is neither.
    """
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise BadParameter(f"{name} = {text[:32]!r}: must be true or false")
    return text == "true"


def wanted(log: Partition, query: Mapping[str, str]) -> tuple[int, int]:
    """The offsets [start, end) that a request asks for, within the log.

    Raises:
        BadParameter: they are no range.
        OffsetOutOfRange: the log does not hold the first.
    """
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


async def object_extents(
    state: BrokerState, partition: DisklessPartition, query: Mapping[str, str]
) -> dict[str, Any]:
    """Where a range of a diskless partition lies in the object store: one page of extents.

    `next_start` is where the next page begins; None on the last. Extents are as in
    `diskless.formats.extent_json`. The URL never has credentials in it.
    """
    service = state.diskless
    if service is None:
        raise NoObjectStore("this broker has no object store")
    # Another broker may have committed what the reader has heard of.
    await service.look_up_marks([partition])
    start, end = wanted(partition, query)
    found: list[DisklessExtent] = []
    if start < end:
        found = await service.extents(
            partition, start=start, end=end, limit=OBJECT_EXTENTS_PER_PAGE
        )
    page = first_page(found)
    more = bool(page) and page[-1].next_offset < end
    return {
        "topic": partition.topic_partition.topic,
        "topic_id": str(partition.topic_id),
        "partition": partition.topic_partition.partition,
        "leader_epoch": partition.leader_epoch,
        "log_start_offset": partition.log_start_offset,
        "high_watermark": partition.high_watermark,
        "last_stable_offset": partition.last_stable_offset,
        "machine_id": machine_id(),
        "extents": [],
        "store": service.store_url,
        "objects": [extent_to_json(extent) for extent in page],
        "next_start": page[-1].next_offset if more else None,
    }


def first_page(extents: Sequence[DisklessExtent]) -> Sequence[DisklessExtent]:
    """The first extents, as many as one answer may have of their layouts; at least one."""
    ends = accumulate(len(extent.layout) for extent in extents)
    count = sum(1 for end in ends if end <= OBJECT_LAYOUTS_PER_PAGE_BYTES)
    return extents[: max(1, count)]


async def partition_extents(state: BrokerState, request: Request) -> dict[str, Any]:
    topic = request.path_params["topic"]
    index = number("partition", request.path_params["partition"], INT_MAX)
    place = state.topics.get(topic)
    if place is None or index >= len(place.partitions):
        await state.refresh()  # another broker may have made it just now
        place = state.topics.get(topic)
    partition = state.partition(topic, index)
    if isinstance(partition, DisklessPartition):
        return await object_extents(state, partition, request.query_params)
    log = state.local_log(topic, index)
    start, end = wanted(partition, request.query_params)
    extents = log.extents(start, end) if start < end else []
    return {
        "topic": topic,
        "topic_id": str(log.topic_id),
        "partition": index,
        "leader_epoch": log.leader_epoch,
        "log_start_offset": log.log_start_offset,
        "high_watermark": log.high_watermark,
        "last_stable_offset": log.last_stable_offset,
        "machine_id": machine_id(),
        "extents": [
            {
                "url": extent.path.absolute().as_uri(),
                "position": extent.position,
                "size_bytes": extent.size_bytes,
                "base_offset": extent.base_offset,
                "next_offset": extent.next_offset,
                "leader_epoch": extent.leader_epoch,
                "max_timestamp": extent.max_timestamp,
            }
            for extent in extents
        ],
    }
