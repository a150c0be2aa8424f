"""Sink commits: one contract for all forms, and what the SQLite form keeps."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from penstock.control import (
    ControlPlane,
    SinkCommit,
    SinkState,
    SinkTarget,
    SqliteControlPlane,
    StaleSink,
    TooLarge,
)
from penstock.control.operations.commits import decode_targets, encode_targets
from penstock.control.rules import commits as sink_rules
from penstock.control.values import errors

LANE = SinkTarget(
    topic="flights",
    topic_id=UUID(int=7),
    partition=3,
    producer_id=5,
    base_sequence=2**31 - 2,
    records=5,
)


def commit(
    batch_id: int = 4, state: SinkState = "intent", query_id: str = "q", **more: object
) -> SinkCommit:
    record = SinkCommit(
        query_id=query_id,
        owner="checkpoint",
        batch_id=batch_id,
        state=state,
        targets=(LANE,),
        manifest=b"\x00blobs" if state == "intent" else b"",
        updated_ms=17,
    )
    return replace(record, **more)


def test_sequences_wrap() -> None:
    assert LANE.next_sequence == 3


async def test_an_unknown_query_has_no_commit(control: ControlPlane) -> None:
    assert await control.sink_commit("q") is None
    assert await control.sink_commits() == []
    await control.delete_sink_commit("q", expected_version=9)


async def test_commits_are_saved_by_compare_and_set(control: ControlPlane) -> None:
    assert await control.save_sink_commit(commit(), expected_version=0) == 1
    with pytest.raises(StaleSink, match="at version 1, but the change expected 0"):
        await control.save_sink_commit(commit(), expected_version=0)
    assert await control.sink_commit("q") == commit(version=1)
    assert await control.sink_commits() == [commit(version=1, manifest=b"")]
    assert await control.save_sink_commit(commit(4, "done"), expected_version=1) == 2
    assert await control.sink_commit("q") == commit(4, "done", version=2)


async def test_owner_and_offsets_may_be_missing(control: ControlPlane) -> None:
    target = replace(LANE, base_offset=12, next_offset=17)
    record = commit(owner=None, targets=(LANE, target), batch_id=2**63 - 1)
    version = await control.save_sink_commit(record, expected_version=0)
    assert await control.sink_commit("q") == replace(record, version=version)


FOLLOWS = [
    # (is there, comes next, may it)
    (("intent", 4), ("intent", 4), True),
    (("intent", 4), ("done", 4), True),
    (("intent", 4), ("intent", 5), False),
    (("intent", 4), ("done", 5), False),
    (("intent", 4), ("intent", 3), False),
    (("done", 4), ("intent", 4), False),
    (("done", 4), ("done", 4), False),
    (("done", 4), ("intent", 3), False),
    (("done", 4), ("intent", 5), True),
    (("done", 4), ("done", 9), True),
]


@pytest.mark.parametrize(("there", "comes", "allowed"), FOLLOWS)
async def test_what_may_follow(
    control: ControlPlane,
    there: tuple[SinkState, int],
    comes: tuple[SinkState, int],
    allowed: bool,
) -> None:
    version = await control.save_sink_commit(commit(there[1], there[0]), expected_version=0)
    following = commit(comes[1], comes[0])
    if allowed:
        assert await control.save_sink_commit(following, expected_version=version) > version
        return
    with pytest.raises(StaleSink, match=f"batch {comes[1]} as '{comes[0]}' cannot follow"):
        await control.save_sink_commit(following, expected_version=version)
    assert await control.sink_commit("q") == commit(there[1], there[0], version=version)


async def test_a_recreated_query_does_not_get_its_old_versions(control: ControlPlane) -> None:
    first = await control.save_sink_commit(commit(), expected_version=0)
    with pytest.raises(StaleSink):
        await control.delete_sink_commit("q", expected_version=first + 1)
    await control.delete_sink_commit("q", expected_version=first)
    second = await control.save_sink_commit(commit(1), expected_version=0)
    assert second > first
    other = await control.save_sink_commit(commit(query_id="p"), expected_version=0)
    assert other > second
    assert [row.query_id for row in await control.sink_commits()] == ["p", "q"]


async def test_of_commits_that_race_one_wins(control: ControlPlane) -> None:
    results = await asyncio.gather(
        *(
            control.save_sink_commit(commit(updated_ms=number), expected_version=0)
            for number in range(20)
        ),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["StaleSink"] * 19 + ["int"]
    winner = next(place for place, result in enumerate(results) if isinstance(result, int))
    row = await control.sink_commit("q")
    assert row is not None
    assert row.updated_ms == winner


async def test_a_commit_has_a_size(control: ControlPlane) -> None:
    manifest = bytes(sink_rules.SINK_MANIFEST_BYTES_MAX + 1)
    with pytest.raises(TooLarge, match=str(sink_rules.SINK_MANIFEST_BYTES_MAX)):
        await control.save_sink_commit(commit(manifest=manifest), expected_version=0)
    targets = (LANE,) * (errors.SINK_TARGETS_MAX + 1)
    with pytest.raises(TooLarge, match="50001 partitions"):
        await control.save_sink_commit(commit(targets=targets), expected_version=0)
    assert await control.sink_commits() == []


def test_there_are_only_so_many_queries() -> None:
    most = sink_rules.SINKS_MAX
    with pytest.raises(TooLarge, match=f"{most} queries"):
        sink_rules.check_sink_commit(commit(), found=None, expected=0, count=most)
    known = commit(version=7)
    sink_rules.check_sink_commit(commit(), found=known, expected=7, count=most)


def test_lanes_of_many_partitions_are_compact() -> None:
    targets = tuple(replace(LANE, partition=n, producer_id=100 + n) for n in range(1000))
    data = encode_targets(targets)
    assert decode_targets(data) == targets
    assert len(data) < 20_000


async def test_commits_outlive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "control.sqlite"
    first = SqliteControlPlane(path)
    await first.start()
    version = await first.save_sink_commit(commit(), expected_version=0)
    await first.close()
    second = SqliteControlPlane(path)
    await second.start()
    assert await second.sink_commit("q") == commit(version=version)
    await second.delete_sink_commit("q", expected_version=version)
    assert await second.save_sink_commit(commit(), expected_version=0) > version
    await second.close()
