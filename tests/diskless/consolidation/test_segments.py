"""Sealed segments against what a consumer got of the extents that they are made of."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.archive import segments
from penstock.archive.errors import CorruptObject
from penstock.archive.segments import CHUNK_EXTENTS_MAX, READS_AT_ONCE, build_segment, write_segment
from penstock.base.errors import BugError
from penstock.control import MemoryControlPlane
from penstock.objects import MemoryStore, ObjectNotFound, StoreUnavailable
from penstock.records import split_batches, verify_crc
from penstock.records.extents import Extent
from tests.diskless.consolidation.bed import KEY, START_MS, TOPIC, Bed, Sent, produced, seen
from tests.records.reference import decode

Codecs = range(5)


async def varied(bed: Bed) -> None:
    """Objects of several partitions: all codecs, both kinds of times, producers with sequences."""
    sequence = 0
    for number in range(12):
        codec = number % len(Codecs)
        batches = produced(b"a%d" % number, b"b" * number, codec=codec, timestamp=START_MS + number)
        sent = Sent(batches)
        if number % 3 < 2:
            values = [b"c"] * (number + 1)
            mine = produced(*values, producer=(4, 0, sequence))
            sent = Sent(mine, append_time=True) if number % 3 else Sent(mine)
            sequence += len(values)
        placed = await bed.write(
            Sent(batches, 1), Sent(batches), sent, Sent(batches, 2), now_ms=START_MS + 50 * number
        )
        assert not any(result.error for result in placed)


async def test_a_segment_has_the_bytes_that_consumers_got(bed: Bed) -> None:
    await varied(bed)
    extents = await bed.extents()
    assert len({extent.append_time_ms for extent in extents}) > 3
    before = await bed.consumed()
    segment = await build_segment(bed.store.get, extents, KEY)
    sealed = b"".join(segment.pieces)
    assert sealed == before
    assert segment.size_bytes == len(sealed)
    position = 0
    for header in split_batches(sealed):
        verify_crc(sealed, header, position)
        assert header.partition_leader_epoch == 0
        position += header.size_bytes
    times = [
        (record.offset, record.timestamp) for batch in decode(sealed) for record in batch.visible()
    ]
    assert [offset for offset, _ in times] == list(range(extents[-1].next_offset))
    assert len({time for _, time in times}) > 12
    [part] = segment.parts
    assert part.max_timestamp == max(time for _, time in times)
    assert (part.byte_offset, part.size_bytes) == (0, len(sealed))


async def test_a_written_segment_takes_the_place_of_its_extents(
    bed: Bed, plane: MemoryControlPlane
) -> None:
    await varied(bed)
    extents = await bed.extents()
    before, others = await bed.consumed(), [await bed.consumed(1), await bed.consumed(2)]
    lease = await plane.lease_segment(TOPIC, 0, base_offset=0)
    swap = await write_segment(bed.store, extents, KEY, lease)
    await plane.swap_extents(swap)
    assert await bed.extents() == list(swap.extents)
    assert {extent.kind for extent in swap.extents} == {"segment"}
    assert await bed.consumed() == before
    assert [await bed.consumed(1), await bed.consumed(2)] == others
    whole = await bed.store.get(lease.key, 0, swap.size_bytes)
    assert bytes(whole) == before
    # What was made of segments is the same again.
    again = await build_segment(bed.store.get, swap.extents, KEY)
    assert b"".join(again.pieces) == before


async def test_parts_are_bounded_and_read_alike(
    bed: Bed, plane: MemoryControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    await varied(bed)
    extents, before = await bed.extents(), await bed.consumed()
    whole = await build_segment(bed.store.get, extents, KEY)
    for name in ("PART_BYTES_MAX", "CHUNK_BYTES"):
        monkeypatch.setattr(segments, name, 700)
    monkeypatch.setattr(segments, "PART_BATCHES_MAX", 4)
    segment = await build_segment(bed.store.get, extents, KEY)
    assert len(segment.pieces) > 3
    parts = segment.parts
    assert len(parts) > 4
    assert b"".join(part.layout for part in parts) == whole.parts[0].layout
    assert max(part.max_timestamp for part in parts) == whole.parts[0].max_timestamp
    assert all(part.size_bytes <= 700 or len(part.layout) == 8 for part in parts)
    assert max(len(part.layout) for part in parts) == 4 * 8
    lease = await plane.lease_segment(TOPIC, 0, base_offset=0)
    await bed.store.put(lease.key, segment.pieces)
    await plane.swap_extents(segment.swap(KEY, extents, lease))
    assert await bed.consumed() == before
    for extent in await bed.extents():
        headers = split_batches(await seen(bed.store, [extent]))
        assert (headers[0].base_offset, headers[-1].next_offset) == extent[5:7]
        assert max(header.max_timestamp for header in headers) == extent.max_timestamp


async def test_few_ranges_are_read_at_once(bed: Bed) -> None:
    for number in range(CHUNK_EXTENTS_MAX + 10):
        await bed.write(Sent(produced(b"%d" % number)))
    under_way = most = reads = 0

    async def read(key: str, start: int, size_bytes: int) -> memoryview:
        nonlocal under_way, most, reads
        under_way += 1
        reads += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return await bed.store.get(key, start, size_bytes)

    segment = await build_segment(read, await bed.extents(), KEY)
    assert b"".join(segment.pieces) == await bed.consumed()
    assert most == READS_AT_ONCE
    assert reads == CHUNK_EXTENTS_MAX + 10


async def damaged(bed: Bed, extent: Extent, at: int) -> MemoryStore:
    """The same objects, with another byte in this extent."""
    store = MemoryStore()
    async for info in bed.store.list("wal/"):
        data = bytearray(await bed.store.get(info.key, 0, info.size_bytes))
        if info.key == extent.key:
            data[extent.byte_offset + at] ^= 1
        await store.put(info.key, [bytes(data)])
    return store


async def test_nothing_is_made_of_damaged_bytes(bed: Bed, plane: MemoryControlPlane) -> None:
    await bed.write(Sent(produced(b"first")))
    await bed.write(Sent(produced(b"second"), append_time=True))
    await bed.write(Sent(produced(b"third")))
    extents = await bed.extents()
    size_bytes = extents[1].size_bytes
    # Byte by byte, but for the base offset and the leader epoch, which are rewritten.
    for at in (8, 11, 16, 17, 21, 23, 30, 60, size_bytes - 1):
        store = await damaged(bed, extents[1], at)
        lease = await plane.lease_segment(TOPIC, 0, base_offset=0)
        with pytest.raises(CorruptObject, match=extents[1].key):
            await write_segment(store, extents, KEY, lease)
        assert [info.key async for info in store.list("archive/")] == []
    wrong = [extents[0], extents[1]._replace(layout=extents[0].layout), extents[2]]
    with pytest.raises(CorruptObject):
        await build_segment(bed.store.get, wrong, KEY)


async def test_errors_of_the_store_and_gaps_end_it(bed: Bed) -> None:
    for number in range(3):
        await bed.write(Sent(produced(b"%d" % number)))
    extents = await bed.extents()
    with pytest.raises(BugError, match="but the previous one ends at"):
        await build_segment(bed.store.get, [extents[0], extents[2]], KEY)

    async def failing(key: str, start: int, size_bytes: int) -> memoryview:
        if key == extents[1].key:
            raise StoreUnavailable("no answer")
        return await bed.store.get(key, start, size_bytes)

    with pytest.raises(StoreUnavailable, match="no answer"):
        await build_segment(failing, extents, KEY)
    await bed.store.delete([extents[2].key])
    with pytest.raises(ObjectNotFound):
        await build_segment(bed.store.get, extents, KEY)


async def test_a_segment_is_read_as_a_file_of_its_own(bed: Bed, tmp_path: Path) -> None:
    """A reader of Kafka's format finds offsets and records in the file."""
    await varied(bed)
    extents = await bed.extents()
    segment = await build_segment(bed.store.get, extents[3:], KEY)
    base_offset = extents[3].base_offset
    file = tmp_path / f"{base_offset:020d}.log"
    file.write_bytes(b"".join(segment.pieces))
    batches = decode(file.read_bytes())
    assert batches[0].base_offset == base_offset
    following = base_offset
    for batch in batches:
        assert batch.base_offset == following
        assert [record.offset for record in batch.records] == list(
            range(following, following + len(batch.records))
        )
        following += len(batch.records)
    assert following == extents[-1].next_offset
