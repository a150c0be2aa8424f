"""Extents: where the bytes of an offset range lie, so that Spark reads them without the broker.

`GET /v1/topics/{topic}/partitions/{n}/extents?start=&end=` answers with runs of whole batches in
segment files, for `[start, min(end, high watermark))`; left out, `start` is the first offset and
`end` the high watermark. With `isolation=read_committed` it ends at the last stable offset, and
`aborted` has the transactions of the range whose records do not count: producer id, first and last
offset. A range that does not lie in the log is 416. `machine_id` tells a
reader whether the files are on its own machine. What lies in an object store is named as objects
of it (`diskless.formats.extent_json`), in pages: `next_start` is where the next one begins, null on
the last. It is the store that a reader opens, by itself, with its own credentials.

Rights on files or on a store are rights on all topics. Where there is an authoriser, files are not
named, and of objects each extent, cut to what was asked for, has a `url` instead: signed by the
broker for just these bytes, until `urls_expire_ms` (`penstock.objects.signing`). Extents of a store
whose URLs are not signed are not named either. Readers fetch what no extent holds from the broker.
`extents.direct.files.enable` names files and objects all the same, or nothing at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from penstock.archive.formats.extent_json import extent_to_json
from penstock.archive.planning import trimmed
from penstock.base.errors import InvalidError
from penstock.base.settings import INT_MAX, LONG_MAX, whole_number
from penstock.partitions import look_up_watermarks
from penstock.records import OffsetOutOfRange
from penstock.records.positions import READ_COMMITTED, READ_UNCOMMITTED

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.base.system import Clock
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partition_registry import PartitionRegistry
    from penstock.broker.settings import BrokerSettings
    from penstock.diskless.service import DisklessService
    from penstock.objects.signing import Signing
    from penstock.partitions import Partition
    from penstock.records.extents import Extent
    from penstock.records.transactions import AbortedTransaction
    from penstock.security import Authoriser

OBJECT_EXTENTS_PER_PAGE: Final = 1_000
"""Extents in one answer; `next_start` says where to go on."""

OBJECT_LAYOUTS_PER_PAGE_BYTES: Final = 4 << 20
"""What the layouts of one answer take together before base64; one extent's may take more."""

ABORTED_PER_PAGE: Final = 100_000
"""Aborted transactions in one answer; of those that lie around its start there may be more."""

MACHINE_ID_FILES: Final = (Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id"))


ISOLATION_LEVELS: Final = {
    "read_uncommitted": READ_UNCOMMITTED,
    "read_committed": READ_COMMITTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What these views use."""

    settings: BrokerSettings
    authoriser: Authoriser
    clock: Clock
    cluster: ClusterMetadata
    partitions: PartitionRegistry
    diskless: DisklessService | None

    @property
    def names_files(self) -> bool:
        """Whether answers name files, and objects without URLs."""
        word = self.settings.extents_direct_files_enable
        return word == "true" or (word == "auto" and not self.authoriser.refuses)

    @property
    def signing(self) -> Signing | None:
        """What signs the URLs of an answer; None where they have none."""
        if self.diskless is None or self.diskless.url_signer is None:
            return None
        return self.diskless.url_signer.signing(
            now_ms=self.clock.now_ms(), lifetime_ms=self.settings.extents_url_lifetime_ms
        )


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
    found = whole_number(text, maximum)
    if found is None:
        raise BadParameter(f"{name} = {text[:32]!r}: must be a whole number from 0 to {maximum}")
    return found


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


def isolation(query: Mapping[str, str]) -> int:
    """Read an isolation level, which is `read_uncommitted` where none is given.

    Raises:
        BadParameter: it is none.
    """
    text = query.get("isolation", "read_uncommitted")
    if text not in ISOLATION_LEVELS:
        known = " or ".join(ISOLATION_LEVELS)
        raise BadParameter(f"isolation = {text[:32]!r}: must be {known}")
    return ISOLATION_LEVELS[text]


class Page(NamedTuple):
    """Where [start, end) lies, of what was asked for, and which transactions there are aborted."""

    end: int
    extents: Sequence[Extent] = ()
    aborted: Sequence[AbortedTransaction] = ()


async def first_page(partition: Partition, start: int, end: int, *, committed: bool) -> Page:
    """The page of a range that begins at `start`; it is not empty, and ends at `end` at most."""
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
    committed = isolation(request.query_params) == READ_COMMITTED
    if committed:
        end = min(end, partition.last_stable_offset)
    page = Page(end)
    if start < end:
        page = await first_page(partition, start, end, committed=committed)
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
            if extent.kind == "file" and parts.names_files
        ],
        "next_start": page.end if page.end < end else None,
    }
    if committed:
        answer["aborted"] = [
            [one.producer_id, one.first_offset, one.last_offset] for one in page.aborted
        ]
    if partition.store_url:
        answer["store"] = partition.store_url
        answer |= _in_store(
            parts, [extent for extent in page.extents if extent.kind != "file"], start, end
        )
    return answer


def _in_store(parts: Parts, extents: Sequence[Extent], start: int, end: int) -> dict[str, Any]:
    """The extents of objects, with URLs where there is an authoriser and they can be signed."""
    signing = parts.signing
    if signing is None:
        return {"objects": [extent_to_json(extent) for extent in extents if parts.names_files]}
    cut = [trimmed(extent, start, end) for extent in extents if extent.layout]
    return {
        "objects": [
            {**extent_to_json(one), "url": signing.url(one.key, one.byte_offset, one.size_bytes)}
            for one in cut
            if one is not None
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
