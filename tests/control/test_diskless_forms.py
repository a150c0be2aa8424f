"""Diskless topics: all forms agree on random calls; ages by the plane's clock; what files keep."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from struct import pack
from typing import cast
from uuid import UUID

import pytest

from penstock.base.errors import PenstockError
from penstock.control import (
    CommitAnswer,
    CommitForgotten,
    DatabaseDamaged,
    FindRequest,
    MemoryControlPlane,
    ObjectCommit,
    ObjectLease,
    ObjectLeaseLost,
    SegmentSwap,
    SqliteControlPlane,
    Watermarks,
)
from penstock.control.rules.diskless import object_key
from penstock.control.values import errors
from penstock.control.values.diskless import (
    decode_answer,
    decode_batches,
    encode_answer,
    encode_batches,
)
from penstock.records.extents import Extent
from penstock.records.idempotence import ProducerBatch
from tests.control.diskless import (
    DISKLESS,
    OTHER,
    TOPIC,
    Plane,
    Sequenced,
    SetClock,
    bases,
    entry,
    furnish,
    lease,
    put,
    written,
)

_NONCE = re.compile(r"-[0-9a-f]{8}'")
_SEEN = re.compile(r"last_timestamp=\d+")
CALLS = 250


class Caller:
    """Makes the same random calls of any form, from one seed."""

    def __init__(self, plane: Plane, seed: int) -> None:
        self.plane = plane
        self.random = Random(seed)
        self.leases: list[ObjectLease] = []
        self.commits: list[ObjectCommit] = []
        self.topics = [TOPIC, OTHER]
        self.condemned: list[int] = []

    async def outcome(self) -> str:
        """Make a call; return its outcome without random and time-dependent values."""
        call = self.random.choice(_CALLS)
        try:
            found: object = await call(self)
        except PenstockError as error:
            found = f"{type(error).__name__}: {error}"
        text = _SEEN.sub("", _NONCE.sub("'", repr(found)))
        return f"{call.__name__}: {text}"

    def where(self) -> tuple[UUID, int]:
        return self.random.choice(self.topics), self.random.randrange(3)

    async def lease(self) -> object:
        leases = await lease(self.plane, self.random.randint(1, 4))
        self.leases += leases
        return leases

    async def commit(self) -> object:
        if not self.leases:
            return None
        random = self.random
        entries = []
        for _ in range(random.randint(1, 6)):
            topic_id, partition = self.where()
            by = None
            if random.random() < 0.6:
                by = Sequenced(random.randint(1, 3), random.choice((0, 5, 10, 15)))
            entries.append(
                entry(
                    partition, topic_id=topic_id, by=by, timestamp=random.randint(-1, 90),
                    append_time=random.random() < 0.2,
                )
            )  # fmt: skip
        entries.sort(key=lambda one: (one.topic_id, one.partition))
        key = self.leases.pop(random.randrange(len(self.leases)))
        commit = written(key, entries, now_ms=random.randint(0, 90), spread=random.random() < 0.3)
        self.commits.append(commit)
        return await self.plane.commit_object(commit)

    async def commit_again(self) -> object:
        if not self.commits:
            return None
        return await self.plane.commit_object(self.random.choice(self.commits))

    async def look(self) -> object:
        random = self.random
        key = self.where()
        return (
            await self.plane.watermarks([key, self.where()]),
            await self.plane.find(
                [FindRequest(*key, random.randrange(60), random.choice((0, 150, 10**6)))] * 2
            ),
            await self.plane.extent_at_time(*key, random.choice((None, random.randint(0, 99)))),
            await self.plane.diskless_producers(*key),
            await self.plane.backlogs(min_extents=random.randrange(3), limit=random.randint(1, 9)),
            await self.plane.object_totals(),
            await self.plane.highest_object_id(),
        )

    async def delete(self) -> object:
        return await self.plane.delete_records(*self.where(), self.random.randint(-1, 40))

    async def retain(self) -> object:
        random = self.random
        return await self.plane.retain(
            *self.where(),
            before_timestamp=random.choice((None, random.randint(0, 60))),
            max_bytes=random.choice((None, random.randint(0, 900))),
            limit=random.randint(1, 4),
        )

    async def swap(self) -> None:
        random = self.random
        key = self.where()
        there = await self.plane.extents(*key, start=0, end=999, limit=9)
        first = random.randrange(max(len(there), 1))
        replaced = there[first : first + random.randint(1, 4)]
        if not replaced or not self.leases:
            return
        if random.random() < 0.2:
            replaced[0] = replaced[0]._replace(max_timestamp=7)
        size_bytes = sum([extent.size_bytes for extent in replaced])
        made = self.leases.pop()
        extent = Extent(
            *made, "segment", 0, size_bytes, replaced[0].base_offset, replaced[-1].next_offset,
            50, -1, b"".join([extent.layout for extent in replaced]),
        )  # fmt: skip
        await self.plane.swap_extents(
            SegmentSwap(
                topic_id=key[0], partition=key[1], object_id=made.object_id,
                size_bytes=size_bytes, replaced=tuple(replaced), extents=(extent,),
            )
        )  # fmt: skip

    async def sweep(self) -> object:
        found = await self.plane.mark_for_deletion(
            pending_grace_ms=self.random.choice((0, 10**9, 10**9)),
            unreferenced_grace_ms=self.random.choice((0, 10**9)),
            limit=999,
        )
        self.condemned = [marked.object_id for marked in found]
        return found

    async def forget(self) -> object:
        await self.plane.forget_objects(self.condemned[: self.random.randint(0, 9)])
        rows = await self.plane.forget_partitions(limit=999)  # in parts, the order is a form's own
        return rows, await self.plane.referenced_keys(after="", limit=self.random.randint(1, 99))

    async def replace_topic(self) -> object:
        if self.random.random() < 0.7:
            return None
        place = self.random.randrange(2)
        old = self.topics[place]
        self.topics[place] = UUID(int=self.random.getrandbits(100) + 10)
        await self.plane.delete_topic(old)
        return await self.plane.create_topic(
            name=f"t{place}-{self.topics[place].int}", topic_id=self.topics[place],
            partitions=[[1]] * 3, configs=DISKLESS,
        )  # fmt: skip


_CALLS: list[Callable[[Caller], Awaitable[object]]] = [
    Caller.lease, Caller.commit, Caller.commit, Caller.commit, Caller.commit_again, Caller.look,
    Caller.look, Caller.delete, Caller.retain, Caller.swap, Caller.swap, Caller.sweep,
    Caller.forget, Caller.replace_topic,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
async def test_all_forms_agree(plane: Plane, seed: int) -> None:
    memory = cast(Plane, MemoryControlPlane())
    await furnish(memory)
    one, other = Caller(plane, seed), Caller(memory, seed)
    for number in range(CALLS):
        assert await one.outcome() == await other.outcome(), f"call {number} of seed {seed}"


@pytest.fixture(params=["sqlite inline", "sqlite thread"])
async def timed(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[Plane, SetClock]]:
    """Forms that have no clock of their own, with one that is set."""
    clock = SetClock()
    form = (
        MemoryControlPlane(clock=clock)
        if request.param == "sqlite inline"
        else SqliteControlPlane(tmp_path / "metadata.sqlite", clock=clock)
    )
    both = cast(Plane, form)
    await both.start()
    await furnish(both)
    yield both, clock
    await both.close()


async def condemned(plane: Plane, pending_ms: int, unreferenced_ms: int) -> list[int]:
    found = await plane.mark_for_deletion(
        pending_grace_ms=pending_ms, unreferenced_grace_ms=unreferenced_ms, limit=99
    )
    return [leased.object_id for leased in found]


async def test_ages_are_the_planes_own(timed: tuple[Plane, SetClock]) -> None:
    plane, clock = timed
    [key, other] = await lease(plane, 2)
    clock.ms += 99
    assert await condemned(plane, 100, 100) == []
    await plane.commit_object(written(key, [entry(0)], now_ms=5))
    clock.ms += 1
    assert await condemned(plane, 100, 100) == [other.object_id]
    await plane.forget_objects([other.object_id])
    await plane.retain(TOPIC, 0, before_timestamp=None, max_bytes=0, limit=9)
    clock.ms += 99
    assert await condemned(plane, 100, 100) == []
    clock.ms += 1
    assert await condemned(plane, 100, 100) == [key.object_id]


async def test_an_extent_that_goes_last_begins_the_grace(timed: tuple[Plane, SetClock]) -> None:
    plane, clock = timed
    await put(plane, entry(0), entry(1))
    await plane.retain(TOPIC, 0, before_timestamp=None, max_bytes=0, limit=9)
    clock.ms += 500
    await plane.retain(TOPIC, 1, before_timestamp=None, max_bytes=0, limit=9)
    clock.ms += 99
    assert await condemned(plane, 100, 100) == []
    clock.ms += 1
    assert len(await condemned(plane, 100, 100)) == 1


async def test_producers_are_idle_since_their_last_append(timed: tuple[Plane, SetClock]) -> None:
    plane, clock = timed
    one, other = entry(0, by=Sequenced(1, 0)), entry(0, by=Sequenced(2, 0))
    await put(plane, one, other)
    clock.ms += 60
    await put(plane, entry(0, by=Sequenced(2, 5)))
    await put(plane, one)
    clock.ms += 40
    assert await plane.forget_producers(idle_ms=100, limit=9) == 1
    [left] = await plane.diskless_producers(TOPIC, 0)
    assert (left.producer_id, left.last_timestamp) == (2, clock.ms - 40)


async def test_answers_are_kept_for_an_hour(timed: tuple[Plane, SetClock]) -> None:
    plane, clock = timed
    keys = await lease(plane, 4)
    commits = [written(key, [entry(0)]) for key in keys[:3]]
    refused = written(keys[3], [entry(9)])
    for commit in [*commits, refused]:
        await plane.commit_object(commit)
    clock.ms += errors.COMMIT_ANSWER_KEPT_MS - 1
    await condemned(plane, 10**9, 10**9)
    for commit in [*commits, refused]:
        await plane.commit_object(commit)
    clock.ms += 1
    await plane.mark_for_deletion(pending_grace_ms=10**9, unreferenced_grace_ms=10**9, limit=2)
    await plane.commit_object(commits[2])
    await plane.mark_for_deletion(pending_grace_ms=10**9, unreferenced_grace_ms=10**9, limit=2)
    for commit in commits:
        with pytest.raises(CommitForgotten, match=f"object {commit.object_id} "):
            await plane.commit_object(commit)
    with pytest.raises(ObjectLeaseLost):
        await plane.commit_object(refused)
    assert await plane.watermarks([(TOPIC, 0)]) == [Watermarks(0, 15, 300)]


async def test_a_file_keeps_everything(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    plane = cast(Plane, SqliteControlPlane(path))
    await plane.start()
    await furnish(plane)
    keys = await lease(plane, 2)
    commit = written(keys[0], [entry(0, by=Sequenced(4, 0)), entry(1), entry(9)])
    answer = await plane.commit_object(commit)
    request = FindRequest(TOPIC, 0, 2, 10**6)
    found = await plane.find([request])
    await plane.close()
    again = cast(Plane, SqliteControlPlane(path))
    await again.start()
    try:
        assert await again.find([request]) == found
        assert await again.commit_object(commit) == answer
        assert await again.highest_object_id() == keys[1].object_id
        assert ("pending", keys[1]) in await again.referenced_keys(after="", limit=9)
        late = await again.commit_object(written(keys[1], [entry(0, by=Sequenced(4, 0))]))
        assert late.placed[0].duplicate
        assert await again.diskless_producers(TOPIC, 0) != []
    finally:
        await again.close()


async def test_a_damaged_answer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    plane = cast(Plane, SqliteControlPlane(path))
    await plane.start()
    await furnish(plane)
    [key] = await lease(plane)
    commit = written(key, [entry(0)])
    await plane.commit_object(commit)
    await plane.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE diskless_answers SET answer = x'93'")
    connection.close()
    await plane.start()
    try:
        with pytest.raises(DatabaseDamaged, match=r"result of a commit is damaged \(1 bytes\)"):
            await plane.commit_object(commit)
        assert await plane.watermarks([(TOPIC, 0)]) == [Watermarks(0, 5, 100)]
    finally:
        await plane.close()


async def test_answers_survive_their_encoding() -> None:
    plane = cast(Plane, MemoryControlPlane())
    await furnish(plane)
    entries = [
        entry(0, (60, 2), (70, 3), append_time=True), entry(1, by=Sequenced(2**62, 2**31 - 2)),
        entry(1, by=Sequenced(2**62, 5)), entry(9), entry(0, topic_id=OTHER, timestamp=2**62),
    ]  # fmt: skip
    answer = await put(plane, *entries, now_ms=2**62)
    assert bases(answer) == [0, 0, -1, -1, 0]
    data = encode_answer(answer)
    assert decode_answer(data) == answer
    assert decode_answer(encode_answer(CommitAnswer(placed=()))) == CommitAnswer(placed=())
    for end in range(len(data)):
        with pytest.raises(DatabaseDamaged):
            decode_answer(data[:end])
    with pytest.raises(DatabaseDamaged):
        decode_answer(data + b"\x00")
    with pytest.raises(DatabaseDamaged, match="version 2, not 1"):
        decode_answer(data[:1] + b"\x02" + data[2:])


def test_batches_survive_their_encoding() -> None:
    batches = (
        ProducerBatch(2**31 - 1, 4, 2**62, 5, -1),
        ProducerBatch(5, 5, 2**63 - 1, 0, 2**63 - 1),
    )
    data = encode_batches(batches)
    assert data[:8] == pack("<ii", 2**31 - 1, 4)
    assert decode_batches(data) == batches
    assert decode_batches(b"") == (), "a marker has raised the epoch"
    for end in (1, 27, 29, len(data) - 1):
        with pytest.raises(DatabaseDamaged):
            decode_batches(data[:end])


def test_keys_are_spread_over_prefixes() -> None:
    keys = [object_key(object_id, 0xABCDEF01) for object_id in range(1, 1025)]
    prefixes = {key[:7] for key in keys}
    assert len(prefixes) == 256
    assert object_key(0x1234, 7) == "wal/34/0000000000001234-00000007"
