"""The PostgreSQL form on its own: several planes at once, migrations, refusals, notices."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast
from uuid import UUID

import asyncpg
import pytest

from penstock.control import (
    CommittedOffset,
    ControlBusy,
    ControlUnavailable,
    DatabaseLocked,
    DatabaseSlow,
    FindRequest,
    IncompatibleDatabase,
    RecordChange,
    SavedRecords,
    SinkCommit,
    StaleClusterEpoch,
    TopicExists,
    UnstorableText,
)
from penstock.control.drivers.notices import UNKNOWN_SIZE, decode_watermarks, watermark_notices
from penstock.control.drivers.postgres_connections import IDLE_TRANSACTION_SECONDS
from penstock.control.migrations import migrations
from penstock.control.operations import diskless_tables
from penstock.control.postgres import PostgresControlPlane
from penstock.control.values.diskless import Watermarks
from tests.control.diskless import TOPIC, Plane, Sequenced, entry, furnish, lease, put, written
from tests.postgres import PostgresServer

A, B = UUID(int=1), UUID(int=2)
Mark = tuple[UUID, int, Watermarks]


@asynccontextmanager
async def planes(url: str, count: int = 2) -> AsyncIterator[list[PostgresControlPlane]]:
    """Several planes on one database, as several brokers have them."""
    opened = [PostgresControlPlane(url) for _ in range(count)]
    await asyncio.gather(*(opened_plane.start() for opened_plane in opened))
    yield opened
    await asyncio.gather(*(opened_plane.close() for opened_plane in opened))


async def register(plane: PostgresControlPlane, broker_id: int = 1, incarnation: UUID = A) -> None:
    await plane.register_broker(
        broker_id=broker_id, host="h", port=1, rack="r", incarnation=incarnation
    )


async def create(plane: PostgresControlPlane, name: str, topic_id: UUID) -> None:
    await plane.create_topic(name=name, topic_id=topic_id, partitions=[[1]], configs={"a": "1"})


async def execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


# Opening


async def test_four_starters_migrate_once(postgres_url: str) -> None:
    async with planes(postgres_url, 4) as opened:
        images = [await opened_plane.image() for opened_plane in opened]
        assert len({image.cluster_id for image in images}) == 1
        connection = await asyncpg.connect(postgres_url)
        rows = await connection.fetch("SELECT number FROM penstock_schema ORDER BY number")
        await connection.close()
        assert [number for (number,) in rows] == [number for number, _ in migrations("postgres")]


async def test_what_is_registered_stays_when_another_opens(postgres_url: str) -> None:
    async with planes(postgres_url, 1) as [first]:
        await register(first)
        await create(first, "t", A)
        image = await first.image()
        async with planes(postgres_url, 1) as [second]:
            assert await second.image() == image
        await first.close()
        await first.start()
        assert await first.image() == image


async def test_a_newer_schema_is_refused(postgres_url: str) -> None:
    async with planes(postgres_url, 1):
        await execute(postgres_url, "INSERT INTO penstock_schema VALUES (999)")
    with pytest.raises(IncompatibleDatabase, match="at schema version 999"):
        await PostgresControlPlane(postgres_url).start()


async def test_a_foreign_database_is_refused_and_left_alone(postgres_url: str) -> None:
    await execute(postgres_url, "CREATE TABLE mine (x int)")
    with pytest.raises(IncompatibleDatabase, match="such as 'mine'"):
        await PostgresControlPlane(postgres_url).start()
    await execute(postgres_url, "DROP TABLE mine")
    async with planes(postgres_url, 1):
        pass


async def test_another_encoding_is_refused(postgres: PostgresServer) -> None:
    postgres.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1'")
    with pytest.raises(IncompatibleDatabase, match="LATIN1"):
        await PostgresControlPlane(postgres.url("latin")).start()
    postgres.execute("DROP DATABASE latin")


async def test_a_missing_database_is_named_without_a_password(postgres: PostgresServer) -> None:
    url = f"postgresql://penstock:secret@127.0.0.1:{postgres.port}/nowhere"
    with pytest.raises(ControlUnavailable, match=r"database nowhere on 127\.0\.0\.1") as caught:
        await PostgresControlPlane(url).start()
    assert "secret" not in str(caught.value)


# Two planes


async def test_the_image_is_read_again_only_when_something_changed(postgres_url: str) -> None:
    async with planes(postgres_url) as [one, other]:
        await create(one, "t", A)
        seen = await other.image()
        assert await other.image() is seen
        await one.create_topic(name="u", topic_id=B, partitions=[[1]] * 3, configs={})
        await one.set_broker_configs(broker="", configs={"x": "y"}, expected={})
        image = await other.image()
        assert image == await one.image()
        assert image.topics["t"] is seen.topics["t"], "a topic that stayed is not read again"
        await one.delete_topic(A)
        assert list((await other.image()).topics) == ["u"]


async def test_configs_of_entities_are_read_again_only_when_they_changed(postgres_url: str) -> None:
    async with planes(postgres_url) as [one, other]:
        await one.set_entity_configs(kind="quota", changes={"a": {"x": "1"}}, expected={})
        seen = (await other.image()).entity_configs
        assert seen == {("quota", "a"): {"x": "1"}}
        await create(one, "t", A)
        image = await other.image()
        assert "t" in image.topics
        assert image.entity_configs is seen
        await other.set_entity_configs(kind="quota", changes={"a": {}}, expected={"a": {"x": "1"}})
        assert (await one.image()).entity_configs == {}


async def test_planes_race_for_names_ids_and_groups(postgres_url: str) -> None:
    record = RecordChange(kind="group", key="g", expected_version=0, rows={"": b""})
    async with planes(postgres_url) as both:
        attempts: list[Awaitable[Any]] = []
        for number, plane in enumerate(both * 15):
            attempts += [
                create(plane, "t", UUID(int=100 + number)),
                plane.save_records([record]),
                plane.allocate_producer_ids(5),
                create(plane, f"t{number}", UUID(int=200 + number)),
            ]
        results = await asyncio.gather(*attempts, return_exceptions=True)
        assert (
            sorted(type(result).__name__ for result in results[::4])
            == ["NoneType"] + [TopicExists.__name__] * 29
        )
        saves = cast("list[SavedRecords]", results[1::4])
        assert sorted(len(save.refused) for save in saves) == [0] + [1] * 29
        blocks = [result for result in results if isinstance(result, range)]
        assert sorted(block.start for block in blocks) == list(range(0, 150, 5))
        image = await both[0].image()
        assert image == await both[1].image()
        assert (len(image.topics), image.version) == (31, 31)


async def test_offsets_do_not_slip_past_a_change_of_brokers(postgres_url: str) -> None:
    """The fence and the write are one: a commit is refused, or is there when brokers change."""
    async with planes(postgres_url) as [one, other]:
        await register(one)
        accepted = 0
        for step in range(10):
            cluster_epoch = (await one.image()).cluster_epoch
            offset = CommittedOffset(topic_id=A, topic="t", partition=0, offset=step)
            written_, _ = await asyncio.gather(
                one.commit_offsets(group_id="g", offsets=[offset], cluster_epoch=cluster_epoch),
                register(other, 2, UUID(int=10 + step)),
                return_exceptions=True,
            )
            found = await other.committed_offsets("g", None)
            if written_ is None:
                accepted = step + 1
            else:
                assert isinstance(written_, StaleClusterEpoch)
            assert [row.offset + 1 for row in found] == ([accepted] if accepted else [])


async def test_a_commit_races_with_the_deletion_of_its_topic(postgres_url: str) -> None:
    async with planes(postgres_url) as [one, other]:
        for step in range(10):
            topic_id = UUID(int=50 + step)
            await create(one, "t", topic_id)
            offset = CommittedOffset(topic_id=topic_id, topic="t", partition=0, offset=step)
            await asyncio.gather(
                other.commit_offsets(group_id="g", offsets=[offset]), one.delete_topic(topic_id)
            )
            await create(one, "t", B)
            assert await one.committed_offsets("g", None) == []
            await one.delete_topic(B)


# Limits of time and of text

IN_FORCE = "SELECT setting::int FROM pg_settings WHERE name = $1"
"""Of a setting of PostgreSQL; times are in milliseconds."""


async def test_a_statement_takes_only_so_long(postgres_url: str) -> None:
    plane = PostgresControlPlane(postgres_url + "&statement_timeout=12345")
    await plane.start()

    async def sleep(connection: Any) -> None:
        assert await connection.fetchval(IN_FORCE, "statement_timeout") == 12_345
        await connection.execute("SET LOCAL statement_timeout = 50")
        await connection.execute("SELECT pg_sleep(60)")

    with pytest.raises(DatabaseSlow, match="statement timeout"):
        await plane._database.transaction(sleep)
    await create(plane, "t", A)
    await plane.close()


async def test_a_lock_is_waited_for_only_so_long(postgres_url: str) -> None:
    plane = PostgresControlPlane(postgres_url + "&lock_timeout=100")
    await plane.start()
    holder = await asyncpg.connect(postgres_url)
    async with holder.transaction():
        await holder.execute("SELECT * FROM image_version FOR UPDATE")
        with pytest.raises(DatabaseLocked, match="lock timeout"):
            await create(plane, "t", A)
        assert (await plane.image()).version == 0
    await create(plane, "t", A)
    await holder.close()
    await plane.close()


@pytest.mark.parametrize("paused_before", ["a statement", "the commit"])
async def test_an_idle_transaction_is_ended_and_repeated(
    postgres_url: str, paused_before: str
) -> None:
    """A broker that was paused in mid-transaction holds the others up for a bounded time."""
    held, go_on = asyncio.Event(), asyncio.Event()

    async def hang(connection: Any) -> None:
        again = held.is_set()
        found = await connection.fetchval(IN_FORCE, "idle_in_transaction_session_timeout")
        assert found == IDLE_TRANSACTION_SECONDS * 1000
        await connection.execute("SELECT pg_advisory_xact_lock(1346719315, 2)")
        if not again:
            await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 50")
        held.set()
        await go_on.wait()
        if paused_before == "a statement":
            await connection.execute("SELECT 1")

    async with planes(postgres_url) as [stopped, other]:
        hanging = asyncio.create_task(stopped._database.transaction(hang))
        await held.wait()
        await create(other, "t", A)
        go_on.set()
        await hanging


async def test_a_process_suspended_before_a_commit_repeats_the_change(
    postgres_url: str,
) -> None:
    """The driver learns during COMMIT that PostgreSQL had ended the transaction."""
    attempts = []

    async def stand_still(connection: Any) -> None:
        attempts.append(await connection.fetchval("SELECT pg_backend_pid()"))
        if len(attempts) == 1:
            await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 50")
            time.sleep(0.5)

    async with planes(postgres_url, 1) as [plane]:
        await plane._database.transaction(stand_still)
    assert len(set(attempts)) == 2


async def test_text_that_cannot_be_stored_is_refused(postgres_url: str) -> None:
    async with planes(postgres_url, 1) as [plane]:
        offset = CommittedOffset(topic_id=A, topic="t", partition=0, offset=1, metadata="a\x00b")
        await plane.commit_offsets(group_id="g", offsets=[offset])
        assert await plane.committed_offsets("g", None) == [offset]
        with pytest.raises(UnstorableText, match="cannot store a value"):
            await plane.commit_offsets(group_id="g\x00", offsets=[offset])
        assert await plane.offset_group_ids() == ["g"]


async def test_operations_wait_for_few_connections_and_not_for_ever(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = "penstock.control.drivers.postgres_connections"
    plane = PostgresControlPlane(postgres_url, connections_max=2)
    await plane.start()
    both, go_on = asyncio.Barrier(3), asyncio.Event()

    async def hang(connection: Any) -> None:
        await both.wait()
        await go_on.wait()

    hanging = [asyncio.create_task(plane._database.statement(hang)) for _ in range(2)]
    await both.wait()
    with monkeypatch.context() as patch:
        patch.setattr(f"{connections}.OPERATION_TIMEOUT_SECONDS", 0.3)
        patch.setattr(f"{connections}.WAITING_OPERATIONS_MAX", 20)
        calls = [plane.image() for _ in range(19)]
        results = await asyncio.gather(*calls, return_exceptions=True)
    kinds = [type(result) for result in results]
    assert (kinds.count(DatabaseSlow), kinds.count(ControlBusy)) == (18, 1)
    assert "all 2 connections" in str(results[0])
    go_on.set()
    await asyncio.gather(*hanging)
    assert (await plane.image()).version == 0
    await plane.close()


async def test_a_closed_plane_says_so(postgres_url: str) -> None:
    plane = PostgresControlPlane(postgres_url)
    with pytest.raises(ControlUnavailable, match="is closed"):
        await plane.image()
    await plane.close()


async def test_cancelled_callers_do_not_affect_others(postgres_url: str) -> None:
    async with planes(postgres_url, 1) as [plane]:
        for step in range(20):
            task = asyncio.create_task(plane.allocate_producer_ids(1))
            await asyncio.sleep(step / 10_000)
            task.cancel()
            await asyncio.wait([task])
        await create(plane, "t", A)
        assert list((await plane.image()).topics) == ["t"]


# Notices


class Received:
    """Notices that a control plane received."""

    def __init__(self, plane: PostgresControlPlane) -> None:
        self.images = 0
        self.watermarks: list[Mark] = []
        plane.watch(self._image, self._watermarks)

    def _image(self) -> None:
        self.images += 1

    def _watermarks(self, watermarks: Sequence[Mark]) -> None:
        self.watermarks += watermarks


async def test_other_brokers_receive_notices_of_changes_and_commits(postgres_url: str) -> None:
    listening, writing = PostgresControlPlane(postgres_url), PostgresControlPlane(postgres_url)
    received, own = Received(listening), Received(writing)
    await listening.start()
    await writing.start()
    plane: Plane = writing
    await register(writing, 2)
    await furnish(plane)
    await until(lambda: received.images == 5)
    answer = await put(plane, entry(0), entry(1))
    await until(lambda: len(received.watermarks) == 2)
    assert sorted(received.watermarks) == [
        (TOPIC, partition, Watermarks(0, 5, UNKNOWN_SIZE)) for partition in (0, 1)
    ]
    assert {mark[:2] for mark in received.watermarks} == set(answer.watermarks)
    await plane.delete_records(TOPIC, 0, 3)
    await until(lambda: len(received.watermarks) == 3)
    assert received.watermarks[-1] == (TOPIC, 0, Watermarks(3, 5, UNKNOWN_SIZE))
    done = SinkCommit(query_id="q", owner=None, batch_id=0, state="done")
    keys = await lease(plane, 2)
    await plane.commit_sink_objects(
        done, expected_version=0, commits=[written(key, [entry(1)]) for key in keys]
    )
    await until(lambda: (TOPIC, 1, Watermarks(0, 15, UNKNOWN_SIZE)) in received.watermarks)
    assert (own.images, own.watermarks) == (0, [])
    await listening.close()
    await writing.close()


async def test_a_lost_listener_subscribes_again_and_says_that_it_missed_something(
    postgres_url: str,
) -> None:
    async with planes(postgres_url, 1) as [writing]:
        listening = PostgresControlPlane(postgres_url)
        received = Received(listening)
        await listening.start()
        await execute(
            postgres_url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'penstock notices'",
        )
        await until(lambda: received.images > 0)
        before = received.images
        await create(writing, "t", A)
        await until(lambda: received.images > before)
        await listening.close()


async def test_a_listener_that_is_late_says_that_it_may_have_missed_something(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.control.drivers.postgres_notices.CONNECT_TIMEOUT_SECONDS", 0.0)
    async with planes(postgres_url, 1) as [writing]:
        listening = PostgresControlPlane(postgres_url)
        received = Received(listening)
        await listening.start()
        assert received.images == 0
        await until(lambda: received.images == 1)
        await create(writing, "t", A)
        await until(lambda: received.images == 2)
        await listening.close()


def test_marks_go_into_few_notices_of_bounded_size() -> None:
    watermarks = {
        (UUID(int=number), number): Watermarks(
            number, 2**62, UNKNOWN_SIZE, *((number, 2 * number) if number % 3 else ())
        )
        for number in range(1000)
    }
    notices = watermark_notices("m " + "f" * 32, watermarks)
    assert max(len(notice) for notice in notices) < 8000
    assert len(notices) < 20
    found = [mark for notice in notices for mark in decode_watermarks(notice.split(" ")[2:])]
    assert found == [(*key, bounds) for key, bounds in watermarks.items()]
    assert watermark_notices("f", {}) == []


# Diskless topics


async def test_planes_commit_to_the_same_partitions_at_once(postgres_url: str) -> None:
    async with planes(postgres_url) as both:
        await furnish(both[0])
        keys = [await lease(plane, 10) for plane in both]
        entries = [entry(2), entry(0), entry(1)]
        answers = await asyncio.gather(
            *(
                plane.commit_object(written(key, sorted(entries, key=lambda one: one.partition)))
                for pair in zip(*keys, strict=True)
                for plane, key in zip(both, pair, strict=True)
            )
        )
        for place in range(3):
            bases = sorted(answer.placed[place].base_offset for answer in answers)
            assert bases == list(range(0, 100, 5))
        watermarks = await both[1].watermarks([(TOPIC, 0), (TOPIC, 1), (TOPIC, 2)])
        assert {watermark.high_watermark for watermark in watermarks} == {100}


async def test_one_object_is_committed_once_by_many(postgres_url: str) -> None:
    async with planes(postgres_url) as both:
        await furnish(both[0])
        [key] = await lease(both[0])
        commit = written(key, [entry(0), entry(1)])
        answers = await asyncio.gather(*(plane.commit_object(commit) for plane in both * 8))
        assert all(answer == answers[0] for answer in answers)
        assert [
            watermark.high_watermark for watermark in await both[0].watermarks([(TOPIC, 0)])
        ] == [5]


async def test_a_commit_has_six_round_trips_however_many_partitions(postgres_url: str) -> None:
    plane = PostgresControlPlane(postgres_url, connections_max=1)
    await plane.start()
    await furnish(plane)
    asked: list[str] = []
    for sequence in (0, 5):
        entries = [entry(partition, by=Sequenced(1, sequence)) for partition in range(3)]
        [key] = await lease(plane)
        [connection] = plane._database._idle
        with connection.query_logger(lambda one: asked.append(one.query)):
            asked.clear()
            await plane.commit_object(written(key, entries))
            await until(lambda: "COMMIT" in asked)
    assert len(asked) == 6, asked
    await plane.close()


async def test_a_find_reads_what_it_needs_however_much_there_is(postgres_url: str) -> None:
    """On tables that are young and that the server knows nothing of."""
    async with planes(postgres_url, 1) as [plane]:
        await furnish(plane)
        await put(plane, entry(0))
        await execute(
            postgres_url,
            "INSERT INTO diskless_extents SELECT p.partition_id, 5 * n, 5 * n + 5, o.object_id, 0,"
            " 100, 500, -1, '\\x6400000005000000' FROM diskless_partitions p, diskless_objects o,"
            " generate_series(1, 20000) n WHERE o.state = 'committed'",
            "UPDATE diskless_partitions SET high_watermark = 100005",
        )
        arguments = ([TOPIC], [0], [50_000], [0], 16)

        async def explain(connection: Any) -> int:
            rows = await connection.fetch(
                f"EXPLAIN (ANALYZE, BUFFERS) {diskless_tables.find.postgres}", *arguments
            )
            text = "\n".join(row[0] for row in rows)
            assert "actual time" in text
            return max(int(found) for found in re.findall(r"shared hit=(\d+)", text))

        assert await plane._database.statement(explain) < 200
        [found] = await plane.find([FindRequest(TOPIC, 0, 50_002, 3000)])
        assert [extent.base_offset for extent in found.extents] == list(range(50_000, 50_150, 5))


async def test_an_open_transaction_elsewhere_blocks_no_operation(postgres_url: str) -> None:
    """Visibility is that of the partition's own row, not of the oldest transaction."""
    async with planes(postgres_url) as [one, other]:
        await furnish(one)
        await put(one, entry(0))
        idle = await asyncpg.connect(postgres_url)
        held = idle.transaction(isolation="repeatable_read")
        await held.start()
        await idle.execute("CREATE TEMPORARY TABLE mine (x int)")  # it has a transaction id
        await idle.fetch("SELECT * FROM diskless_partitions")
        async with asyncio.timeout(60):
            for step in range(1, 30):
                await put(one, entry(0))
                [found] = await other.find([FindRequest(TOPIC, 0, 5 * step, 1)])
                assert found.watermarks is not None
                assert found.watermarks.high_watermark == 5 * step + 5
                assert found.extents[0].base_offset == 5 * step
        await held.rollback()
        await idle.close()
