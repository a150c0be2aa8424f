"""Brokers live, expire and fence: one contract for all forms of the control plane."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from penstock.control import (
    CommittedOffset,
    ControlPlane,
    StaleBroker,
    StaleClusterEpoch,
)

A, B = UUID(int=1), UUID(int=2)
OFFSET = CommittedOffset(topic_id=A, topic="t", partition=0, offset=7)
Elapse = Callable[[int], Awaitable[None]]


async def register(control: ControlPlane, broker_id: int, incarnation: UUID = A) -> int:
    broker = await control.register_broker(
        broker_id=broker_id, host="h", port=1, rack=None, incarnation=incarnation
    )
    return broker.epoch


async def cluster_epoch(control: ControlPlane) -> int:
    return (await control.image()).cluster_epoch


async def registered(control: ControlPlane) -> list[int]:
    return [broker.broker_id for broker in (await control.image()).brokers]


async def test_the_membership_rises_with_every_change_of_brokers(control: ControlPlane) -> None:
    seen = [await cluster_epoch(control)]
    await register(control, 1)
    seen.append(await cluster_epoch(control))
    await register(control, 1)
    assert await cluster_epoch(control) == seen[-1], "the same registration changes nothing"
    await register(control, 2)
    seen.append(await cluster_epoch(control))
    await register(control, 1, B)
    seen.append(await cluster_epoch(control))
    await control.unregister_broker(broker_id=2, incarnation=A)
    seen.append(await cluster_epoch(control))
    assert seen == sorted(set(seen))
    await control.create_topic(name="t", topic_id=A, partitions=[[1]], configs={})
    assert await cluster_epoch(control) == seen[-1], "a topic is no member"
    await control.close()
    await control.start()
    assert await cluster_epoch(control) >= seen[-1]


async def test_a_broker_that_renews_stays_and_others_expire(
    control: ControlPlane, elapse: Elapse
) -> None:
    for broker_id in (1, 2, 3):
        await register(control, broker_id)
    assert await control.expire_brokers(90_000, by=2) == []
    before = await control.image()
    await elapse(80_000)
    await control.renew_broker(broker_id=2, incarnation=A)
    assert await control.image() is before, "a renewal is no change of metadata"
    await elapse(20_000)
    await control.renew_broker(broker_id=2, incarnation=A)
    assert await control.expire_brokers(90_000, by=2) == [1, 3]
    assert await control.expire_brokers(90_000, by=2) == []
    after = await control.image()
    assert [broker.broker_id for broker in after.brokers] == [2]
    assert (after.version, after.cluster_epoch) == (before.version + 1, before.cluster_epoch + 1)


async def test_time_alone_expires_no_broker(control: ControlPlane, elapse: Elapse) -> None:
    """An outage of the control plane ages all registrations equally."""
    for broker_id in (1, 2):
        await register(control, broker_id)
    await elapse(100_000)
    assert await control.expire_brokers(90_000, by=1) == []
    assert await control.expire_brokers(90_000, by=9) == [], "who looks is not registered"
    assert await registered(control) == [1, 2]


async def test_an_expired_broker_detects_it_and_registers_again(
    control: ControlPlane, elapse: Elapse
) -> None:
    epoch = await register(control, 1)
    await elapse(100_000)
    await register(control, 2)
    assert await control.expire_brokers(90_000, by=2) == [1]
    with pytest.raises(StaleBroker, match="not registered") as caught:
        await control.renew_broker(broker_id=1, incarnation=A)
    assert not caught.value.registered
    assert await register(control, 1) > epoch
    await control.renew_broker(broker_id=1, incarnation=A)
    assert await control.expire_brokers(90_000, by=2) == []


async def test_a_superseded_broker_learns_it(control: ControlPlane) -> None:
    await register(control, 1, A)
    await register(control, 1, B)
    with pytest.raises(StaleBroker, match="newer incarnation") as caught:
        await control.renew_broker(broker_id=1, incarnation=A)
    assert caught.value.registered
    assert await registered(control) == [1]


async def test_a_coordinator_of_an_old_membership_writes_nothing(control: ControlPlane) -> None:
    await register(control, 1)
    old = await cluster_epoch(control)
    await control.commit_offsets(group_id="g", offsets=[OFFSET], cluster_epoch=old)
    await register(control, 2)
    new = await cluster_epoch(control)
    with pytest.raises(StaleClusterEpoch) as caught:
        await control.commit_offsets(
            group_id="g",
            offsets=[CommittedOffset(topic_id=A, topic="t", partition=0, offset=9)],
            cluster_epoch=old,
        )
    assert (caught.value.expected, caught.value.found) == (old, new)
    assert caught.value.code == "not_coordinator"
    with pytest.raises(StaleClusterEpoch):
        await control.delete_offsets(group_id="g", partitions=[("t", 0)], cluster_epoch=old)
    assert await control.committed_offsets("g", None) == [OFFSET]


async def test_a_coordinator_of_the_new_cluster_epoch_may_commit(control: ControlPlane) -> None:
    await register(control, 1)
    await register(control, 2)
    new = await cluster_epoch(control)
    await control.commit_offsets(group_id="g", offsets=[OFFSET], cluster_epoch=new)
    await control.delete_offsets(group_id="g", partitions=[("t", 0)], cluster_epoch=new)
    assert await control.offset_group_ids() == []


async def test_a_watch_is_taken_before_the_start(control: ControlPlane) -> None:
    calls: list[object] = []
    await control.close()
    control.watch(lambda: calls.append("image"), calls.append)
    await control.start()
    await register(control, 1)
    await control.create_topic(name="t", topic_id=A, partitions=[[1]], configs={})
    assert await registered(control) == [1]
    assert calls == [], "one's own changes are no news"
