"""Offset commits of one turn of the event loop, which a coordinator stores as one transaction."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from penstock.broker.groups.coordinator import OffsetCommits
from penstock.control import (
    OFFSETS_PER_CALL_MAX,
    CommittedOffset,
    GroupCommit,
    MemoryControlPlane,
    StaleClusterEpoch,
    UnstorableText,
)
from tests.broker.conftest import StartBroker

OFFSET = CommittedOffset(topic_id=UUID(int=1), topic="a", partition=0, offset=3)


class Commits(MemoryControlPlane):
    """A control plane that counts its transactions of commits, and rejects one group's rows."""

    def __init__(self, rejected: str = "") -> None:
        super().__init__()
        self.transactions: list[tuple[int | None, list[str]]] = []
        self.synced: list[bool] = []
        self._rejected = rejected

    async def commit_offsets_of(
        self,
        commits: Sequence[GroupCommit],
        *,
        cluster_epoch: int | None = None,
        synced: bool = True,
    ) -> None:
        groups = [group_id for group_id, _ in commits]
        self.transactions.append((cluster_epoch, groups))
        self.synced.append(synced)
        if self._rejected in groups:
            raise UnstorableText(f"the group id {self._rejected!r} cannot be stored")
        await super().commit_offsets_of(commits, cluster_epoch=cluster_epoch)


async def test_commits_of_a_turn_are_one_transaction() -> None:
    control = Commits()
    commits = OffsetCommits(control, 60)
    epoch = (await control.image()).cluster_epoch
    await asyncio.gather(*(commits.store(f"g{number}", [OFFSET], epoch) for number in range(3)))
    assert control.transactions == [(epoch, ["g0", "g1", "g2"])]
    await commits.store("g3", [OFFSET], epoch)
    assert control.transactions[1:] == [(epoch, ["g3"])]
    assert await control.offset_group_ids() == ["g0", "g1", "g2", "g3"]


async def test_a_commit_of_the_next_turn_joins_the_transaction() -> None:
    control = Commits()
    commits = OffsetCommits(control, 60)
    epoch = (await control.image()).cluster_epoch
    first = asyncio.ensure_future(commits.store("g", [OFFSET], epoch))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(commits.store("h", [OFFSET], epoch))
    await asyncio.gather(first, second)
    assert control.transactions == [(epoch, ["g", "h"])]


@pytest.mark.parametrize(("policy", "synced"), [("group", True), ("interval", True), ("os", False)])
async def test_commits_are_synced_unless_the_flush_policy_is_os(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch, policy: str, synced: bool
) -> None:
    monkeypatch.setattr("tests.broker.conftest.MemoryControlPlane", Commits)
    broker = await start_broker(policy=policy)
    await broker.coordinator.commit("g", [OFFSET])
    assert isinstance(broker.control, Commits)
    assert broker.control.synced == [synced]


class Hanging(MemoryControlPlane):
    """A control plane whose commits do not end."""

    async def commit_offsets_of(
        self,
        commits: Sequence[GroupCommit],
        *,
        cluster_epoch: int | None = None,
        synced: bool = True,
    ) -> None:
        await asyncio.Event().wait()


async def test_commits_that_are_not_stored_in_time_fail_together() -> None:
    commits = OffsetCommits(Hanging(), 0.001)
    outcomes = await asyncio.gather(
        *(commits.store(group_id, [OFFSET], 1) for group_id in "gh"), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [TimeoutError, TimeoutError]


async def test_commits_by_different_cluster_epochs_are_separate_transactions() -> None:
    control = Commits()
    commits = OffsetCommits(control, 60)
    epoch = (await control.image()).cluster_epoch
    stale, stored = await asyncio.gather(
        commits.store("old", [OFFSET], epoch - 1),
        commits.store("new", [OFFSET], epoch),
        return_exceptions=True,
    )
    assert isinstance(stale, StaleClusterEpoch)
    assert stored is None
    assert control.transactions == [(epoch - 1, ["old"]), (epoch, ["new"])]
    assert await control.offset_group_ids() == ["new"]


async def test_a_group_whose_rows_are_rejected_fails_alone() -> None:
    control = Commits(rejected="bad")
    commits = OffsetCommits(control, 60)
    epoch = (await control.image()).cluster_epoch
    outcomes = await asyncio.gather(
        *(commits.store(group_id, [OFFSET], epoch) for group_id in ("g", "bad", "h")),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), UnstorableText, type(None)]
    assert await control.offset_group_ids() == ["g", "h"]


async def test_a_cancelled_commit_leaves_the_others_of_its_turn() -> None:
    control = Commits()
    commits = OffsetCommits(control, 60)
    epoch = (await control.image()).cluster_epoch
    first, second = (
        asyncio.ensure_future(commits.store(group_id, [OFFSET], epoch)) for group_id in "gh"
    )
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert await control.offset_group_ids() == ["g", "h"]
    assert first.cancelled()


async def test_many_offsets_of_a_turn_are_several_transactions() -> None:
    control = Commits()
    commits = OffsetCommits(control, 60)
    epoch = (await control.image()).cluster_epoch
    sizes = {"g": OFFSETS_PER_CALL_MAX - 1, "h": 1, "i": 1}
    await asyncio.gather(
        *(commits.store(group_id, [OFFSET] * size, epoch) for group_id, size in sizes.items())
    )
    assert [groups for _, groups in control.transactions] == [["g", "h"], ["i"]]
