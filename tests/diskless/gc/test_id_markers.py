"""Marks: whose store it is, and whether the database knows of all that is in it."""

from __future__ import annotations

import pytest

from penstock.archive.errors import CorruptObject
from penstock.control import MemoryControlPlane
from penstock.diskless.errors import DatabaseRestored, StoreOfAnotherCluster
from penstock.diskless.gc.id_markers import ID_MARKERS_KEPT, ObjectIdMarkers, compare_ids, mark_key
from penstock.objects import ObjectInfo
from tests.diskless.faults import CrashingPlane, Steps
from tests.diskless.world import BROKER, World, guard_of


async def lease(world: World, count: int = 10) -> None:
    await world.plane.lease_objects(broker_id=BROKER, incarnation=world.incarnation, count=count)


async def marks_of(world: World) -> list[str]:
    return [info.key async for info in world.memory.list("marks/")]


def test_a_mark_above_the_highest_id_shows_that_the_database_was_set_back() -> None:
    listed = [ObjectInfo(mark_key(7), 1, 50), ObjectInfo(mark_key(9), 1, 40)]
    assert compare_ids(listed, 9) == (9, 9, 50)
    assert compare_ids(listed, 12) == (12, 9, 50)
    assert compare_ids([], 3) == (3, 0, 0)
    with pytest.raises(DatabaseRestored, match=r"up to 8, but marks/0*9 in the object store"):
        compare_ids(listed, 8)


async def test_an_empty_store_becomes_the_clusters_and_no_other_may_have_it() -> None:
    world = World()
    await world.begin()
    collection = world.collection()
    await collection.start()
    assert await marks_of(world) == [mark_key(0)]
    await collection.start()
    stranger = ObjectIdMarkers(
        plane=world.plane,
        store=world.store,
        guard=guard_of(MemoryControlPlane(), world.store, cluster_id="elsewhere"),
    )
    with pytest.raises(StoreOfAnotherCluster, match="'here', but this cluster is 'elsewhere'"):
        await stranger.claim()


async def test_a_mark_is_written_when_ids_were_given_out_and_old_ones_go() -> None:
    world = World()
    await world.begin()
    id_markers = world.collection().id_markers
    await id_markers.claim()
    puts = len(world.store.puts)
    await id_markers.note()
    assert len(world.store.puts) == puts
    for _ in range(ID_MARKERS_KEPT + 5):
        await lease(world)
        await id_markers.note()
    await id_markers.note()
    assert await marks_of(world) == [mark_key(10 * n) for n in range(6, 10)]


async def test_a_start_is_refused_when_the_database_was_set_back() -> None:
    world = World()
    await world.begin()
    await lease(world)
    collection = world.collection()
    await collection.start()
    await lease(world)
    await collection.id_markers.note()
    await world.collection().start()
    await world.plane.set_back(19)
    with pytest.raises(DatabaseRestored, match=r"docs/guides/diskless\.md"):
        await world.collection().start()
    for job in world.collection().jobs():
        await job.run()
    assert mark_key(20) in await marks_of(world)


async def test_another_broker_may_note_at_the_same_time() -> None:
    """A broker that lists before another's write, and reads ids after it, detects no restore."""
    world = World()
    await world.begin()
    await lease(world)
    id_markers = world.collection().id_markers
    other = world.collection().id_markers

    class Interrupting(CrashingPlane):
        async def highest_object_id(self) -> int:
            await lease(world)
            await other.note()
            return await world.plane.highest_object_id()

    late = world.collection(plane=Interrupting(world.plane, Steps())).id_markers
    await id_markers.note()
    await late.note()
    assert (await marks_of(world))[-1] == mark_key(20)
    assert (await id_markers.check()).marked_id == 20


async def test_a_damaged_mark_is_reported() -> None:
    world = World()
    await world.begin()
    await lease(world)
    await world.memory.put(mark_key(5), [b"nonsense"])
    with pytest.raises(CorruptObject, match="nonsense"):
        await world.collection().start()
