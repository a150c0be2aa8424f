"""A plane and a store with write-ahead objects that the tests of consolidation lay out by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.archive.assembly import assemble
from penstock.archive.planning import trim
from penstock.archive.wal import WalHeader, WalRange, encode_footer, encode_header
from penstock.control import DisklessPlane
from penstock.control.values.diskless import ObjectCommit
from penstock.diskless.writing.objects import Submission, entry_of
from penstock.objects import ObjectStore
from penstock.records import split_batches
from penstock.records.appends import AppendResult
from penstock.records.extents import Extent
from penstock.records.transactions import Marker
from tests.records.reference import Batch, Record, encode

TOPIC = UUID(int=7)
KEY = (TOPIC, 0)
BROKER = 1
INCARNATION = UUID(int=9)
START_MS = 1_700_000_000_000


def produced(
    *values: bytes,
    timestamp: int = START_MS,
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """Return a batch as a producer sends it: base offset 0, and times a second apart."""
    records = tuple(
        Record(number, timestamp + 1000 * number, b"k%d" % number, value, (("h", b"x"),))
        for number, value in enumerate(values)
    )
    return encode(Batch(0, records, codec=codec, producer=producer))


class Sent(NamedTuple):
    """The batches of one produce request for one partition."""

    batches: bytes
    partition: int = 0
    append_time: bool = False
    verified_from: int = -1
    marker: Marker | None = None


class Bed:
    """Works with every form of the plane and the store."""

    def __init__(self, plane: DisklessPlane, store: ObjectStore) -> None:
        self.plane = plane
        self.store = store

    async def write(self, *sent: Sent, now_ms: int = START_MS) -> list[AppendResult]:
        """Write a write-ahead object; submissions of one partition must be adjacent."""
        [lease] = await self.plane.lease_objects(broker_id=BROKER, incarnation=INCARNATION, count=1)
        pieces = [encode_header(WalHeader(lease.object_id, BROKER))]
        end = len(pieces[0])
        entries = []
        bodies: dict[int, WalRange] = {}
        for batches, partition, append_time, verified_from, marker in sent:
            view = memoryview(batches)
            entry = entry_of(
                Submission(
                    TOPIC,
                    partition,
                    view,
                    split_batches(view),
                    append_time,
                    None,
                    _nothing,
                    verified_from=verified_from,
                    marker=marker,
                ),
                end,
            )
            entries.append(entry)
            pieces.append(batches)
            body = bodies.get(partition) or WalRange(TOPIC, partition, end, 0, b"")
            bodies[partition] = body._replace(
                size_bytes=body.size_bytes + len(batches), layout=body.layout + entry.layout
            )
            end += len(batches)
        pieces.append(encode_footer(list(bodies.values())))
        await self.store.put(lease.key, pieces)
        commit = ObjectCommit(
            object_id=lease.object_id,
            size_bytes=sum(map(len, pieces)),
            entries=tuple(entries),
            now_ms=now_ms,
        )
        return list((await self.plane.commit_object(commit)).placed)

    async def extents(self, partition: int = 0) -> list[Extent]:
        return await self.plane.extents(TOPIC, partition, start=0, end=2**62, limit=100_000)

    async def consumed(self, partition: int = 0) -> bytes:
        """Return all bytes of a partition from its start, as a consumer gets them."""
        [watermarks] = await self.plane.watermarks([(TOPIC, partition)])
        extents = [
            extent
            for extent in await self.extents(partition)
            if extent.next_offset > watermarks.log_start_offset
        ]
        data = await seen(self.store, extents)
        if extents:
            assert extents[0].base_offset <= watermarks.log_start_offset
            assert extents[-1].next_offset == watermarks.high_watermark
        kept = [
            batch
            for batch in split_batches(data)
            if batch.next_offset > watermarks.log_start_offset
        ]
        return data[len(data) - sum(extent.size_bytes for extent in kept) :]

    async def keys(self, prefix: str = "") -> list[str]:
        return [info.key async for info in _all(self.store, prefix)]

    async def states(self) -> dict[str, str]:
        """State by key."""
        rows = await self.plane.referenced_keys(after="", limit=100_000)
        return {lease.key: state for state, lease in rows}


async def seen(store: ObjectStore, extents: Sequence[Extent]) -> bytes:
    """The bytes of adjacent extents, as a consumer gets them."""
    if not extents:
        return b""
    pieces = trim(extents, extents[0].base_offset, max_bytes=2**62, at_least_one=True)
    assert len(pieces) == len(extents)
    results = [await store.get(piece.extent.key, piece.start, piece.size_bytes) for piece in pieces]
    run, failure = assemble(pieces, results)
    assert failure is None, failure
    assert run is not None
    return bytes(run.data)


async def _all(store: ObjectStore, prefix: str) -> AsyncIterator:  # type: ignore[type-arg]
    async for info in store.list(prefix):
        if not info.key.startswith("marks/"):
            yield info


def _nothing(outcome: object) -> None: ...
