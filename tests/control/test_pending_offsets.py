"""Pending offsets of transactions: staged, invisible, and completed with the decision."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from msgspec.structs import replace

from penstock.base.errors import BugError, CorruptError
from penstock.control import (
    GROUP_MEMBER,
    CommittedOffset,
    ControlPlane,
    NotInTransaction,
    OffsetsEnd,
    OpenTransaction,
    RecordChange,
    SqliteControlPlane,
    StaleClusterEpoch,
    StaleProducerEpoch,
    TooLarge,
)
from penstock.control.drivers.sqlite_writer import LOOP_ROWS_MAX
from penstock.control.values.coordination import producer_of_group_row
from tests.control.conftest import ManualClock
from tests.control.test_postgres import planes
from tests.control.test_sqlite_shared import shared

A, B = UUID(int=1), UUID(int=2)


def offset(value: int, /, partition: int = 0, **more: object) -> CommittedOffset:
    made = CommittedOffset(topic_id=A, topic="t", partition=partition, offset=value)
    return replace(made, **more)


class Producer:
    """A transactional producer, and what its coordinator saves."""

    def __init__(self, control: ControlPlane, name: str = "tx", producer_id: int = 7) -> None:
        self.control = control
        self.open = OpenTransaction(
            transactional_id=name, producer_id=producer_id, producer_epoch=0
        )
        self.version = 0
        self.groups: set[str] = set()

    async def save(self, groups: set[str], end: OffsetsEnd | None = None) -> None:
        rows: dict[str, bytes | None] = {GROUP_MEMBER + group: None for group in self.groups}
        rows |= {GROUP_MEMBER + group: self.open.group_row for group in groups}
        change = RecordChange(
            kind="transaction",
            key=self.open.transactional_id,
            expected_version=self.version,
            rows={"": b"the transaction", **rows},
            completes_offsets=end,
        )
        saved = await self.control.save_records([change])
        assert not saved.refused
        self.version, self.groups = saved.version, groups

    async def add(self, *groups: str) -> None:
        await self.save(self.groups | set(groups))

    async def stage(self, group: str, *offsets: CommittedOffset) -> None:
        await self.control.stage_offsets(transaction=self.open, group_id=group, offsets=offsets)

    async def end(self, end: OffsetsEnd) -> None:
        await self.save(set(), end)


async def committed(control: ControlPlane, group: str = "g") -> list[tuple[int, int]]:
    return [
        (committed_offset.partition, committed_offset.offset)
        for committed_offset in await control.committed_offsets(group, None)
    ]


async def unstable(
    control: ControlPlane, group: str = "g", of: list[tuple[str, int]] | None = None
) -> set[tuple[str, int]]:
    return set((await control.stable_offsets(group, of)).unstable)


async def test_offsets_are_seen_with_the_commit(control: ControlPlane) -> None:
    await control.commit_offsets(group_id="g", offsets=[offset(1), offset(1, 2)])
    producer = Producer(control)
    await producer.add("g", "h")
    brought = offset(5, 1, metadata="why", leader_epoch=3, commit_timestamp_ms=77)
    await producer.stage("g", offset(4), brought)
    await producer.stage("h", offset(9))
    stable = await control.stable_offsets("g", None)
    assert list(stable.committed) == [offset(1), offset(1, 2)]
    assert stable.unstable == {("t", 0), ("t", 1)}
    assert await unstable(control, of=[("t", 1), ("t", 2), ("u", 0)]) == {("t", 1)}
    await producer.end("commit")
    stable = await control.stable_offsets("g", None)
    assert list(stable.committed) == [offset(4), brought, offset(1, 2)]
    assert not stable.unstable
    assert await committed(control, "h") == [(0, 9)]


async def test_aborted_offsets_are_dropped(control: ControlPlane) -> None:
    await control.commit_offsets(group_id="g", offsets=[offset(1)])
    producer = Producer(control)
    await producer.add("g")
    await producer.stage("g", offset(4), offset(5, 1))
    await producer.end("abort")
    assert await committed(control) == [(0, 1)]
    assert await unstable(control) == set()
    await producer.add("g")
    await producer.end("commit")
    assert await committed(control) == [(0, 1)]


async def test_others_transactions_are_left_alone(control: ControlPlane) -> None:
    one, other = Producer(control), Producer(control, "tx2", 8)
    await one.add("g")
    await other.add("g")
    await one.stage("g", offset(4))
    await other.stage("g", offset(5, 1))
    await one.end("commit")
    assert await committed(control) == [(0, 4)]
    assert await unstable(control) == {("t", 1)}
    await other.end("commit")
    assert await committed(control) == [(0, 4), (1, 5)]


async def test_a_group_that_is_not_part_of_the_transaction_stages_nothing(
    control: ControlPlane,
) -> None:
    producer = Producer(control)
    with pytest.raises(NotInTransaction, match=r"'tx' does not include the offsets of group 'g'"):
        await producer.stage("g", offset(4))
    await producer.add("g")
    with pytest.raises(NotInTransaction):
        await producer.stage("other", offset(4))
    await producer.end("commit")
    with pytest.raises(NotInTransaction):
        await producer.stage("g", offset(4))
    assert await control.offset_group_ids() == []


async def test_producers_of_other_ids_and_epochs_stage_nothing(control: ControlPlane) -> None:
    producer = Producer(control)
    zombie = producer.open
    producer.open = replace(zombie, producer_epoch=1)
    await producer.add("g")
    for wrong, refusal in (
        (zombie, StaleProducerEpoch),
        (replace(zombie, producer_epoch=2), NotInTransaction),
        (replace(zombie, producer_id=6), NotInTransaction),
    ):
        with pytest.raises(refusal):
            await control.stage_offsets(transaction=wrong, group_id="g", offsets=[offset(4)])
    assert await unstable(control) == set()


async def test_many_transactions_are_completed_at_once(control: ControlPlane) -> None:
    producers = [Producer(control, f"tx{number}", number) for number in range(3)]
    for number, producer in enumerate(producers):
        await producer.add("g")
        await producer.stage("g", offset(number, number))
    ends: list[OffsetsEnd] = ["commit", "abort", "commit"]
    saved = await control.save_records(
        [
            RecordChange(
                kind="transaction",
                key=producer.open.transactional_id,
                expected_version=producer.version + (number == 2),
                rows={"": b"decided", "group/g": None},
                completes_offsets=end,
            )
            for (number, producer), end in zip(enumerate(producers), ends, strict=True)
        ]
    )
    assert list(saved.refused) == [("transaction", "tx2")]
    assert await committed(control) == [(0, 0)]
    assert await unstable(control) == {("t", 2)}, "a rejected change completes nothing"


async def test_a_transaction_does_not_leave_groups_in_doubt(control: ControlPlane) -> None:
    producer = Producer(control)
    await producer.add("g")
    with pytest.raises(BugError, match="from transaction 'tx' without completing"):
        await producer.save(set())
    other_kind = RecordChange(
        kind="group", key="tx", expected_version=0, rows={"": b"0", "group/g": None}
    )
    assert not (await control.save_records([other_kind])).refused


def test_a_group_row_of_another_form() -> None:
    with pytest.raises(CorruptError, match="has 3 bytes, not 10"):
        producer_of_group_row(b"abc")


# In which order


async def test_what_was_brought_last_counts(control: ControlPlane) -> None:
    one, other = Producer(control), Producer(control, "tx2", 8)
    await one.add("g")
    await other.add("g")
    await one.stage("g", offset(4), offset(5, 1))
    await other.stage("g", offset(6), offset(7, 1), offset(8, 2))
    await one.stage("g", offset(9, 1))
    await other.end("commit")
    assert await committed(control) == [(0, 6), (1, 7), (2, 8)]
    await one.end("commit")
    assert await committed(control) == [(0, 6), (1, 9), (2, 8)]


async def test_what_aborts_overtakes_nothing(control: ControlPlane) -> None:
    one, other = Producer(control), Producer(control, "tx2", 8)
    await one.add("g")
    await other.add("g")
    await one.stage("g", offset(4))
    await other.stage("g", offset(6))
    await other.end("abort")
    await one.end("commit")
    assert await committed(control) == [(0, 4)]


async def test_a_later_commit_without_a_transaction_counts(control: ControlPlane) -> None:
    producer = Producer(control)
    await producer.add("g", "h")
    await producer.stage("g", offset(4), offset(5, 1))
    await producer.stage("h", offset(4))
    await control.commit_offsets(group_id="g", offsets=[offset(6)])
    assert await unstable(control) == {("t", 0), ("t", 1)}
    await producer.end("commit")
    assert await committed(control) == [(0, 6), (1, 5)]
    assert await committed(control, "h") == [(0, 4)]


async def test_offsets_brought_again_are_the_newest(control: ControlPlane) -> None:
    producer = Producer(control)
    await producer.add("g")
    await producer.stage("g", offset(4), offset(5))
    await control.commit_offsets(group_id="g", offsets=[offset(6)])
    await producer.stage("g", offset(7))
    await producer.end("commit")
    assert await committed(control) == [(0, 7)]


# Deletion, retention, bounds


async def test_deleted_offsets_are_not_committed(control: ControlPlane) -> None:
    producer = Producer(control)
    await producer.add("g", "h")
    await producer.stage("g", offset(4), offset(5, 1))
    await producer.stage("h", offset(4))
    await control.delete_offsets(group_id="g", partitions=[("t", 0)])
    group = RecordChange(kind="group", key="h", expected_version=0, rows={}, deletes_offsets=True)
    await control.save_records([group])
    await producer.end("commit")
    assert await committed(control) == [(1, 5)]
    assert await control.offset_group_ids() == ["g"]


async def test_a_deleted_topic_takes_pending_offsets_along(control: ControlPlane) -> None:
    producer = Producer(control)
    await producer.add("g")
    await control.create_topic(name="t", topic_id=A, partitions=[[1]], configs={})
    await control.create_topic(name="u", topic_id=B, partitions=[[1]], configs={})
    await producer.stage("g", offset(4), offset(5, topic="u", topic_id=B))
    await control.delete_topic(A)
    await control.create_topic(name="t", topic_id=UUID(int=3), partitions=[[1]], configs={})
    await producer.stage("g", offset(6))
    assert await unstable(control) == {("u", 0)}, "offsets of the deleted topic are dropped"
    await control.commit_offsets(group_id="g", offsets=[offset(7)])
    await producer.end("commit")
    assert [
        (committed_offset.topic, committed_offset.offset)
        for committed_offset in await control.committed_offsets("g", None)
    ] == [("u", 5)]


async def test_groups_with_pending_offsets_have_some(control: ControlPlane) -> None:
    producer = Producer(control)
    await producer.add("g")
    await producer.stage("g", offset(4))
    assert await control.offset_group_ids() == ["g"]
    assert await control.groups_with_offsets(["f", "g"]) == ["g"]
    assert await committed(control) == []


async def test_offsets_expire_by_their_group(control: ControlPlane) -> None:
    old = [offset(1, number, commit_timestamp_ms=100) for number in range(4)]
    own = offset(1, 4, commit_timestamp_ms=100, expire_timestamp_ms=150)
    young = offset(1, 5, commit_timestamp_ms=101)
    await control.commit_offsets(group_id="g", offsets=[*old, own, young])
    await control.commit_offsets(group_id="h", offsets=old)
    producer = Producer(control)
    await producer.add("g")
    await producer.stage("g", offset(2, 3), offset(2, 4))

    async def expire(limit: int) -> int:
        return await control.expire_offsets_of(group_id="g", committed_by_ms=100, limit=limit)

    assert await expire(2) == 2
    assert await expire(9) == 1
    assert await control.expire_offsets(now_ms=200, limit=9) == 0
    assert await committed(control) == [(3, 1), (4, 1), (5, 1)]
    await producer.end("abort")
    assert await expire(9) == 1
    assert await control.expire_offsets(now_ms=200, limit=9) == 1
    assert await committed(control) == [(5, 1)]
    assert len(await committed(control, "h")) == 4


async def test_bounds_and_fences(control: ControlPlane) -> None:
    producer = Producer(control)
    await producer.add("g")
    with pytest.raises(TooLarge, match="100001 offsets in one call"):
        await producer.stage("g", *[offset(1)] * 100_001)
    await control.register_broker(broker_id=1, host="h", port=1, rack=None, incarnation=A)
    epoch = (await control.image()).cluster_epoch
    with pytest.raises(StaleClusterEpoch):
        await control.stage_offsets(
            transaction=producer.open, group_id="g", offsets=[offset(1)], cluster_epoch=epoch - 1
        )
    with pytest.raises(StaleClusterEpoch):
        await control.expire_offsets_of(
            group_id="g", committed_by_ms=1, limit=1, cluster_epoch=epoch - 1
        )
    assert await unstable(control) == set()


# Races


async def race(one: ControlPlane, other: ControlPlane, rounds: int) -> None:
    """Offsets are staged by one broker while another one decides the transaction."""
    staged = refused = 0
    producer = Producer(other)
    for number in range(1, rounds + 1):
        await producer.add("g")
        before = await committed(one)
        bring = one.stage_offsets(
            transaction=producer.open, group_id="g", offsets=[offset(number), offset(number, 1)]
        )
        end: OffsetsEnd = "commit" if number % 2 else "abort"
        brought, ended = await asyncio.gather(bring, producer.end(end), return_exceptions=True)
        assert ended is None
        assert await unstable(one) == set(), "nothing is left in doubt after the decision"
        if brought is None:
            staged += 1
            wanted = [(0, number), (1, number)] if end == "commit" else before
        else:
            assert isinstance(brought, NotInTransaction)
            refused += 1
            wanted = before
        assert await committed(one) == wanted, "offsets that were taken are committed, or none"
    assert staged + refused == rounds


async def storm(opened: list[ControlPlane]) -> None:
    """Producers and a plain committer change the same partitions from all brokers."""
    partitions = range(4)

    async def transactions(number: int) -> None:
        producer = Producer(opened[number % len(opened)], f"tx{number}", number)
        for value in range(8):
            await producer.add("g")
            await producer.stage("g", *(offset(100 * number + value, at) for at in partitions))
            await producer.end("abort" if value % 4 == 3 else "commit")

    async def commits() -> None:
        for value in range(8):
            brought = [offset(10_000 + value, at) for at in reversed(partitions)]
            await opened[0].commit_offsets(group_id="g", offsets=brought)

    await asyncio.gather(commits(), *(transactions(number) for number in range(6)))
    assert await unstable(opened[0]) == set()
    last = {100 * number + value for number in range(6) for value in (4, 5, 6)} | {10_007}
    values = await committed(opened[0])
    assert len(values) == len(partitions)
    assert {value for _, value in values} <= last


async def test_offsets_race_with_the_decision(control: ControlPlane) -> None:
    await race(control, control, 20)
    await storm([control])


async def test_brokers_over_postgres_race(postgres_url: str) -> None:
    async with planes(postgres_url, 2) as (one, other):
        await race(one, other, 60)
        await storm([one, other])


async def test_brokers_over_one_file_race(tmp_path: Path, clock: ManualClock) -> None:
    async with shared(tmp_path / "control.sqlite", clock) as ((one, _, _), (other, _, _)):
        await race(one, other, 30)
        await storm([one, other])


async def waiting_for_a_lock(connection: asyncpg.Connection) -> None:
    """Until another session waits for what this one has locked."""
    async with asyncio.timeout(60):
        while not await connection.fetchval(
            "SELECT count(*) FROM pg_locks WHERE NOT granted"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            " OR NOT granted AND locktype = 'transactionid'"
        ):
            await asyncio.sleep(0.005)


@asynccontextmanager
async def held(url: str, *statements: str) -> AsyncIterator[asyncpg.Connection]:
    """A transaction that has run statements, and is committed at the end."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            for statement in statements:
                await connection.execute(statement)
            yield connection
    finally:
        await connection.close()


async def test_a_decision_waits_for_a_staging_transaction(postgres_url: str) -> None:
    lock = "SELECT 1 FROM coordination_records WHERE member = 'group/g' FOR UPDATE"
    bring = (
        "INSERT INTO pending_offsets VALUES ('g', 't', 0, 'tx',"
        " '00000000-0000-0000-0000-000000000001', 4, -1, '', 0, 1, false)"
    )
    async with planes(postgres_url, 1) as (plane,):
        producer = Producer(plane)
        await producer.add("g")
        async with held(postgres_url, lock, bring) as other:
            ending = asyncio.ensure_future(producer.end("commit"))
            await waiting_for_a_lock(other)
            assert not ending.done()
        await ending
        assert await committed(plane) == [(0, 4)]
        assert await unstable(plane) == set()


async def test_staging_waits_for_a_decision(postgres_url: str) -> None:
    decide = "DELETE FROM coordination_records WHERE member = 'group/g'"
    async with planes(postgres_url, 1) as (plane,):
        producer = Producer(plane)
        await producer.add("g")
        async with held(postgres_url, decide) as other:
            staging = asyncio.ensure_future(producer.stage("g", offset(4)))
            await waiting_for_a_lock(other)
            assert not staging.done()
        with pytest.raises(NotInTransaction):
            await staging
        assert await unstable(plane) == set()


async def test_a_commit_that_waits_for_a_decision_is_the_newest(postgres_url: str) -> None:
    async with planes(postgres_url, 1) as (plane,):
        producer = Producer(plane)
        await producer.add("g")
        await producer.stage("g", offset(4))
        take = "DELETE FROM pending_offsets"
        async with held(postgres_url, take) as other:
            committing = asyncio.ensure_future(
                plane.commit_offsets(group_id="g", offsets=[offset(5)])
            )
            await waiting_for_a_lock(other)
        await committing
        assert await committed(plane) == [(0, 5)]


async def test_a_decision_that_waits_for_a_commit_is_overtaken(postgres_url: str) -> None:
    async with planes(postgres_url, 1) as (plane,):
        producer = Producer(plane)
        await producer.add("g")
        await producer.stage("g", offset(4), offset(5, 1))
        overtake = "UPDATE pending_offsets SET overtaken = true WHERE number = 0"
        async with held(postgres_url, overtake) as other:
            ending = asyncio.ensure_future(producer.end("commit"))
            await waiting_for_a_lock(other)
        await ending
        assert await committed(plane) == [(1, 5)]


@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_sqlite_stores_the_end_of_few_offsets_on_the_event_loop(
    tmp_path: Path, end: OffsetsEnd
) -> None:
    plane = SqliteControlPlane(tmp_path / "metadata.sqlite")
    await plane.start()
    writer: Any = plane._writer
    on_thread = []
    for count in (LOOP_ROWS_MAX - 2, LOOP_ROWS_MAX - 1):
        producer = Producer(plane, f"tx{count}")
        await producer.add("g")
        await producer.stage("g", *[offset(5, number) for number in range(count)])
        writer._commit_seconds, before = 0.0, writer._queued
        await producer.save(set(), end)
        on_thread.append(writer._queued - before)
    assert on_thread == [0, 1]
    stored = await plane.stable_offsets("g", None)
    assert not stored.unstable
    assert len(stored.committed) == (LOOP_ROWS_MAX - 1 if end == "commit" else 0)
    await plane.close()
