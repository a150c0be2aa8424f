"""Comparison of the batch index with the objects, for `penstock diskless verify`.

| finding   | meaning                                                                   |
|-----------|---------------------------------------------------------------------------|
| `hole`    | offsets between a partition's start and its high watermark have no extent |
| `missing` | an extent's object is not in the store                                    |
| `corrupt` | an object cannot be decoded, or a batch has a wrong checksum              |
| `differs` | an object's footer, length or batches contradict the index                |
| `orphan`  | an object in the store has no row                                         |

Brokers may be running. A wrong extent is therefore looked up again, and is ignored if it is gone.
The comparison changes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from penstock.archive.errors import CorruptObject
from penstock.archive.wal import WalFooter, WalRange, read_footer
from penstock.control.operations.diskless import DisklessPlane
from penstock.control.values.diskless import PartitionKey
from penstock.diskless.gc.orphans import Comparison, compare
from penstock.objects import ObjectNotFound, ObjectStore, ObjectTruncated
from penstock.records import BatchHeader, split_batches, verify_crc
from penstock.records.errors import CorruptBatch
from penstock.records.extents import Extent

VERIFIED_EXTENTS_PER_CALL: Final = 1_000
"""Extents that one call of the control plane returns to the verification."""
FOOTERS_KEPT: Final = 1_000
"""Footers in memory, because an object has extents of several partitions."""
FINDINGS_MAX: Final = 1_000
"""Findings that a verification reports. Further ones are only counted."""

_PAIR_BYTES: Final = 8


class Finding(NamedTuple):
    """A defect: its kind, the object or partition, and a description."""

    kind: str
    where: str
    detail: str


class Verifier:
    """Comparison of partitions' extents with the objects in the store.

    `findings` has the first `FINDINGS_MAX` defects; `counts` has the number of defects by kind.
    """

    def __init__(
        self, *, plane: DisklessPlane, store: ObjectStore, checksums: bool = False
    ) -> None:
        self.findings: list[Finding] = []
        self.counts: dict[str, int] = {}
        self.partitions = self.extents = self.objects = self.verified_bytes = 0
        self._plane = plane
        self._store = store
        self._checksums = checksums
        self._looked_at: OrderedDict[str, WalFooter | int | Finding] = OrderedDict()
        """Footer of a write-ahead object, size of a segment, or finding, by object key."""

    @property
    def wrong(self) -> int:
        return sum(self.counts.values())

    async def verify(self, partitions: Iterable[tuple[str, PartitionKey]]) -> None:
        """Check all extents of partitions, given as (name, key), and all objects.

        Raises:
            PenstockError: the control plane or the store cannot be read.
        """
        for name, key in partitions:
            await self._partition(name, key)
        comparison = Comparison(grace_ms=-1, store_now_ms=0)
        await compare(self._plane, self._store, comparison)
        compared = comparison.result()
        self.objects = compared.objects
        for info in compared.orphans:
            self._found(Finding("orphan", info.key, f"{info.size_bytes} bytes without a row"))
        if compared.orphan_count:
            self.counts["orphan"] = compared.orphan_count

    async def _partition(self, name: str, key: PartitionKey) -> None:
        (watermarks,) = await self._plane.watermarks([key])
        self.partitions += 1
        following = start = watermarks.log_start_offset
        while following < watermarks.high_watermark:
            extents = await self._plane.extents(
                *key,
                start=following,
                end=watermarks.high_watermark,
                limit=VERIFIED_EXTENTS_PER_CALL,
            )
            for extent in extents:
                if extent.base_offset > following or (
                    extent.base_offset < following and following != start
                ):
                    await self._hole(name, key, following, extent.base_offset)
                following = extent.next_offset
                await self._extent(name, key, extent)
            if not extents:
                await self._hole(name, key, following, watermarks.high_watermark)
                break

    async def _hole(self, name: str, key: PartitionKey, start: int, end: int) -> None:
        """Report offsets without an extent, unless retention has dropped them meanwhile."""
        (watermarks,) = await self._plane.watermarks([key])
        if watermarks.log_start_offset <= start:
            self._found(
                Finding(
                    "hole",
                    name,
                    f"offsets from {start} to {end} have no extent, or extents overlap",
                )
            )

    async def _extent(self, name: str, key: PartitionKey, extent: Extent) -> None:
        self.extents += 1
        finding = await self._look(name, key, extent)
        if finding is not None and await self._still_there(key, extent):
            self._found(finding)

    async def _look(self, name: str, key: PartitionKey, extent: Extent) -> Finding | None:
        where = f"{name} at offset {extent.base_offset}"
        known = await self._object(extent)
        if isinstance(known, Finding):
            return known._replace(where=f"{where}, {extent.key}")
        if isinstance(known, WalFooter):
            detail = _difference(known, key, extent)
        elif extent.byte_offset + extent.size_bytes > known:
            detail = f"the extent ends beyond the object's {known} bytes"
        else:
            detail = None
        if detail is not None:
            return Finding("differs", f"{where}, {extent.key}", detail)
        if self._checksums:
            return await self._batches(where, extent)
        return None

    async def _object(self, extent: Extent) -> WalFooter | int | Finding:
        looked_at = self._looked_at
        known = looked_at.get(extent.key)
        if known is not None:
            looked_at.move_to_end(extent.key)
            return known
        try:
            size_bytes = (await self._store.head(extent.key)).size_bytes
            if extent.kind == "wal":
                known = await read_footer(self._store, extent.key, size_bytes)
            else:
                known = size_bytes
        except ObjectNotFound as error:
            known = Finding("missing", extent.key, str(error))
        except (CorruptObject, ObjectTruncated) as error:
            known = Finding("corrupt", extent.key, str(error))
        looked_at[extent.key] = known
        if len(looked_at) > FOOTERS_KEPT:
            looked_at.popitem(last=False)
        return known

    async def _batches(self, where: str, extent: Extent) -> Finding | None:
        try:
            data = await self._store.get(extent.key, extent.byte_offset, extent.size_bytes)
            self.verified_bytes += extent.size_bytes
            headers = split_batches(data)
            at = 0
            for header in headers:
                verify_crc(data, header, at)
                at += header.size_bytes
        except (CorruptBatch, ObjectNotFound, ObjectTruncated) as error:
            return Finding("corrupt", f"{where}, {extent.key}", str(error))
        layout = np.array(
            [(header.size_bytes, header.last_offset_delta + 1) for header in headers], "<i4"
        )
        if layout.tobytes() != extent.layout:
            return Finding(
                "differs",
                f"{where}, {extent.key}",
                "the batches do not match the layout in the index",
            )
        if extent.kind == "segment" and not _has_offsets(headers, extent.base_offset):
            return Finding(
                "differs", f"{where}, {extent.key}", "the batches have other offsets than the index"
            )
        return None

    async def _still_there(self, key: PartitionKey, extent: Extent) -> bool:
        now = await self._plane.extents(
            *key, start=extent.base_offset, end=extent.next_offset, limit=1
        )
        (watermarks,) = await self._plane.watermarks([key])
        return extent in now and watermarks.log_start_offset < extent.next_offset

    def _found(self, finding: Finding) -> None:
        self.counts[finding.kind] = self.counts.get(finding.kind, 0) + 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)


def _has_offsets(headers: Iterable[BatchHeader], offset: int) -> bool:
    """Return whether the batches' offsets adjoin, from `offset` on."""
    for header in headers:
        if header.base_offset != offset:
            return False
        offset = header.next_offset
    return True


def _difference(footer: WalFooter, key: PartitionKey, extent: Extent) -> str | None:
    for item in footer.ranges:
        if (item.topic_id, item.partition) == key:
            return None if _holds(item, extent) else "the footer has other batches at this position"
    return "the footer has no batches of the partition"


def _holds(item: WalRange, extent: Extent) -> bool:
    sizes = np.frombuffer(item.layout, "<i4")[::2]
    begins = item.byte_offset + np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    first = int(np.searchsorted(begins, extent.byte_offset))
    count = len(extent.layout) // _PAIR_BYTES
    last = first + count
    return (
        last < len(begins)
        and int(begins[first]) == extent.byte_offset
        and int(begins[last]) == extent.byte_offset + extent.size_bytes
        and item.layout[first * _PAIR_BYTES : last * _PAIR_BYTES] == extent.layout
    )
