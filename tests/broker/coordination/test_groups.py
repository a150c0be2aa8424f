"""Group coordinator: saves before responses, fencing, restarts, expiry, and an orderly stop."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from penstock.broker.groups.runtime.runtime import CATCH_UP_MS
from penstock.broker.groups.runtime.saving import CoordinatorNotAvailable, owner_of
from penstock.broker.server import BrokerServer
from penstock.control import (
    Broker,
    CommittedOffset,
    ControlPlane,
    ControlUnavailable,
    CoordinationRecord,
    MemoryControlPlane,
    MetadataImage,
    RecordChange,
    SavedRecords,
    SqliteControlPlane,
    StaleClusterEpoch,
)
from tests.broker.handlers.calls import names
from tests.broker.handlers.conftest import broker, give
from tests.broker.handlers.test_groups import describe, heartbeat, join, leave, sync
from tests.broker.handlers.test_offsets import commit, fetch, positions
from tests.broker.handlers.test_topics import create, creation

__all__ = ["broker"]

MINUTE_MS = 60_000


class Control(MemoryControlPlane):
    """A control plane whose saves can be delayed or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.stores_before_it_fails = False
        self.transactions: list[int] = []
        self.reads: list[Sequence[str]] = []

    async def records(self, kind: str, keys: Sequence[str]) -> list[CoordinationRecord]:
        self.reads.append(keys)
        return await super().records(kind, keys)

    async def save_records(
        self, changes: Sequence[RecordChange], *, cluster_epoch: int | None = None
    ) -> SavedRecords:
        self.transactions.append(len(changes))
        await self.gate.wait()
        save = partial(super().save_records, changes, cluster_epoch=cluster_epoch)
        if self.failure is not None:
            if self.stores_before_it_fails:
                await save()
            raise self.failure
        return await save()


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


async def take_over(broker: BrokerServer, control: Control) -> Control:
    """Give the broker another control plane, with the same broker registered."""
    await control.register_broker(
        broker_id=1, host="127.0.0.1", port=9092, rack=None, incarnation=UUID(int=1)
    )
    await control.register_broker(
        broker_id=1, host="127.0.0.1", port=9093, rack=None, incarnation=UUID(int=2)
    )
    give(broker, control=control)
    await broker.cluster.refresh()
    return control


async def restart(broker: BrokerServer) -> None:
    await broker.coordinator.stop()
    give(broker)


async def saved_groups(control: ControlPlane) -> list[str]:
    return await control.record_keys("group")


async def saved_group(control: ControlPlane, group_id: str) -> dict[str, Any]:
    """Return the row of a group itself."""
    first = (await control.records("group", [group_id]))[0]
    saved: dict[str, Any] = json.loads(first.value)
    return saved


async def save_as_another(control: ControlPlane, group_id: str, **fields: Any) -> None:
    """Change the row of a group as another coordinator would."""
    rows = await control.records("group", [group_id])
    saved = json.loads(rows[0].value) if rows else dict(NEW)
    version = rows[0].version if rows else 0
    value = json.dumps({**saved, **fields}).encode()
    change = RecordChange(kind="group", key=group_id, expected_version=version, rows={"": value})
    done = await control.save_records([change])
    assert not done.refused


NEW = {
    "format": 2,
    "generation": 7,
    "protocol_type": "consumer",
    "protocol": "",
    "epoch": 0,
    "leader": "",
}


async def test_an_assignment_is_answered_once_it_is_saved(broker: BrokerServer) -> None:
    control = await take_over(broker, Control())
    joined = await join(broker, "g")
    control.gate.clear()
    waiting = asyncio.create_task(sync(broker, "g", joined, {joined.member_id: b"mine"}))
    assert await heartbeat(broker, "g", 1, joined.member_id) == "none"
    assert not waiting.done()
    control.gate.set()
    assert (await waiting).assignment == b"mine"
    assert (await saved_group(control, "g"))["generation"] == 1


async def test_saves_of_many_groups_are_one_transaction(broker: BrokerServer) -> None:
    control = await take_over(broker, Control())
    members = {f"g{number}": await join(broker, f"g{number}") for number in range(40)}
    answers = await asyncio.gather(
        *(
            sync(broker, group, joined, {joined.member_id: b"mine"})
            for group, joined in members.items()
        )
    )
    assert [answer.assignment for answer in answers] == [b"mine"] * 40
    assert control.transactions == [40]
    (member, *_) = members.values()
    assert len(await control.records("group", ["g0"])) == 2
    again = await join(broker, "g0", member=member.member_id, topics=("b",))
    await sync(broker, "g0", again, {again.member_id: b"mine"})
    assert control.transactions == [40, 1]


async def test_a_group_is_read_alone(broker: BrokerServer) -> None:
    control = await take_over(broker, Control())
    members = {f"g{number}": await join(broker, f"g{number}") for number in range(3)}
    for group, joined in members.items():
        await sync(broker, group, joined, {joined.member_id: b"mine"})
    await restart(broker)
    control.reads.clear()
    assert await heartbeat(broker, "g1", 1, members["g1"].member_id) == "none"
    assert control.reads[0] == ["g1"]
    assert len(await broker.coordinator.list_groups()) == 3
    assert sorted(control.reads[1]) == ["g0", "g2"]


async def test_a_save_that_fails_is_an_error_to_the_member(broker: BrokerServer) -> None:
    control = await take_over(broker, Control())
    joined = await join(broker, "g")
    control.failure = ControlUnavailable("the disk is full")
    answer = await sync(broker, "g", joined, {joined.member_id: b"mine"})
    assert names(answer.error_code) in ("coordinator_not_available", "rebalance_in_progress")
    control.failure = None
    again = await join(broker, "g", member=joined.member_id)
    answer = await sync(broker, "g", again, {joined.member_id: b"mine"})
    assert (names(answer.error_code), answer.assignment) == ("none", b"mine")


async def test_another_coordinator_fences_this_one(broker: BrokerServer) -> None:
    control = await take_over(broker, Control())
    joined = await join(broker, "g")
    await save_as_another(control, "g")
    answer = await sync(broker, "g", joined, {joined.member_id: b"mine"})
    assert names(answer.error_code) == "not_coordinator"


async def test_members_continue_after_a_restart(broker: BrokerServer) -> None:
    joined = await join(broker, "g")
    await sync(broker, "g", joined, {joined.member_id: b"mine"})
    await restart(broker)
    assert await heartbeat(broker, "g", 1, joined.member_id) == "none"
    (group,) = await describe(broker, "g")
    assert group.group_state == "Stable"
    assert group.members[0].member_assignment == b"mine"


async def test_an_unreadable_record_affects_no_other_group(broker: BrokerServer) -> None:
    await broker.control.save_records(
        [RecordChange(kind="group", key="broken", expected_version=0, rows={"": b"?", "m": b"?"})]
    )
    assert names((await join(broker, "g")).error_code) == "none"
    joined = await join(broker, "broken")
    answer = await sync(broker, "broken", joined, {joined.member_id: b"mine"})
    assert (names(answer.error_code), answer.assignment) == ("none", b"mine")
    assert (await saved_group(broker.control, "broken"))["generation"] == 1


async def test_sessions_expire(broker: BrokerServer) -> None:
    clock = Clock()
    give(broker, clock=clock)
    joined = await join(broker, "g", session_ms=100)
    await sync(broker, "g", joined, {joined.member_id: b"mine"})
    assert (await describe(broker, "g"))[0].group_state == "Stable"
    clock.ms += 101
    async with asyncio.timeout(60):
        while (await describe(broker, "g"))[0].group_state != "Empty":
            await asyncio.sleep(0.01)


async def test_queued_heartbeats_are_read_before_sessions_expire_after_a_suspension(
    broker: BrokerServer,
) -> None:
    clock = Clock()
    give(broker, clock=clock)
    members = {}
    for group in ("heard", "silent"):
        joined = members[group] = await join(broker, group)
        await sync(broker, group, joined, {joined.member_id: b"mine"})
    ticker = broker.coordinator.runtime.ticker
    clock.ms += 60_000
    ticker.ring()  # before the heartbeats that lie in the sockets are read
    assert await heartbeat(broker, "heard", 1, members["heard"].member_id) == "none"
    clock.ms += CATCH_UP_MS
    ticker.ring()
    heard, silent = await describe(broker, "heard", "silent")
    assert (heard.group_state, silent.group_state) == ("Stable", "Empty")


async def test_stop_answers_waiting_requests(broker: BrokerServer) -> None:
    first = await join(broker, "g")
    await sync(broker, "g", first, {first.member_id: b"mine"})
    waiting = asyncio.create_task(join(broker, "g"))
    while await heartbeat(broker, "g", 1, first.member_id) == "none":
        await asyncio.sleep(0)
    await broker.coordinator.stop()
    assert names((await waiting).error_code) == "not_coordinator"
    assert await heartbeat(broker, "g", 1, first.member_id) == "coordinator_not_available"


async def test_offsets_expire_after_their_group_was_last_seen(broker: BrokerServer) -> None:
    clock = Clock()
    give(broker, clock=clock)
    retention_ms = broker.settings.offsets_retention_minutes * MINUTE_MS
    await create(broker, creation("a"))
    joined = await join(broker, "g")
    await sync(broker, "g", joined, {joined.member_id: b"mine"})
    member = {"generation": joined.generation_id, "member": joined.member_id}
    await commit(broker, {"a": [(0, 5, "")]}, **cast("Any", member))
    await commit(broker, {"a": [(0, 6, "")]}, group="simple")
    await commit(broker, {"a": [(0, 7, "")]}, group="brief", version=4, retention_ms=1000)

    clock.ms += 2000
    assert await heartbeat(broker, "g", 1, joined.member_id) == "none"
    assert await broker.coordinator.expire_offsets() == 1
    assert positions(await fetch(broker, None, group="brief")) == []

    clock.ms += retention_ms
    assert await broker.coordinator.expire_offsets() == 1
    assert positions(await fetch(broker, None, group="simple")) == []
    assert positions(await fetch(broker, None)) == [[(0, 5, "")]]

    await leave(broker, "g", joined.member_id)
    clock.ms += retention_ms - 1
    assert await broker.coordinator.expire_offsets() == 0
    clock.ms += 1
    assert await broker.coordinator.expire_offsets() == 1
    assert positions(await fetch(broker, None)) == []
    clock.ms += 10 * MINUTE_MS
    await broker.coordinator.expire_offsets()
    async with asyncio.timeout(60):
        while await broker.coordinator.list_groups():
            await asyncio.sleep(0)


async def test_members_keep_their_offsets(broker: BrokerServer) -> None:
    clock = Clock()
    give(broker, clock=clock)
    await create(broker, creation("a"))
    joined = await join(broker, "g", session_ms=1_800_000)
    await sync(broker, "g", joined, {joined.member_id: b"mine"})
    member = {"generation": joined.generation_id, "member": joined.member_id}
    await commit(broker, {"a": [(0, 5, "")]}, **cast("Any", member))
    for _ in range(broker.settings.offsets_retention_minutes // 20 + 5):
        clock.ms += 20 * MINUTE_MS
        assert await heartbeat(broker, "g", 1, joined.member_id) == "none"
        assert await broker.coordinator.expire_offsets() == 0
    assert positions(await fetch(broker, None)) == [[(0, 5, "")]]


def test_every_key_has_one_owner() -> None:
    brokers = tuple(
        Broker(
            broker_id=broker_id,
            host="h",
            port=1,
            rack=None,
            incarnation=UUID(int=broker_id),
            epoch=1,
        )
        for broker_id in (3, 1, 2)
    )
    image = MetadataImage(version=1, cluster_id="c", brokers=brokers)
    turned = MetadataImage(version=1, cluster_id="c", brokers=brokers[::-1])
    owners = [owner_of(image, f"group-{number}").broker_id for number in range(300)]
    assert owners == [owner_of(turned, f"group-{number}").broker_id for number in range(300)]
    assert all(owners.count(broker_id) > 50 for broker_id in (1, 2, 3))
    with pytest.raises(CoordinatorNotAvailable):
        owner_of(MetadataImage(version=1, cluster_id="c"), "g")


async def test_other_coordinators_groups_are_refused(broker: BrokerServer) -> None:
    for broker_id in (2, 3, 4):
        await broker.control.register_broker(
            broker_id=broker_id, host="h", port=1, rack=None, incarnation=UUID(int=broker_id)
        )
    await broker.cluster.refresh()
    group = next(
        f"g{number}"
        for number in range(100)
        if owner_of(broker.cluster.image, f"g{number}").broker_id != 1
    )
    await create(broker, creation("a"))
    assert names((await join(broker, group)).error_code) == "not_coordinator"
    assert await commit(broker, {"a": [(0, 1, "")]}, group=group) == [["not_coordinator"]]
    assert names((await fetch(broker, None, group=group)).error_code) == "not_coordinator"


async def register(broker: BrokerServer, broker_id: int) -> None:
    await broker.control.register_broker(
        broker_id=broker_id, host="h", port=1, rack=None, incarnation=UUID(int=broker_id)
    )
    await broker.cluster.refresh()


def owned_by(broker_id: int) -> str:
    """Return a group that this one of the brokers 1 and 2 owns."""
    brokers = tuple(
        Broker(broker_id=number, host="h", port=1, rack=None, incarnation=UUID(int=number), epoch=1)
        for number in (1, 2)
    )
    image = MetadataImage(version=1, cluster_id="c", brokers=brokers)
    return next(
        f"g{number}"
        for number in range(100)
        if owner_of(image, f"g{number}").broker_id == broker_id
    )


async def test_groups_go_to_the_broker_that_comes_and_return_when_it_goes(
    broker: BrokerServer,
) -> None:
    broker.cluster.on_image.append(broker.coordinator.image_changed)
    mine, other = owned_by(1), owned_by(2)
    members = {}
    for group in (mine, other):
        joined = members[group] = await join(broker, group)
        await sync(broker, group, joined, {joined.member_id: b"mine"})
    waiting = asyncio.create_task(join(broker, other))
    while await heartbeat(broker, other, 1, members[other].member_id) == "none":
        await asyncio.sleep(0)
    await register(broker, 2)
    assert names((await waiting).error_code) == "not_coordinator"
    assert [group.group_id for group in await broker.coordinator.list_groups()] == [mine]
    assert await heartbeat(broker, mine, 1, members[mine].member_id) == "none"

    await save_as_another(broker.control, other, generation=6)
    await broker.control.unregister_broker(broker_id=2, incarnation=UUID(int=2))
    await broker.cluster.refresh()
    assert await heartbeat(broker, mine, 1, members[mine].member_id) == "none"
    assert await heartbeat(broker, other, 6, members[other].member_id) == "none"


async def test_what_others_own_is_neither_loaded_nor_expired_nor_deleted(
    broker: BrokerServer,
) -> None:
    clock = Clock()
    give(broker, clock=clock)
    mine, other = owned_by(1), owned_by(2)
    await create(broker, creation("a"))
    for group in (mine, other):
        joined = await join(broker, group)
        await sync(broker, group, joined, {joined.member_id: b"mine"})
        await leave(broker, group, joined.member_id)
        await commit(broker, {"a": [(0, 1, "")]}, group=group)
    await restart(broker)
    await register(broker, 2)
    assert [group.group_id for group in await broker.coordinator.list_groups()] == [mine]
    for _ in range(2):
        clock.ms += (broker.settings.offsets_retention_minutes + 10) * MINUTE_MS
        await broker.coordinator.expire_offsets()
    async with asyncio.timeout(60):
        while len(await saved_groups(broker.control)) > 1:
            await asyncio.sleep(0)
    assert await saved_groups(broker.control) == [other]
    assert await broker.control.offset_group_ids() == [other]


async def test_generations_rise_with_the_registered_epoch(broker: BrokerServer) -> None:
    control = await take_over(broker, Control())
    joined = await join(broker, "g")
    await sync(broker, "g", joined, {joined.member_id: b"mine"})
    assert (await saved_group(control, "g"))["epoch"] == 2


@pytest.mark.parametrize("stored", [True, False])
async def test_a_save_of_unknown_outcome_does_not_fence_itself(
    broker: BrokerServer, stored: bool
) -> None:
    control = await take_over(broker, Control())
    joined = await join(broker, "g")
    control.failure = ControlUnavailable("the answer was lost")
    control.stores_before_it_fails = stored
    answer = await sync(broker, "g", joined, {joined.member_id: b"mine"})
    assert (names(answer.error_code) == "none") is stored
    control.failure = None
    again = await join(broker, "g", member=joined.member_id)
    answer = await sync(broker, "g", again, {joined.member_id: b"mine"})
    assert (names(answer.error_code), answer.assignment) == ("none", b"mine")


async def test_a_lost_answer_is_not_taken_for_another_coordinators_save(
    broker: BrokerServer,
) -> None:
    control = await take_over(broker, Control())
    joined = await join(broker, "g")
    await save_as_another(control, "g")
    control.failure = ControlUnavailable("the answer was lost")
    answer = await sync(broker, "g", joined, {joined.member_id: b"mine"})
    assert names(answer.error_code) == "not_coordinator"


async def test_commits_are_durable_and_many_at_a_time(broker: BrokerServer, tmp_path: Path) -> None:
    control = SqliteControlPlane(tmp_path / "control.db")
    await control.start()
    try:
        offset = CommittedOffset(topic_id=UUID(int=1), topic="a", partition=0, offset=3)
        give(broker, control=control)
        await register(broker, broker.node_id)
        await asyncio.gather(
            *(broker.coordinator.commit(f"g{number}", [offset]) for number in range(200))
        )
        assert len(await control.offset_group_ids()) == 200
    finally:
        await control.close()


async def unheard(broker: BrokerServer, broker_id: int) -> None:
    """Register another broker without a refresh of this one's image."""
    await broker.control.register_broker(
        broker_id=broker_id, host="h", port=1, rack=None, incarnation=UUID(int=broker_id)
    )


async def test_a_commit_does_not_wait_longer_than_its_limit(
    broker: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats wait for it on the same connection."""

    async def never(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(broker.control, "commit_offsets_of", never)
    broker.settings = replace(broker.settings, offsets_commit_timeout_ms=10)
    give(broker)
    offset = CommittedOffset(topic_id=UUID(int=1), topic="b", partition=0, offset=3)
    with pytest.raises(CoordinatorNotAvailable, match=r"offsets\.commit\.timeout\.ms = 10"):
        await asyncio.wait_for(broker.coordinator.commit("g", [offset]), 60)


async def test_a_stale_coordinator_stores_nothing_for_keys_of_others(
    broker: BrokerServer,
) -> None:
    broker.cluster.on_image.append(broker.coordinator.image_changed)
    await create(broker, creation("a"))
    other = owned_by(2)
    joined = await join(broker, other)
    await unheard(broker, 2)
    answer = await sync(broker, other, joined, {joined.member_id: b"mine"})
    assert names(answer.error_code) == "not_coordinator"
    assert await saved_groups(broker.control) == []
    assert [broker.broker_id for broker in broker.cluster.image.brokers] == [1, 2]

    await unheard(broker, 3)
    offset = CommittedOffset(topic_id=UUID(int=1), topic="b", partition=0, offset=3)
    with pytest.raises(StaleClusterEpoch):
        await broker.coordinator.commit(other, [offset])
    assert [broker.broker_id for broker in broker.cluster.image.brokers] == [1, 2, 3]
    await unheard(broker, 4)
    with pytest.raises(StaleClusterEpoch):
        await broker.coordinator.delete_offsets(other, [("b", 0)])
    assert await broker.control.offset_group_ids() == []


async def test_a_group_that_stays_is_saved_although_brokers_came(broker: BrokerServer) -> None:
    broker.cluster.on_image.append(broker.coordinator.image_changed)
    mine = owned_by(1)
    joined = await join(broker, mine)
    await unheard(broker, 2)
    answer = await sync(broker, mine, joined, {joined.member_id: b"mine"})
    assert (names(answer.error_code), answer.assignment) == ("none", b"mine")
    assert await saved_groups(broker.control) == [mine]


async def test_a_group_that_was_anothers_unseen_is_loaded_again(broker: BrokerServer) -> None:
    broker.cluster.on_image.append(broker.coordinator.image_changed)
    mine, other, gone = owned_by(1), owned_by(2), owned_by(2) + "0"
    members = {}
    for group in (mine, other, gone):
        joined = members[group] = await join(broker, group)
        await sync(broker, group, joined, {joined.member_id: b"mine"})
    await unheard(broker, 2)
    await save_as_another(broker.control, other, generation=6)
    first, *others = await broker.control.records("group", [gone])
    rows = dict.fromkeys(["", *(row.member for row in others)])
    await broker.control.save_records(
        [RecordChange(kind="group", key=gone, expected_version=first.version, rows=rows)]
    )
    await broker.control.unregister_broker(broker_id=2, incarnation=UUID(int=2))
    await broker.cluster.refresh()
    assert await heartbeat(broker, mine, 1, members[mine].member_id) == "none"
    assert await heartbeat(broker, other, 6, members[other].member_id) == "none"
    assert await heartbeat(broker, gone, 1, members[gone].member_id) == "unknown_member_id"
