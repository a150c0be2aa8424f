"""The identity of a store: who adopts which, who is refused, and when it is looked at."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.archive.errors import CorruptObject
from penstock.base.errors import PenstockError
from penstock.control import MemoryControlPlane, StoreIdentity
from penstock.diskless.errors import StoreMismatch, StoreOfAnotherCluster
from penstock.diskless.identity import (
    KEY,
    GuardedStore,
    StoreProperties,
    decode_store_properties,
    encode_store_properties,
    judge_store,
)
from penstock.objects import (
    MemoryStore,
    ObjectNotFound,
    StoreFull,
    StoreRefused,
    StoreThrottled,
    StoreUnavailable,
)
from tests.diskless.faults import Crash, CrashingPlane, FaultyStore, Steps
from tests.diskless.submissions import Sent
from tests.diskless.world import World, answered, guard_of

A, B = UUID(int=1), UUID(int=2)


async def properties(store: MemoryStore) -> StoreProperties:
    info = await store.head(KEY)
    return decode_store_properties(bytes(await store.get(KEY, 0, info.size_bytes)))


async def written(partitions: int = 2, **settings: Any) -> World:
    """A plane with committed objects, as before stores had identities."""
    world = World(lease_block_objects=4, **settings)
    await world.begin()
    writer = world.writer()
    for partition in range(partitions):
        sent = Sent(partition=partition)
        writer.submit(sent.submission)
        await answered([sent])
    await writer.stop()
    return world


async def emptied(store: MemoryStore) -> None:
    await store.delete([info.key async for info in store.list("")])


# The object


@given(cluster_id=st.text("abc-_=0", min_size=1, max_size=40), store_id=st.uuids())
def test_properties_survive_their_encoding(cluster_id: str, store_id: UUID) -> None:
    made = StoreProperties(cluster_id, store_id)
    data = encode_store_properties(made)
    assert decode_store_properties(data) == made
    assert decode_store_properties(data[:-1]) == made  # as editors leave it
    for end in range(len(data) - 1):
        with pytest.raises(CorruptObject, match=r"store\.properties"):
            decode_store_properties(data[:end])
    with pytest.raises(CorruptObject):
        decode_store_properties(data + b"x")


@pytest.mark.parametrize("data", [b"", b"nonsense", b"version=2\n", b"\xff" * 100])
def test_what_names_no_store_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptObject, match="are not a store's identity"):
        decode_store_properties(data)


# The decision


@pytest.mark.parametrize(
    ("kept", "found", "refused"),
    [
        (None, None, ""),
        (None, StoreProperties("here", A), ""),
        (None, StoreProperties("there", A), "names cluster 'there', but this cluster is 'here'"),
        (A, StoreProperties("here", A), ""),
        (A, StoreProperties("here", B), f"has the identity {B}"),
        (A, StoreProperties("there", B), f"has the identity {B}"),
        (A, None, "has no identity"),
    ],
)
def test_the_table(kept: UUID | None, found: StoreProperties | None, refused: str) -> None:
    identity = None if kept is None else StoreIdentity(kept, "s3://first")
    place = "the object store s3://second"
    if not refused:
        judge_store(identity, found, cluster_id="here", store=place)
        return
    kind = StoreOfAnotherCluster if kept is None else StoreMismatch
    with pytest.raises(kind, match=refused) as raised:
        judge_store(identity, found, cluster_id="here", store=place)
    said = str(raised.value)
    named = [place, "docs/guides/diskless.md", *([str(kept), "s3://first"] if kept else [])]
    named += [str(found.store_id)] if found else []
    assert [text for text in named if text not in said] == []


# Starts


async def test_an_empty_store_is_written_once_and_adopted() -> None:
    world = World()
    await world.begin()
    for _ in range(3):
        await world.collection().start()
    assert world.store.puts.count(KEY) == 1
    found = await properties(world.memory)
    assert found.cluster_id == "here"
    assert await world.plane.store_identity() == StoreIdentity(found.store_id, "")


async def test_an_emptied_store_is_refused_and_left_alone() -> None:
    world = await written()
    await world.collection().start()
    await emptied(world.memory)
    with pytest.raises(StoreMismatch, match="It was emptied, or this is another place"):
        await world.collection().start()
    assert len(world.memory) == 0


async def test_another_store_is_rejected_whatever_it_contains() -> None:
    world, other = await written(), World(seed=1)
    await world.collection().start()
    await other.begin()
    await other.collection().start()
    found = await properties(other.memory)
    with pytest.raises(StoreMismatch, match=str(found.store_id)):
        await world.collection(store=other.memory).start()
    assert await properties(other.memory) == found


async def test_a_used_store_is_refused_to_a_new_control_plane() -> None:
    world = await written()
    await world.collection().start()
    fresh = MemoryControlPlane()
    guard = guard_of(fresh, world.memory, cluster_id="new", place="file:///objects")
    with pytest.raises(StoreOfAnotherCluster, match=r"file:///objects.*restore a copy of it"):
        await guard.check()
    assert await fresh.store_identity() is None


async def test_unreadable_properties_are_refused_and_named() -> None:
    world = World()
    await world.memory.put(KEY, [b"nonsense"])
    with pytest.raises(StoreMismatch, match=r"store\.properties: 8 bytes.*nonsense"):
        await world.collection().start()
    empty = World()
    await empty.memory.put(KEY, [b""])
    with pytest.raises(StoreMismatch, match="0 bytes"):
        await empty.collection().start()


async def test_properties_that_are_put_back_by_hand_count() -> None:
    world = await written()
    await world.collection().start()
    kept = await world.plane.store_identity()
    assert kept is not None
    await emptied(world.memory)
    by_hand = f"version=1\ncluster.id=here\nstore.id={kept.store_id}"
    await world.memory.put(KEY, [by_hand.encode()])
    await world.collection().start()


# Installations from before


async def test_a_store_that_has_what_the_plane_names_is_adopted() -> None:
    world = await written(4)
    await world.collection().start()
    assert (await properties(world.memory)).cluster_id == "here"
    assert await world.plane.store_identity() is not None


async def test_a_store_without_anything_that_the_plane_names_is_not() -> None:
    world, elsewhere = await written(4), MemoryStore()
    with pytest.raises(StoreMismatch, match=r"none of the objects that cluster 'here' has .*wal/"):
        await world.collection(store=elsewhere).start()
    assert len(elsewhere) == 0
    assert await world.plane.store_identity() is None


async def test_objects_that_another_broker_wrote_elsewhere_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await written(4)
    lost = sorted(await world.keys())[1]
    await world.memory.delete([lost])
    with caplog.at_level(logging.WARNING):
        await world.collection().start()
    assert "1 of 4 sampled objects" in caplog.text
    assert lost in caplog.text


async def test_where_nothing_is_committed_there_is_nothing_to_find() -> None:
    world = World()
    await world.begin()
    await world.plane.lease_objects(broker_id=1, incarnation=world.incarnation, count=5)
    await world.collection().start()
    assert await world.plane.store_identity() is not None


# Several brokers, and ends at any point


async def test_brokers_that_start_at_once_agree() -> None:
    world = World()
    await world.begin()
    starting = [guard_of(world.plane, world.store) for _ in range(5)]
    found = await asyncio.gather(*(guard.check() for guard in starting))
    assert found == [None] * 5
    await asyncio.gather(*(guard.adopt(None) for guard in starting))
    kept = await world.plane.store_identity()
    assert kept is not None
    assert kept.store_id == (await properties(world.memory)).store_id


async def test_of_two_that_start_at_once_at_two_stores_one_is_refused() -> None:
    world = World()
    await world.begin()
    stores = [MemoryStore(), MemoryStore()]
    guards = [
        guard_of(world.plane, store, place=f"memory://{number}")
        for number, store in enumerate(stores)
    ]
    for guard in guards:
        await guard.check()
    await guards[0].adopt(None)
    with pytest.raises(StoreMismatch, match=r"memory://1.*first opened as memory://0"):
        await guards[1].adopt(None)
    await guards[0].check()
    with pytest.raises(StoreMismatch):
        await guards[1].check()


@pytest.mark.parametrize("effect", [False, True])
async def test_a_start_that_ends_anywhere_is_made_good_by_the_next(effect: bool) -> None:
    doomed = 0
    while True:
        doomed += 1
        world = World()
        await world.begin()
        steps = Steps(doomed, effect=effect)
        dying = world.collection(
            plane=CrashingPlane(world.plane, steps), store=CrashingPlane(world.store, steps)
        )
        with suppress(Crash):
            await dying.start()
        await world.collection().start()
        kept = await world.plane.store_identity()
        assert kept is not None
        assert kept.store_id == (await properties(world.memory)).store_id
        if not steps.over:
            # plane, store; highest id, rows; written, plane, store, adopted; the mark
            assert doomed == 10
            break


async def test_what_clears_away_leaves_it() -> None:
    world = await written(sweep_unreferenced_grace_ms=0, orphan_grace_ms=0)
    collection = world.collection()
    await collection.start()
    before = await properties(world.memory)
    await world.memory.put("wal/00/nobodys", [b"x"])
    world.clock.ms += 10**9
    await world.plane.lease_objects(broker_id=1, incarnation=world.incarnation, count=1)
    await collection.id_markers.note()
    await collection.sweeper.sweep()
    assert (await collection.orphans.collect()).due == ["wal/00/nobodys"]
    assert await properties(world.memory) == before
    await world.collection().start()


async def test_nothing_is_deleted_in_another_store() -> None:
    world = await written(orphan_grace_ms=0)
    collection = world.collection()
    await collection.start()
    await emptied(world.memory)
    await world.memory.put("wal/00/anothers", [b"x"])
    for job in (collection.sweeper.sweep, collection.orphans.collect, collection.id_markers.note):
        with pytest.raises(StoreMismatch):
            await job()
    assert len(world.memory) == 1


# While it runs


class Asked(FaultyStore):
    """Counts requests; each fails as `failing` says."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.asked: Counter[str] = Counter()
        self.failing: PenstockError | None = None

    def _met(self, what: str) -> None:
        self.asked[what] += 1
        if self.failing is not None:
            raise self.failing

    async def put(self, key: str, pieces: Any) -> None:
        self._met("put")
        await super().put(key, pieces)

    async def get(self, key: str, start: int, size_bytes: int) -> memoryview:
        self._met("get")
        return await super().get(key, start, size_bytes)

    async def head(self, key: str) -> Any:
        self._met("head")
        return await super().head(key)

    def list(self, prefix: str, *, after: str = "") -> Any:
        self._met("list")
        return super().list(prefix, after=after)


class Running:
    """A store whose identity was checked, and may be replaced by another."""

    def __init__(self) -> None:
        self.plane = MemoryControlPlane()
        self.raw = Asked()
        self.guard = guard_of(self.plane, self.raw)
        self.store = GuardedStore(self.raw, self.guard)
        self.keys = iter(f"wal/{number}" for number in range(1000))

    async def start(self) -> Running:
        await self.guard.adopt(await self.guard.check())
        self.raw.asked.clear()
        return self

    async def put(self) -> None:
        await self.store.put(next(self.keys), [b"x"])

    async def listed(self) -> list[str]:
        return [info.key async for info in self.store.list("wal/")]

    def replaced(self) -> Any:
        """Replace the store by an empty one; return the old one."""
        before, self.raw.inner = self.raw.inner, MemoryStore()
        return before


async def test_writes_cost_no_request_while_nothing_fails() -> None:
    running = await Running().start()
    for _ in range(5):
        await running.put()
    await running.store.get("wal/0", 0, 1)
    await running.store.delete(["wal/0"])
    with pytest.raises(ObjectNotFound):
        await running.store.head("wal/0")
    assert running.raw.asked == {"put": 5, "get": 1, "head": 1}
    assert not running.guard.doubted


@pytest.mark.parametrize("what", ["put", "get", "head", "list"])
@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreRefused("no such bucket")])
async def test_after_any_failure_the_next_write_looks_first(what: str, error: Any) -> None:
    running = await Running().start()
    running.raw.failing = error
    request = {
        "put": running.put,
        "get": lambda: running.store.get("wal/x", 0, 1),
        "head": lambda: running.store.head("wal/x"),
        "list": running.listed,
    }[what]
    with pytest.raises(type(error)):
        await request()
    running.raw.failing = None
    running.raw.asked.clear()
    await running.put()
    await running.put()
    assert running.raw.asked == {"get": 1, "put": 2}

    running.raw.failing = error
    with pytest.raises(type(error)):
        await running.put()
    running.raw.failing = None
    before = running.replaced()
    with pytest.raises(StoreMismatch, match="has no identity"):
        await running.put()
    with pytest.raises(StoreMismatch):
        await running.store.delete(["wal/1"])
    assert len(running.raw.inner) == 0  # type: ignore[arg-type]
    assert running.guard.mismatch is not None
    running.raw.inner = before
    await running.put()
    assert running.guard.mismatch is None


@pytest.mark.parametrize("error", [StoreThrottled("slow down"), StoreFull("no room")])
async def test_a_store_that_is_only_busy_is_not_doubted(error: PenstockError) -> None:
    running = await Running().start()
    running.raw.failing = error
    with pytest.raises(type(error)):
        await running.put()
    running.raw.failing = None
    await running.put()
    assert running.raw.asked["get"] == 0


async def test_a_write_that_succeeds_while_another_fails_counts_only_after_a_look() -> None:
    running = await Running().start()
    inner, gate, begun = running.raw.inner, asyncio.Event(), asyncio.Event()

    class Slow(MemoryStore):
        async def put(self, key: str, pieces: Any) -> None:
            begun.set()
            await gate.wait()
            await super().put(key, pieces)

    running.raw.inner = Slow()
    slow = asyncio.create_task(running.put())
    await begun.wait()
    running.guard.doubt()
    gate.set()
    with pytest.raises(StoreMismatch):
        await slow
    running.raw.inner = inner
    await running.put()


async def test_a_write_that_is_cancelled_is_doubted() -> None:
    running = await Running().start()
    running.raw.script.append("hangs")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await running.put()
    assert running.guard.doubted


async def test_a_failure_during_a_look_is_not_forgotten() -> None:
    running = await Running().start()
    guard, raw = running.guard, running.raw

    class Meanwhile(MemoryStore):
        async def get(self, key: str, start: int, size_bytes: int) -> memoryview:
            guard.doubt()
            return await inner.get(key, start, size_bytes)

    inner, raw.inner = raw.inner, Meanwhile()
    guard.doubt()
    await guard.check()
    assert guard.doubted
    raw.inner = inner
    await guard.check()
    assert not guard.doubted


async def test_producers_get_an_error_and_nothing_is_committed() -> None:
    world = await written(1)
    await world.collection().start()
    guard = guard_of(world.plane, world.store)
    await guard.check()
    writer = world.writer(store=GuardedStore(world.store, guard))
    before = await world.extents(0)
    await emptied(world.memory)
    world.store.script.append("fails")
    sent = Sent(partition=0)
    writer.submit(sent.submission)
    await answered([sent])
    assert isinstance(sent.outcomes[0], StoreMismatch)
    assert await world.extents(0) == before
    await writer.stop()


async def test_random_failures_lose_nothing_and_end_in_the_right_store() -> None:
    """Two stores that take turns behind one address, whenever a request fails."""
    running, dice = await Running().start(), Random(12)
    right, wrong = running.raw.inner, MemoryStore()
    stored: set[str] = set()
    for number in range(400):
        if dice.random() < 0.2:
            running.raw.script.append("fails")
            running.raw.inner, kept = (wrong if dice.random() < 0.5 else right), running.raw.inner
            if running.raw.inner is kept:
                running.raw.script.clear()
        key = f"wal/random-{number}"
        try:
            await running.store.put(key, [b"x"])
        except (StoreUnavailable, StoreMismatch):
            continue
        stored.add(key)
    assert stored
    assert len(wrong) == 0
    assert stored == {info.key async for info in right.list("wal/")}
