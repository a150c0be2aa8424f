"""Extents: where the bytes of an offset range lie, so that Spark reads them without the broker.

`GET /v1/topics/{topic}/partitions/{n}/extents?start=&end=` answers with runs of whole batches in
segment files, for `[start, min(end, high watermark))`; left out, `start` is the first offset and
`end` the high watermark. A range that does not lie in the log is 416. `machine_id` tells a
reader whether the files are on its own machine. What lies in an object store is named as objects
of it (`diskless.formats.extent_json`), in pages: `next_start` is where the next one begins, null on
the last. It is the store that a reader opens, by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.archive.formats.extent_json import extent_to_json
from penstock.base.errors import InvalidError
from penstock.base.settings import INT_MAX, LONG_MAX
from penstock.partitions import look_up_watermarks
from penstock.records import OffsetOutOfRange

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partition_registry import PartitionRegistry
    from penstock.partitions import Partition
    from penstock.records.extents import Extent

OBJECT_EXTENTS_PER_PAGE: Final = 1_000
"""Extents in one answer; `next_start` says where to go on."""

OBJECT_LAYOUTS_PER_PAGE_BYTES: Final = 4 << 20
"""What the layouts of one answer take together before base64; one extent's may take more."""

MACHINE_ID_FILES: Final = (Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What these views use."""

    cluster: ClusterMetadata
    partitions: PartitionRegistry


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


def first_page(extents: Sequence[Extent]) -> Sequence[Extent]:
    """The first extents, as many as one answer may have of their layouts; at least one."""
    ends = accumulate(len(extent.layout) for extent in extents)
    count = sum(1 for end in ends if end <= OBJECT_LAYOUTS_PER_PAGE_BYTES)
    return extents[: max(1, count)]


async def partition_extents(parts: Parts, request: Request) -> dict[str, Any]:
    """One page of where a range lies. A store's URL never has credentials in it."""
    topic = request.path_params["topic"]
    index = number("partition", request.path_params["partition"], INT_MAX)
    place = parts.partitions.topics.get(topic)
    if place is None or index >= len(place.partitions):
        await parts.cluster.refresh()  # another broker may have made it just now
    partition = parts.partitions.partition(topic, index)
    await look_up_watermarks(
        [partition]
    )  # another broker may have committed what the reader heard of
    start, end = wanted(partition, request.query_params)
    page: Sequence[Extent] = ()
    if start < end:
        page = first_page(await partition.extents(start, end, limit=OBJECT_EXTENTS_PER_PAGE))
    answer = {
        "topic": topic,
        "topic_id": str(partition.topic_id),
        "partition": index,
        "leader_epoch": partition.leader_epoch,
        "log_start_offset": partition.log_start_offset,
        "high_watermark": partition.high_watermark,
        "last_stable_offset": partition.last_stable_offset,
        "machine_id": machine_id(),
        "extents": [_in_file(partition, extent) for extent in page if extent.kind == "file"],
    }
    if not partition.store_url:
        return answer
    more = bool(page) and page[-1].next_offset < end
    return answer | {
        "store": partition.store_url,
        "objects": [extent_to_json(extent) for extent in page if extent.kind != "file"],
        "next_start": page[-1].next_offset if more else None,
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
