"""Verification finds each kind of damage, names it, and finds nothing where nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.archive.errors import CorruptObject
from penstock.archive.wal import FOOTER_TAIL_BYTES, read_footer
from penstock.control.values.diskless import PartitionKey
from penstock.diskless.topics import verification
from penstock.diskless.topics.verification import Finding, Verifier
from penstock.objects import MemoryStore
from penstock.records.extents import Extent
from tests.diskless.faults import CrashingPlane, Steps
from tests.diskless.submissions import TOPIC, Sent
from tests.diskless.world import PARTITIONS, World, answered

NAMED: list[tuple[str, PartitionKey]] = [
    (f"orders-{index}", (TOPIC, index)) for index in range(PARTITIONS)
]


async def populated() -> World:
    """Four partitions in each of three objects; in partition 0 the start lies within the first."""
    world = World()
    await world.begin()
    writer = world.writer()
    for _ in range(3):
        sent = [Sent(partition=index % PARTITIONS, count=2) for index in range(8)]
        for submitted in sent:
            writer.submit(submitted.submission)
        await answered(sent)
    await writer.stop()
    await world.plane.delete_records(TOPIC, 0, 3)
    return world


async def verified(world: World, *, plane: Any = None, checksums: bool = False) -> Verifier:
    verifier = Verifier(plane=plane or world.plane, store=world.store, checksums=checksums)
    await verifier.verify(NAMED)
    return verifier


def replace(world: World, key: str, change: Callable[[bytearray], object]) -> None:
    """Change an object, as no client of a store could."""
    content, modified_ms = world.memory._objects[key]
    data = bytearray(content)
    change(data)
    world.memory._objects[key] = bytes(data), modified_ms


async def misplace(world: World, was: Extent, now: Extent) -> None:
    """Let the row of an extent of partition 1 say something else."""
    await world.plane.plant(
        "UPDATE diskless_extents SET object_id = ?, byte_offset = ?, size_bytes = ?, layout = ?"
        " WHERE base_offset = ? AND partition_id ="
        " (SELECT partition_id FROM diskless_partitions WHERE number = 1)",
        now.object_id,
        now.byte_offset,
        now.size_bytes,
        now.layout,
        was.base_offset,
    )


async def test_nothing_is_wrong_where_nothing_is_wrong() -> None:
    world = await populated()
    verifier = await verified(world, checksums=True)
    assert verifier.findings == []
    assert verifier.wrong == 0
    assert (verifier.partitions, verifier.objects) == (4, 3)
    assert verifier.extents >= 12
    assert verifier.verified_bytes == 24 * 101


async def test_an_object_that_is_gone_is_missing_for_each_of_its_extents() -> None:
    world = await populated()
    extent = (await world.extents(2))[1]
    await world.memory.delete([extent.key])
    verifier = await verified(world)
    assert set(verifier.counts) == {"missing"}
    assert {item.where for item in verifier.findings} == {
        f"orders-{index} at offset 4, {extent.key}" for index in range(PARTITIONS)
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop(),
        lambda data: data.clear(),
        lambda data: data.extend(b"more"),
        lambda data: data.__setitem__(len(data) - 40, data[-40] ^ 1),
        lambda data: data.__delitem__(slice(0, 40)),
    ],
)
async def test_an_object_of_another_size_or_footer_is_corrupt(
    change: Callable[[bytearray], object],
) -> None:
    world = await populated()
    replace(world, (await world.extents(1))[0].key, change)
    assert set((await verified(world)).counts) == {"corrupt"}


async def test_a_batch_that_changed_is_found_with_checksums() -> None:
    world = await populated()
    extent = (await world.extents(1))[0]
    at = extent.byte_offset + 70
    replace(world, extent.key, lambda data: data.__setitem__(at, data[at] ^ 1))
    assert (await verified(world)).wrong == 0
    verifier = await verified(world, checksums=True)
    assert verifier.counts == {"corrupt": 1}
    assert verifier.findings[0].where == f"orders-1 at offset 0, {extent.key}"


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one._replace(byte_offset=one.byte_offset + 1),
        lambda one: one._replace(size_bytes=one.size_bytes - 1),
        lambda one: one._replace(layout=one.layout[:-4] + b"\x09\0\0\0"),
        lambda one: one._replace(byte_offset=one.byte_offset + 101),
        lambda one: one._replace(byte_offset=10**9),
        lambda one: one._replace(byte_offset=0),
    ],
)
async def test_an_extent_that_the_footer_does_not_have_differs(
    change: Callable[[Extent], Extent],
) -> None:
    world = await populated()
    extent = (await world.extents(1))[1]
    await misplace(world, extent, change(extent))
    assert (await verified(world)).counts == {"differs": 1}


async def test_an_extent_of_a_partition_that_the_footer_does_not_name_differs() -> None:
    world = await populated()
    writer = world.writer()
    alone = Sent(partition=3, count=2)
    writer.submit(alone.submission)
    await answered([alone])
    await writer.stop()
    extent, other = (await world.extents(1))[0], (await world.extents(3))[-1]
    await misplace(world, extent, extent._replace(object_id=other.object_id))
    verifier = await verified(world)
    assert verifier.counts == {"differs": 1}
    assert verifier.findings[0].detail == "the footer has no batches of the partition"


async def test_a_sealed_segment_has_no_footer_but_a_length() -> None:
    world = await populated()
    extent = (await world.extents(1))[0]
    sealed = extent._replace(object_id=999, byte_offset=0)
    content = await world.memory.get((await world.extents(2))[0].key, 0, 1)
    await world.memory.put("wal/sealed", [bytes(content) * extent.size_bytes])
    await world.plane.plant(
        "INSERT INTO diskless_objects VALUES (999, 'wal/sealed', 'pending', 'segment', 0, 0, 0)"
    )
    await misplace(world, extent, sealed)
    assert (await verified(world)).wrong == 0
    await misplace(world, extent, sealed._replace(byte_offset=1))
    verifier = await verified(world)
    assert verifier.counts == {"differs": 1}
    assert "ends beyond" in verifier.findings[0].detail


@pytest.mark.parametrize("index", [0, 1, 2])
async def test_offsets_without_an_extent_are_a_hole(index: int) -> None:
    world = await populated()
    await world.plane.plant(
        "DELETE FROM diskless_extents WHERE base_offset = ? AND partition_id ="
        " (SELECT partition_id FROM diskless_partitions WHERE number = 3)",
        (await world.extents(3))[index].base_offset,
    )
    verifier = await verified(world)
    assert verifier.counts == {"hole": 1}
    assert verifier.findings[0].where == "orders-3"


async def test_orphans_are_found_and_counted() -> None:
    world = await populated()
    for number in range(30):
        await world.memory.put(f"wal/99/orphan-{number}", [b"123"])
    verifier = await verified(world)
    assert verifier.counts == {"orphan": 30}
    assert Finding("orphan", "wal/99/orphan-0", "3 bytes without a row") in verifier.findings


async def test_what_retention_takes_meanwhile_is_passed_over() -> None:
    world = await populated()

    class Retaining(CrashingPlane):
        async def extents(self, *arguments: Any, **options: Any) -> Any:
            extents = await world.plane.extents(*arguments, **options)
            await world.plane.delete_records(TOPIC, 1, 4)
            for index in range(PARTITIONS):
                await world.plane.delete_records(TOPIC, index, -1)
                await world.plane.retain(
                    TOPIC, index, before_timestamp=None, max_bytes=None, limit=10
                )
            for key in await world.keys():
                await world.memory.delete([key])
            return extents

    verifier = await verified(world, plane=Retaining(world.plane, Steps()))
    assert verifier.findings == []
    assert verifier.extents >= 3


async def test_extents_come_by_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "VERIFIED_EXTENTS_PER_CALL", 1)
    monkeypatch.setattr(verification, "FOOTERS_KEPT", 1)
    verifier = await verified(await populated())
    assert (verifier.wrong, verifier.extents >= 12) == (0, True)


async def test_a_long_footer_takes_a_second_read() -> None:
    world = World()
    await world.begin()
    writer = world.writer()
    sent = Sent(batches=FOOTER_TAIL_BYTES // 8 + 10)
    writer.submit(sent.submission)
    await answered([sent])
    await writer.stop()
    (extent,) = await world.extents(0)
    size_bytes = (await world.memory.head(extent.key)).size_bytes
    footer = await read_footer(world.memory, extent.key, size_bytes)
    assert footer.ranges[0].batches == FOOTER_TAIL_BYTES // 8 + 10
    short = MemoryStore()
    data = await world.memory.get(extent.key, size_bytes - FOOTER_TAIL_BYTES, FOOTER_TAIL_BYTES)
    await short.put("cut", [data])
    with pytest.raises(CorruptObject, match="cut has 65536 bytes"):
        await read_footer(short, "cut", FOOTER_TAIL_BYTES)
