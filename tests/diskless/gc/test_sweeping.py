"""The sweeper deletes unused objects and keeps used ones, whenever the process ends."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.control.values.diskless import MarkedObject
from penstock.diskless.errors import DatabaseRestored
from penstock.diskless.gc.jobs import DeleteObjects, ForgetObjects, MarkForDeletion, Sweep
from penstock.objects import StoreUnavailable
from tests.diskless.faults import Crash, CrashingPlane, Fault, Steps
from tests.diskless.submissions import TOPIC, Sent
from tests.diskless.world import World, answered


async def populated(**settings: Any) -> World:
    """Two committed objects, of which one is not referred to any more, and unused keys."""
    world = World(lease_block_objects=4, **settings)
    await world.begin()
    writer = world.writer()
    for partition in (0, 1):
        sent = Sent(partition=partition, size=500)
        writer.submit(sent.submission)
        await answered([sent])
    await writer.stop()
    await world.plane.delete_records(TOPIC, 0, -1)
    await world.plane.retain(TOPIC, 0, before_timestamp=None, max_bytes=None, limit=10)
    return world


def test_a_pass_runs_in_steps_until_nothing_is_left() -> None:
    core = Sweep(objects_max=2, rounds_max=3)
    assert core.begin() == MarkForDeletion(2)
    assert core.condemned([MarkedObject(1, "a", 10), MarkedObject(2, "b", 5)]) == DeleteObjects(
        ["a", "b"]
    )
    assert core.deleted() == ForgetObjects([1, 2])
    assert core.forgotten() == MarkForDeletion(2)
    assert core.condemned([MarkedObject(3, "c", 1)]) == DeleteObjects(["c"])
    assert core.deleted() == ForgetObjects([3])
    assert core.forgotten() is None
    assert (core.swept_objects, core.swept_bytes) == (3, 16)


def test_a_pass_is_bounded() -> None:
    core = Sweep(objects_max=1, rounds_max=2)
    rounds = 0
    step = core.begin()
    while step is not None:
        rounds += 1
        core.condemned([MarkedObject(rounds, "a", 1)])
        core.deleted()
        step = core.forgotten()
    assert rounds == 2


def test_a_pass_that_finds_nothing_ends() -> None:
    core = Sweep()
    core.begin()
    assert core.condemned([]) is None


async def test_what_is_needed_stays_and_the_rest_goes_after_its_grace() -> None:
    world = await populated()
    collection = world.collection()
    (needed,) = {extent.key for extent in await world.extents(1)}
    assert len(await world.keys()) == 2
    assert await collection.sweeper.sweep() == 0
    world.clock.ms += world.settings.sweep_unreferenced_grace_ms
    assert await collection.sweeper.sweep() == 1
    assert await world.keys() == {needed}
    world.clock.ms += world.settings.sweep_pending_grace_ms
    assert await collection.sweeper.sweep() >= 2
    assert await world.rows() == {needed: "committed"}
    assert await world.keys() == {needed}
    values = {sample.metric.name: sample.value for sample in collection.samples()}
    assert values["penstock_diskless_swept_objects_total"] == collection.counters.swept_objects > 2
    assert values["penstock_diskless_swept_bytes_total"] == collection.counters.swept_bytes > 500


@pytest.mark.parametrize("fault", ["fails", "lands", "truncated"])
async def test_a_deletion_that_fails_is_made_again_by_the_next_pass(fault: Fault) -> None:
    world = await populated()
    collection = world.collection()
    world.clock.ms += world.settings.sweep_pending_grace_ms
    world.store.deletions_fail = [fault]
    with pytest.raises(StoreUnavailable):
        await collection.sweeper.sweep()
    assert "deleting" in set((await world.rows()).values())
    await collection.sweeper.sweep()
    assert set((await world.rows()).values()) == {"committed"}
    assert len(await world.keys()) == 1


@pytest.mark.parametrize("effect", [False, True])
async def test_a_crash_at_any_step_is_made_good_by_the_next_pass(effect: bool) -> None:
    doomed = 0
    while True:
        doomed += 1
        world = await populated()
        await world.collection().start()
        steps = Steps(doomed, effect=effect)
        world.clock.ms += world.settings.sweep_pending_grace_ms
        dying = world.collection(
            plane=CrashingPlane(world.plane, steps), store=CrashingPlane(world.store, steps)
        )
        try:
            await dying.sweeper.sweep()
        except Crash:
            assert await world.log(1)
        await world.collection().sweeper.sweep()
        assert set((await world.rows()).values()) == {"committed"}
        assert len(await world.keys()) == 1
        assert await world.log(1)
        if not steps.over:
            assert doomed == 7  # identity: plane and store; highest id, condemn, delete, forget
            return


async def test_an_object_whose_commit_follows_its_sweep_is_written_again() -> None:
    world = World()
    await world.begin()
    world.plane.script.append("swept")
    writer = world.writer()
    sent = Sent(fill=4)
    writer.submit(sent.submission)
    await answered([sent])
    await writer.stop()
    await world.collection().sweeper.sweep()
    assert await world.log(0) == sent.data
    assert len(await world.keys()) == 1


async def test_nothing_is_swept_by_a_database_that_was_set_back() -> None:
    world = await populated()
    await world.collection().id_markers.note()
    await world.plane.set_back(1)
    world.clock.ms += world.settings.sweep_pending_grace_ms
    before = await world.rows(), await world.keys()
    with pytest.raises(DatabaseRestored):
        await world.collection().sweeper.sweep()
    assert (await world.rows(), await world.keys()) == before
