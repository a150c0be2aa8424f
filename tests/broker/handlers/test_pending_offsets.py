"""Offsets of open transactions: readers of stable ones wait, and none expires meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from penstock.broker.server import BrokerServer
from penstock.control import (
    GROUP_MEMBER,
    CommittedOffset,
    OffsetsEnd,
    OpenTransaction,
    RecordChange,
)
from tests.broker.coordination.test_groups import MINUTE_MS, Clock
from tests.broker.handlers.calls import call, names, versions
from tests.broker.handlers.conftest import give
from tests.broker.handlers.test_offsets import commit, deletion, fetch, positions
from tests.broker.handlers.test_topics import create, creation

OPEN = OpenTransaction(transactional_id="tx", producer_id=7, producer_epoch=0)


async def save(broker: BrokerServer, group: bytes | None, end: OffsetsEnd | None = None) -> None:
    """Save what the transaction coordinator saves when a group joins, and at the end."""
    known = await broker.control.records("transaction", ["tx"])
    change = RecordChange(
        kind="transaction",
        key="tx",
        expected_version=known[0].version if known else 0,
        rows={"": b"the transaction", GROUP_MEMBER + "g": group},
        completes_offsets=end,
    )
    assert not (await broker.control.save_records([change])).refused


async def stage(broker: BrokerServer, offsets: Mapping[int, int]) -> None:
    topic = broker.partitions.topics["a"].topic
    brought = [
        CommittedOffset(topic_id=topic.topic_id, topic="a", partition=partition, offset=offset)
        for partition, offset in offsets.items()
    ]
    await save(broker, OPEN.group_row)
    await broker.coordinator.commit("g", brought, OPEN)


async def ask(
    broker: BrokerServer, version: int, partitions: Sequence[int] | None, stable: bool
) -> Any:
    topic: dict[str, Any] = {"name": "a", "topic_id": broker.partitions.topics["a"].topic.topic_id}
    asked = None if partitions is None else [{**topic, "partition_indexes": partitions}]
    request: dict[str, Any] = {"group_id": "g", "topics": asked, "require_stable": stable}
    request["groups"] = [{"group_id": "g", "topics": asked}]
    response = await call(broker, "OffsetFetch", version, request)
    answer = response.groups[0] if version >= 8 else response
    return [
        (p.partition_index, p.committed_offset, names(p.error_code))
        for topic in answer.topics
        for p in topic.partitions
    ]


@pytest.mark.parametrize("version", versions("OffsetFetch"))
async def test_unstable_offsets(broker: BrokerServer, version: int) -> None:
    await create(broker, creation("a", 4))
    await commit(broker, {"a": [(0, 1, ""), (1, 2, "")]})
    await stage(broker, {1: 5, 2: 6})
    before = [(0, 1, "none"), (1, 2, "none"), (2, -1, "none")]
    assert await ask(broker, version, [0, 1, 2], False) == before
    if version >= 7:
        unstable = [(at, -1, "unstable_offset_commit") for at in (1, 2)]
        assert await ask(broker, version, [0, 1, 2], True) == [before[0], *unstable]
        assert await ask(broker, version, None, True) == [before[0], unstable[0]]
    await save(broker, None, "commit")
    after = [(0, 1, "none"), (1, 5, "none"), (2, 6, "none")]
    assert await ask(broker, version, [0, 1, 2], version >= 7) == after


async def test_pending_offsets_do_not_expire(broker: BrokerServer) -> None:
    clock = Clock()
    give(broker, clock=clock)
    await create(broker, creation("a", 2))
    await commit(broker, {"a": [(0, 1, ""), (1, 2, "")]})
    await stage(broker, {0: 5})
    clock.ms += broker.settings.offsets_retention_minutes * MINUTE_MS
    assert await broker.coordinator.expire_offsets() == 1
    assert positions(await fetch(broker, None)) == [[(0, -1, "")]], "not stable, but there"
    clock.ms += 10 * MINUTE_MS
    await broker.coordinator.expire_offsets()
    assert [group.group_id for group in await broker.coordinator.list_groups()] == ["g"]
    await save(broker, None, "abort")
    assert await broker.coordinator.expire_offsets() == 1


async def test_pending_offsets_are_deleted_with_others(broker: BrokerServer) -> None:
    await create(broker, creation("a", 2))
    await stage(broker, {0: 5, 1: 6})
    response = await call(broker, "OffsetDelete", 0, deletion("g", "a"))
    assert [names(p.error_code) for p in response.topics[0].partitions] == ["none"]
    await save(broker, None, "commit")
    assert positions(await fetch(broker, None)) == [[(1, 6, "")]]
    await stage(broker, {0: 7})
    response = await call(broker, "DeleteGroups", 2, {"groups_names": ["g"]})
    assert [names(result.error_code) for result in response.results] == ["none"]
    await save(broker, None, "commit")
    assert positions(await fetch(broker, None)) == []
