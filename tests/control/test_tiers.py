"""Contract of tiered storage for all implementations of the control plane."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID

import pytest

from penstock.control import ControlPlane, ObjectLeaseLost, StaleEpoch, UnknownTopic
from penstock.control.values.errors import NotTiered, StaleTiers
from penstock.control.values.tiers import SUFFIXES, TierBounds, TierLease, TierSegment

TOPIC, PLAIN = UUID(int=7), UUID(int=8)
KEY = (TOPIC, 0)
TIERED = {"remote.storage.enable": "true"}
ALL = 99


@dataclass
class Tiers:
    """A plane with one tiered topic, and what is done to its first partition."""

    plane: ControlPlane

    async def furnish(self) -> Tiers:
        for name, topic_id, configs in (("tiered", TOPIC, TIERED), ("plain", PLAIN, {})):
            await self.plane.create_topic(
                name=name, topic_id=topic_id, partitions=[[1], [1]], configs=configs
            )
        return self

    async def lease(self, base: int = 0, epoch: int = 0) -> TierLease:
        return await self.plane.lease_tier(KEY, base_offset=base, leader_epoch=epoch)

    async def commit(
        self,
        base: int,
        end: int,
        *,
        lease: TierLease | None = None,
        start: int = 0,
        leader_epoch: int = 0,
        **fields: int,
    ) -> TierSegment:
        lease = lease or await self.lease(base)
        made = segment(lease, base, end, **fields)
        await self.plane.commit_tier(KEY, made, log_start_offset=start, leader_epoch=leader_epoch)
        return made

    async def bounds(self) -> TierBounds:
        return (await self.plane.tier_bounds([KEY]))[KEY]

    async def states(self) -> dict[int, str]:
        rows = await self.plane.referenced_keys(after="", limit=ALL)
        return {lease.object_id: state for state, lease in rows}

    async def condemned(self, *, pending_ms: int = 10**9, unreferenced_ms: int = 0) -> list[int]:
        found = await self.plane.mark_for_deletion(
            pending_grace_ms=pending_ms, unreferenced_grace_ms=unreferenced_ms, limit=ALL
        )
        return [marked.object_id for marked in found]


def segment(lease: TierLease, base: int, end: int, **fields: int) -> TierSegment:
    whole = {
        "leader_epoch": 0, "max_timestamp": end, "size_bytes": 100, "index_bytes": 8,
        "time_index_bytes": 12, "aborted_bytes": 0, "checksum": 2**32 - 1, **fields,
    }  # fmt: skip
    return TierSegment(base, end, object_id=lease.object_id, stem=lease.stem, **whole)


@pytest.fixture
async def tiers(control: ControlPlane) -> Tiers:
    return await Tiers(control).furnish()


async def test_keys_are_reserved_below_one_stem(tiers: Tiers) -> None:
    first, second = await tiers.lease(42, 3), await tiers.lease(42, 3)
    assert first.stem.startswith(f"archive/{TOPIC}/0/{42:020d}-3-")
    assert first.stem != second.stem
    rows = await tiers.plane.referenced_keys(after="", limit=ALL)
    assert {lease.key for _, lease in rows} == {
        lease.stem + suffix for lease in (first, second) for suffix in SUFFIXES
    }
    assert set((await tiers.states()).values()) == {"pending"}


async def test_segments_follow_each_other(tiers: Tiers) -> None:
    assert await tiers.plane.tier_bounds([KEY, (TOPIC, 1)]) == {}
    first = await tiers.commit(0, 10)
    second = await tiers.commit(10, 25, aborted_bytes=34)
    assert await tiers.bounds() == TierBounds(0, 25, 200, 2, ((0, 0),), 10)
    segments = tiers.plane.tier_segments
    assert await segments(KEY, 0) == [first, second]
    assert await segments(KEY, 9, limit=1) == [first]
    assert await segments(KEY, 10) == [second]
    assert await segments(KEY, 25) == []
    assert await tiers.plane.aborted_tiers(KEY, 0) == [second]
    assert await tiers.plane.aborted_tiers(KEY, 25) == []
    states = await tiers.states()
    assert [states[object_id] for object_id in range(first.object_id, first.object_id + 4)] == [
        "committed", "committed", "committed", "deleting",
    ]  # fmt: skip
    assert states[second.object_id + 3] == "committed"


async def test_tiers_have_the_epochs_of_their_segments(tiers: Tiers) -> None:
    for base, epoch in ((0, 0), (10, 0), (20, 3), (30, 5)):
        lease = await tiers.lease(base, epoch)
        made = segment(lease, base, base + 10, leader_epoch=epoch)
        await tiers.plane.commit_tier(KEY, made, log_start_offset=0, leader_epoch=0)
    assert (await tiers.bounds()).epochs == ((0, 0), (3, 20), (5, 30))


async def test_a_repeated_commit_gets_the_first_answer(tiers: Tiers) -> None:
    lease = await tiers.lease()
    await tiers.commit(0, 10, lease=lease)
    await tiers.commit(10, 20)
    await tiers.commit(0, 10, lease=lease)
    assert (await tiers.bounds()).segments == 2


@pytest.mark.parametrize(("base", "end"), [(0, 10), (5, 15), (11, 20), (20, 30)])
async def test_a_segment_that_does_not_follow_is_refused(tiers: Tiers, base: int, end: int) -> None:
    await tiers.commit(0, 10)
    lease = await tiers.lease(base)
    with pytest.raises(StaleTiers, match="ends at offset 10"):
        await tiers.commit(base, end, lease=lease)
    assert (await tiers.states())[lease.object_id] == "pending"
    assert (await tiers.bounds()).tiered_offset == 10


async def test_the_first_segment_holds_the_start(tiers: Tiers) -> None:
    with pytest.raises(StaleTiers):
        await tiers.commit(50, 60, start=40)
    await tiers.commit(50, 60, start=55)
    assert await tiers.bounds() == TierBounds(55, 60, 100, 1, ((0, 50),))


async def test_tiers_continue_after_a_gap_of_deleted_records(tiers: Tiers) -> None:
    await tiers.commit(0, 10)
    await tiers.plane.retain_tiers(KEY, leader_epoch=0, start_offset=33)
    assert await tiers.bounds() == TierBounds(33, 10, 0, 0)
    await tiers.commit(30, 40, start=33)
    assert await tiers.bounds() == TierBounds(33, 40, 100, 1, ((0, 30),))


async def test_only_the_leader_of_a_tiered_topic_commits(tiers: Tiers) -> None:
    plane, lease = tiers.plane, await tiers.lease()
    made = segment(lease, 0, 10)
    with pytest.raises(StaleEpoch, match="leader epoch is 0"):
        await plane.commit_tier(KEY, made, log_start_offset=0, leader_epoch=1)
    with pytest.raises(NotTiered, match="has no remote"):
        await plane.commit_tier((PLAIN, 0), made, log_start_offset=0, leader_epoch=0)
    for key in ((UUID(int=9), 0), (TOPIC, 2)):
        with pytest.raises(UnknownTopic):
            await plane.commit_tier(key, made, log_start_offset=0, leader_epoch=0)
    for refused in (plane.retain_tiers(KEY, leader_epoch=1),
                    plane.cut_tiers(KEY, leader_epoch=1, offset=0)):  # fmt: skip
        with pytest.raises(StaleEpoch):
            await refused


async def test_a_late_commit_loses(tiers: Tiers, elapse: Callable[[int], Awaitable[None]]) -> None:
    swept = await tiers.lease()
    await elapse(1000)
    assert await tiers.condemned(pending_ms=500) == list(swept.object_ids)
    with pytest.raises(ObjectLeaseLost):
        await tiers.commit(0, 10, lease=swept)
    deleted = await tiers.lease()
    await tiers.plane.delete_topic(topic_id=TOPIC)
    with pytest.raises(UnknownTopic):
        await tiers.commit(0, 10, lease=deleted)


async def test_retention_lets_go_from_the_start(tiers: Tiers) -> None:
    made = [await tiers.commit(base, base + 10) for base in (0, 10, 20, 30)]
    retain = tiers.plane.retain_tiers
    assert await retain((TOPIC, 1), leader_epoch=0, max_bytes=0) is None
    dropped = await retain(KEY, leader_epoch=0, before_timestamp=20, limit=1)
    assert dropped is not None
    assert (dropped.segments, dropped.size_bytes, dropped.more) == (1, 100, False)
    dropped = await retain(KEY, leader_epoch=0, max_bytes=100, limit=1)
    assert dropped is not None
    assert dropped.more
    assert (await tiers.bounds())[:4] == (20, 40, 200, 2)
    dropped = await retain(KEY, leader_epoch=0, start_offset=35, max_bytes=150)
    assert dropped is not None
    assert not dropped.more
    assert (await tiers.bounds())[:4] == (35, 40, 100, 1)
    gone = [
        object_id for made_segment in made[:3] for object_id, size in made_segment.objects() if size
    ]
    assert set(gone) <= set(await tiers.condemned())
    states = await tiers.states()
    assert states[made[3].object_id] == "committed"
    dropped = await retain(KEY, leader_epoch=0, before_timestamp=1000)
    assert dropped is not None
    assert dropped.bounds[:4] == (40, 40, 0, 0)


async def test_a_record_without_a_time_does_not_expire(tiers: Tiers) -> None:
    await tiers.commit(0, 10, max_timestamp=-1)
    dropped = await tiers.plane.retain_tiers(KEY, leader_epoch=0, before_timestamp=10**15)
    assert dropped is not None
    assert dropped.segments == 0


async def test_segments_are_found_by_time(tiers: Tiers) -> None:
    times = (100, 300, 200, 300)
    made = [await tiers.commit(n * 10, n * 10 + 10, max_timestamp=t) for n, t in enumerate(times)]
    at = tiers.plane.tier_at_time
    assert await at(KEY, start_offset=0, timestamp=100) == made[0]
    assert await at(KEY, start_offset=0, timestamp=101) == made[1]
    assert await at(KEY, start_offset=10, timestamp=0) == made[1]
    assert await at(KEY, start_offset=20, timestamp=201) == made[3]
    assert await at(KEY, start_offset=0, timestamp=301) is None
    assert await at(KEY, start_offset=0, timestamp=None) == made[1]
    assert await at((TOPIC, 1), start_offset=0, timestamp=None) is None


@pytest.mark.parametrize(
    ("offset", "end", "left"),
    [(0, 0, []), (10, 10, [10]), (15, 15, [10, 15]), (99, 30, [10, 20, 30])],
)
async def test_what_an_unclean_election_gave_up_is_cut(
    tiers: Tiers, offset: int, end: int, left: list[int]
) -> None:
    assert await tiers.plane.cut_tiers(KEY, leader_epoch=0, offset=0) is None
    for base in (0, 10, 20):
        await tiers.commit(base, base + 10)
    dropped = await tiers.plane.cut_tiers(KEY, leader_epoch=0, offset=offset)
    assert dropped is not None
    assert (await tiers.bounds())[:4] == (0, end, 100 * len(left), len(left))
    assert [
        tier_segment.next_offset for tier_segment in await tiers.plane.tier_segments(KEY, 0)
    ] == left


async def test_what_topics_leave_is_let_go(tiers: Tiers) -> None:
    made = [await tiers.commit(base, base + 10) for base in (0, 10, 20)]
    lease = await tiers.plane.lease_tier((TOPIC, 1), base_offset=0, leader_epoch=0)
    await tiers.plane.commit_tier(
        (TOPIC, 1), segment(lease, 0, 5), log_start_offset=0, leader_epoch=0
    )
    assert await tiers.plane.forget_tiers() == 0
    await tiers.plane.set_topic_configs(topic_id=TOPIC, configs={}, expected=TIERED)
    assert await tiers.plane.forget_tiers(limit=2) == 2
    assert (await tiers.bounds())[:4] == (20, 30, 100, 1)
    assert [await tiers.plane.forget_tiers(limit=2) for _ in range(3)] == [2, 2, 0]
    assert await tiers.plane.tier_bounds([KEY, (TOPIC, 1)]) == {}
    wanted = {
        object_id for made_segment in made for object_id, size in made_segment.objects() if size
    }
    assert wanted <= set(await tiers.condemned())
    await tiers.plane.delete_topic(topic_id=TOPIC)
    assert await tiers.plane.forget_tiers() == 0


async def test_a_topic_that_is_tiered_again_starts_without_segments(tiers: Tiers) -> None:
    await tiers.commit(0, 10)
    await tiers.plane.set_topic_configs(topic_id=TOPIC, configs={}, expected=TIERED)
    await tiers.plane.forget_tiers()
    await tiers.plane.set_topic_configs(topic_id=TOPIC, configs=TIERED, expected={})
    await tiers.commit(7, 17, start=7)
    assert (await tiers.bounds())[:3] == (7, 17, 100)
