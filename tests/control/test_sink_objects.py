"""A sink's commit to diskless topics: its objects and its row, one contract for all forms."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from msgspec.structs import replace

from penstock.control import (
    EntryRefused,
    FindRequest,
    InvalidCommit,
    ObjectCommit,
    ObjectLeaseLost,
    SinkAnswer,
    SinkCommit,
    SinkTarget,
    StaleSink,
    TooLarge,
    Watermarks,
)
from penstock.control.values import errors
from tests.control.diskless import (
    LOCAL,
    OTHER,
    TOPIC,
    Plane,
    Sequenced,
    bases,
    entry,
    lease,
    put,
    written,
)

EMPTY = Watermarks(0, 0, 0)


def target(partition: int, records: int, topic_id: UUID = TOPIC) -> SinkTarget:
    return SinkTarget(
        topic="flights",
        topic_id=topic_id,
        partition=partition,
        producer_id=-1,
        base_sequence=0,
        records=records,
    )


def row(batch_id: int = 4, *targets: SinkTarget, query_id: str = "q") -> SinkCommit:
    return SinkCommit(
        query_id=query_id,
        owner="checkpoint",
        batch_id=batch_id,
        state="done",
        targets=targets or (target(0, 10), target(1, 5)),
        updated_ms=17,
    )


async def objects(plane: Plane) -> list[ObjectCommit]:
    """Two objects: partitions 0 and 1, then partition 0 again; five records in each entry."""
    one, two = await lease(plane, 2)
    return [written(one, [entry(0), entry(1)]), written(two, [entry(0)])]


async def commit(
    plane: Plane, record: SinkCommit, commits: list[ObjectCommit], expected: int = 0
) -> SinkAnswer:
    return await plane.commit_sink_objects(record, expected_version=expected, commits=commits)


async def ends(plane: Plane) -> list[int]:
    watermarks = await plane.watermarks([(TOPIC, 0), (TOPIC, 1), (OTHER, 0)])
    return [watermark.high_watermark for watermark in watermarks]


async def states(plane: Plane) -> dict[str, int]:
    totals: dict[str, int] = {}
    for object_total in await plane.object_totals():
        totals[object_total.state] = totals.get(object_total.state, 0) + object_total.objects
    return totals


async def test_objects_and_row_are_committed_together(plane: Plane) -> None:
    await put(plane, entry(0))
    commits = await objects(plane)
    record, answers = await commit(plane, row(), commits)
    assert [bases(answer) for answer in answers] == [[5, 0], [10]]
    assert [(saved.base_offset, saved.next_offset) for saved in record.targets] == [(5, 15), (0, 5)]
    assert record == replace(row(), targets=record.targets, version=record.version)
    assert record.version > 0
    assert await plane.sink_commit("q") == record
    assert await ends(plane) == [15, 5, 0]
    [found] = await plane.find([FindRequest(TOPIC, 0, 0, 1 << 20)])
    assert [(extent.base_offset, extent.next_offset) for extent in found.extents] == [
        (0, 5), (5, 10), (10, 15),
    ]  # fmt: skip
    assert [extent.object_id for extent in found.extents[1:]] == [
        commit.object_id for commit in commits
    ]
    assert answers[1].watermarks[TOPIC, 0] == found.watermarks
    # The next batch follows on it, whichever way it is committed.
    version = await plane.save_sink_commit(
        replace(row(5), targets=()), expected_version=record.version
    )
    assert version > record.version
    later, _ = await commit(plane, row(6), await objects(plane), version)
    assert [saved.base_offset for saved in later.targets] == [15, 5]


async def test_a_repetition_gets_the_first_answer(plane: Plane) -> None:
    commits = await objects(plane)
    first = await commit(plane, row(), commits)
    await put(plane, entry(0))
    for expected in (0, 0):
        assert await commit(plane, row(), commits, expected) == first
    assert await ends(plane) == [15, 5, 0]
    assert await states(plane) == {"committed": 3}


async def test_another_attempt_at_the_same_batch_is_stale(plane: Plane) -> None:
    first = await commit(plane, row(), await objects(plane))
    others = await objects(plane)
    for batch_id, expected in ((4, 0), (3, 0), (4, first.record.version), (9, 0)):
        with pytest.raises(StaleSink):
            await commit(plane, row(batch_id), others, expected)
    assert await plane.sink_commit("q") == first.record
    assert await ends(plane) == [10, 5, 0]
    # What it wrote is left to the sweeper.
    assert await states(plane) == {"committed": 2, "pending": 2}
    condemned = await plane.mark_for_deletion(pending_grace_ms=0, unreferenced_grace_ms=0, limit=9)
    assert [marked.object_id for marked in condemned] == [commit.object_id for commit in others]


@pytest.mark.parametrize("topic_id", [LOCAL, UUID(int=99)])
async def test_an_entry_that_is_refused_refuses_all(plane: Plane, topic_id: UUID) -> None:
    one, two = await lease(plane, 2)
    commits = [
        written(one, [entry(0), entry(1)]),
        written(two, [entry(0), entry(0, topic_id=topic_id)]),
    ]
    with pytest.raises(EntryRefused, match=f"object {two.object_id} was rejected") as caught:
        await commit(plane, row(), commits)
    assert caught.value.error in ("unknown_topic_id", "not_leader_or_follower")
    with pytest.raises(EntryRefused, match="partition 7 does not exist"):
        await commit(plane, row(), [written(one, [entry(7)])])
    assert await plane.sink_commit("q") is None
    assert await ends(plane) == [0, 0, 0]
    assert await plane.extents(TOPIC, 0, start=0, end=99, limit=9) == []
    # Nothing is lost either: without that entry the same objects can be committed.
    record, _ = await commit(plane, row(), [commits[0], written(two, [entry(0)])])
    assert [(saved.base_offset, saved.next_offset) for saved in record.targets] == [(0, 10), (0, 5)]


async def test_an_object_that_was_swept_loses_all(plane: Plane) -> None:
    commits = await objects(plane)
    await plane.mark_for_deletion(pending_grace_ms=0, unreferenced_grace_ms=0, limit=1)
    with pytest.raises(ObjectLeaseLost):
        await commit(plane, row(), commits)
    fresh = await objects(plane)
    committed = fresh[1]
    await plane.commit_object(committed)
    with pytest.raises(ObjectLeaseLost):
        await commit(plane, row(), fresh)
    assert await plane.sink_commit("q") is None
    assert await ends(plane) == [5, 0, 0]


async def test_an_intent_is_ended(plane: Plane) -> None:
    """A batch for local and diskless partitions: the row was there, with local targets, too."""
    local = replace(target(0, 3, LOCAL), producer_id=8, base_offset=40, next_offset=43)
    intent = replace(row(4, target(0, 10), local), state="intent", manifest=b"blobs")
    version = await plane.save_sink_commit(intent, expected_version=0)
    with pytest.raises(StaleSink):
        await commit(plane, row(5, target(0, 10), local), await objects(plane), version)
    commits = await objects(plane)
    done = await commit(plane, row(4, target(0, 10), local), commits, version)
    assert [saved.base_offset for saved in done.record.targets] == [0, 40]
    assert await plane.sink_commit("q") == done.record
    assert await commit(plane, row(4, target(0, 10), local), commits, version) == done


async def test_what_cannot_be_a_commit(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = await objects(plane)
    with pytest.raises(InvalidCommit, match="0 objects"):
        await commit(plane, row(), [])
    with pytest.raises(InvalidCommit, match="2 objects with 1 ids"):
        await commit(plane, row(), [commits[0]] * 2)
    with pytest.raises(InvalidCommit, match="state 'intent'"):
        await commit(plane, replace(row(), state="intent"), commits)
    [key] = await lease(plane)
    with pytest.raises(InvalidCommit, match="have no producer"):
        await commit(plane, row(), [written(key, [entry(0, by=Sequenced(1, 0))])])
    bad = replace(commits[0], entries=(commits[0].entries[0]._replace(layout=b""),))
    with pytest.raises(InvalidCommit, match="do not add up"):
        await commit(plane, row(), [bad])
    monkeypatch.setattr("penstock.control.rules.commits.SINK_OBJECTS_MAX", 1)
    with pytest.raises(TooLarge, match="has 2 objects, the limit is 1"):
        await commit(plane, row(), commits)
    assert errors.SINK_OBJECTS_MAX >= 2
    assert await ends(plane) == [0, 0, 0]


async def test_commits_of_many_at_once(plane: Plane) -> None:
    """Queries and producers write to the same partitions, in either order of partitions."""
    sinks = [
        (row(0, target(0, 5), target(1, 5), query_id=f"q{number}"), await lease(plane, 2))
        for number in range(4)
    ]
    calls = [
        plane.commit_sink_objects(
            record,
            expected_version=0,
            commits=[
                written(first_id, [entry(number % 2)]),
                written(two, [entry(1 - number % 2)]),
            ],
        )
        for number, (record, (first_id, two)) in enumerate(sinks)
    ]
    answers, _ = await asyncio.gather(
        asyncio.gather(*calls), asyncio.gather(*[put(plane, entry(0), entry(1)) for _ in range(4)])
    )
    assert await ends(plane) == [40, 40, 0]
    for place in (0, 1):
        starts = {answer.record.targets[place].base_offset for answer in answers}
        assert len(starts) == 4
        assert all(start % 5 == 0 for start in starts)


async def test_two_attempts_at_once_leave_one(plane: Plane) -> None:
    tries = [await objects(plane) for _ in range(3)]
    done = await asyncio.gather(
        *[commit(plane, row(), commits) for commits in tries], return_exceptions=True
    )
    assert sum(isinstance(result, SinkAnswer) for result in done) == 1
    assert sum(isinstance(result, StaleSink) for result in done) == 2
    assert await ends(plane) == [10, 5, 0]
