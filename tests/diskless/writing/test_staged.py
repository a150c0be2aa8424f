"""Objects of a commit that is made as a whole: order, bounds, failures, and what is left behind."""

from __future__ import annotations

import asyncio

import pytest

from penstock.archive.wal import decode_footer, decode_header
from penstock.control import StaleBroker
from penstock.control.values.diskless import ObjectCommit
from penstock.diskless.errors import WriteFailed
from penstock.diskless.settings import STAGED_PUTS_AT_ONCE_MAX
from penstock.diskless.writing import ObjectPlace, StagedObjects
from penstock.diskless.writing import staged as staged_module
from penstock.diskless.writing.staged import STAGED_PUT_ATTEMPTS_MAX
from tests.diskless.submissions import Sent
from tests.diskless.world import BROKER, World

BUFFER_BYTES = 64 << 10


async def furnished(**settings: int) -> World:
    world = World(buffer_bytes_max=BUFFER_BYTES, **settings)
    await world.begin()
    return world


def objects(world: World, size_bytes: int = 0) -> StagedObjects:
    place = ObjectPlace(world.plane, world.store, BROKER, world.incarnation)
    return StagedObjects(
        world.settings,
        place,
        size_bytes=size_bytes,
        clock=world.clock,
        randomness=world.randomness,
    )


async def take(staged: StagedObjects, sent: Sent) -> None:
    one = sent.submission
    await staged.take(one.topic_id, one.partition, one.batches, one.headers, one.append_time)


async def written(world: World, commit: ObjectCommit) -> bytes:
    [key] = [key for key in world.store.puts if int(key.split("/")[2][:16], 16) == commit.object_id]
    data = bytes(await world.store.get(key, 0, commit.size_bytes))
    assert decode_header(data).object_id == commit.object_id
    footer = decode_footer(data)
    assert footer.size_bytes == commit.size_bytes
    assert sum(object_range.size_bytes for object_range in footer.ranges) == sum(
        entry.size_bytes for entry in commit.entries
    )
    return data


async def test_objects_hold_what_was_taken_in_order() -> None:
    world = await furnished()
    sent = [Sent(partition=number % 2, count=9, size=20_000, fill=number) for number in range(9)]
    async with objects(world, size_bytes=10 * BUFFER_BYTES) as staged:
        for submitted in sent:
            await take(staged, submitted)
        commits = await staged.finish()
    assert len(commits) > 2
    parts = [
        (entry.partition, data[entry.byte_offset : entry.byte_offset + entry.size_bytes])
        for commit in commits
        for data in [await written(world, commit)]
        for entry in commit.entries
    ]
    for partition in (0, 1):
        expected = [
            submitted.data for submitted in sent if submitted.submission.partition == partition
        ]
        assert [data for where, data in parts if where == partition] == expected
    assert {commit.now_ms for commit in commits} == {world.clock.now_ms()}
    assert [object_total.objects for object_total in await world.plane.object_totals()] == [11]


async def test_entries_of_an_object_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_module, "OBJECT_ENTRIES_MAX", 2)
    monkeypatch.setattr(staged_module, "OBJECT_BATCHES_MAX", 3)
    world = await furnished()
    async with objects(world) as staged:
        for batches in (1, 1, 1, 2, 2):
            await take(staged, Sent(batches=batches))
        commits = await staged.finish()
    assert [[len(entry.layout) // 8 for entry in commit.entries] for commit in commits] == [
        [1, 1], [1, 2], [2],
    ]  # fmt: skip


async def test_nothing_taken_is_nothing_written() -> None:
    world = await furnished()
    async with objects(world) as staged:
        assert await staged.finish() == []
    assert world.store.puts == []


async def test_a_put_that_fails_is_made_again_under_a_new_key() -> None:
    world = await furnished(put_timeout_ms=50)
    world.store.script.extend(["fails", "truncated", "lands", "hangs"])
    async with objects(world) as staged:
        await take(staged, Sent())
        [commit] = await staged.finish()
    assert len(set(world.store.puts)) == len(world.store.puts) == 5
    await written(world, commit)


async def test_a_store_that_keeps_failing_ends_the_upload() -> None:
    world = await furnished()
    world.store.script.extend(["fails"] * STAGED_PUT_ATTEMPTS_MAX)
    async with objects(world) as staged:
        await take(staged, Sent())
        with pytest.raises(WriteFailed, match=f"in {STAGED_PUT_ATTEMPTS_MAX} attempts"):
            await staged.finish()


async def test_what_is_under_way_ends_with_the_context() -> None:
    """`take` waits while many objects are written; leaving the context cancels their PUTs."""
    world = await furnished()
    world.store.script.extend(["hangs"] * STAGED_PUTS_AT_ONCE_MAX)
    large = [Sent(size=BUFFER_BYTES, fill=number) for number in range(STAGED_PUTS_AT_ONCE_MAX)]

    async def fill() -> None:
        async with objects(world) as staged:
            for submitted in large:
                await take(staged, submitted)

    before = asyncio.all_tasks()
    filling = asyncio.create_task(fill())
    async with asyncio.timeout(60):
        while len(world.store.puts) < STAGED_PUTS_AT_ONCE_MAX:
            await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not filling.done()
    filling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await filling
    assert len(world.store.puts) == STAGED_PUTS_AT_ONCE_MAX
    assert asyncio.all_tasks() == before


async def test_a_broker_that_was_replaced_gets_no_keys() -> None:
    world = await furnished()
    await world.plane.register_broker(
        broker_id=BROKER, host="h", port=9, rack=None, incarnation=world.randomness.uuid()
    )
    async with objects(world) as staged:
        await take(staged, Sent())
        with pytest.raises(StaleBroker):
            await staged.finish()
    assert world.store.puts == []
