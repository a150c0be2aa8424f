"""Each state of lag, planted by real consumers at a running broker."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.broker.lag.scene import SECOND, TOPIC, Scene

HOUR_MS = 3_600 * SECOND


async def test_a_group_that_reads_everything_is_ok_for_ever(scene: Scene) -> None:
    await scene.create()
    await scene.produce(5)
    await scene.read("g", 5)
    scene.clock.ahead_ms += 1_000 * HOUR_MS
    found = await scene.lag("g")
    assert (found["state"], found["lag_records"], found["seconds_behind"]) == ("OK", 0, 0)
    assert found["forecast"] == "caught_up"
    assert found["explanation"] == "The group has read all records."


async def test_falling_behind_warns(scene: Scene) -> None:
    await scene.create()
    for index in range(10):
        await scene.produce(20)
        assert await _state_or_none(scene, "g") in (None, "OK")
        await scene.commit("g", 10 * index)
        await scene.server.assembly.lag.sample()
    found = await scene.lag("g")
    assert found["state"] == "WARN"
    assert found["lag_records"] == 200 - 90
    assert found["consumed_per_second"] == pytest.approx(1, rel=0.1)
    assert found["produced_per_second"] == pytest.approx(2, rel=0.1)
    assert found["forecast"] == "loses_records"
    assert found["explanation"].startswith("orders-0: The lag did not decrease at any of the last")


async def _state_or_none(scene: Scene, group: str) -> str | None:
    status, answer = await scene.get(f"/v1/groups/{group}")
    return str(answer["lag"]["state"]) if status == 200 else None


async def test_catching_up_is_ok(scene: Scene) -> None:
    await scene.create()
    await scene.produce(200)
    for index in range(10):
        await scene.commit("g", 10 * index)
        await scene.server.assembly.lag.sample()
    found = await scene.lag("g")
    assert (found["state"], found["forecast"]) == ("OK", "catches_up")
    assert found["forecast_seconds"] == pytest.approx(110, rel=0.1)


async def test_silence_stops(scene: Scene) -> None:
    await scene.create()
    await scene.produce(200)
    for index in range(10):
        await scene.commit("g", 10 * index)
    scene.clock.ahead_ms += 100 * SECOND
    found = await scene.lag("g")
    assert (found["state"], found["consumed_per_second"]) == ("STOP", 0)
    assert found["seconds_behind"] == pytest.approx(200, abs=60)


async def test_repeated_offsets_stall(scene: Scene) -> None:
    await scene.create()
    await scene.produce(200)
    for _ in range(10):
        await scene.commit("g", 7)
    assert await scene.state("g") == "STALL"


async def test_going_back_is_a_rewind_until_it_is_made_up_for(scene: Scene) -> None:
    await scene.create()
    await scene.produce(200)
    for offset, state in ((100, "OK"), (50, "REWIND"), (99, "REWIND"), (100, "OK")):
        await scene.commit("g", offset)
        assert await scene.state("g") == state


async def test_records_deleted_unread_are_an_error(scene: Scene) -> None:
    await scene.create()
    await scene.produce(200)
    await scene.commit("g", 10)
    deleted = scene.admin.delete_records([TopicPartition(TOPIC, 0, 60)])
    for future in deleted.values():
        await asyncio.to_thread(future.result)
    found = await scene.lag("g")
    assert found["state"] == "ERR"
    assert found["explanation"] == (
        "orders-0: Retention deleted 50 records before the group read them."
    )


async def test_idle_partitions_do_not_stop_a_group(scene: Scene) -> None:
    """The first record after hours is not a stop, although the last commit is hours old."""
    await scene.create()
    await scene.produce(100)
    for index in range(10):
        await scene.commit("g", 10 + 10 * index)
    scene.clock.ahead_ms += 5 * HOUR_MS
    await scene.server.assembly.lag.sample()
    await scene.produce(1)
    assert await scene.state("g") == "OK"
    scene.clock.ahead_ms += 100 * SECOND
    assert await scene.state("g") == "STOP"


async def test_a_restart_is_no_alarm(scene: Scene) -> None:
    """A broker that has seen no commits reads the stored ones, and waits for more."""
    await scene.create()
    await scene.produce(200)
    for index in range(10):
        await scene.commit("g", 10 * index)
    vars(scene.server.assembly).pop("lag")
    scene.clock.ahead_ms += 10 * HOUR_MS
    found = await scene.lag("g")
    assert (found["state"], found["lag_records"]) == ("OK", 110)
    assert found["partitions"][0]["commits_seen"] == 1
    assert "1 of 10 commits have been seen, the last one 10.0 h ago" in found["explanation"]
    scene.clock.ahead_ms += HOUR_MS + SECOND
    assert await scene.state("g") == "STOP"
    await scene.server.assembly.stop_lag()


async def test_transaction_markers_are_no_lag(scene: Scene) -> None:
    """A consumer may commit the offset before a marker for ever."""
    await scene.create()
    producer = Producer(scene.conf | {"transactional.id": "t"})

    def write() -> None:
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(TOPIC, b"value", partition=0)
        producer.commit_transaction(60)

    await asyncio.to_thread(write)
    for _ in range(10):
        await scene.commit("g", 1)
    scene.clock.ahead_ms += HOUR_MS
    found = await scene.lag("g")
    assert (found["state"], found["lag_records"]) == ("OK", 0)
    assert scene.server.partitions.high_watermark(TOPIC, 0) == 2


async def test_offsets_of_transactions_are_commits(scene: Scene) -> None:
    await scene.create()
    await scene.produce(100)
    consumer = Consumer(scene.conf | {"group.id": "g"})
    producer = Producer(scene.conf | {"transactional.id": "t"})

    def commit(offset: int) -> None:
        producer.begin_transaction()
        where = [TopicPartition(TOPIC, 0, offset)]
        producer.send_offsets_to_transaction(where, consumer.consumer_group_metadata(), 60)
        producer.commit_transaction(60)

    await asyncio.to_thread(producer.init_transactions, 60)
    for index in range(10):
        await asyncio.to_thread(commit, 5 + index)
        await scene.server.assembly.lag.sample()
        scene.clock.ahead_ms += 10 * SECOND
    found = await scene.lag("g")
    assert found["partitions"][0]["commits_seen"] == 10
    assert found["lag_records"] == 100 - 14
    assert found["consumed_per_second"] == pytest.approx(0.1, rel=0.1)
    await asyncio.to_thread(consumer.close)


async def test_windows_of_ended_groups_are_dropped(scene: Scene) -> None:
    lag = scene.server.assembly.lag
    await scene.create()
    await scene.create("other")
    await scene.produce(10)
    for group in ("g", "h"):
        await scene.commit(group, 1)
    await scene.commit("g", 0, "other")
    assert lag.metrics.windows == 3
    admin = scene.admin
    await asyncio.to_thread(admin.delete_topics(["other"])["other"].result)
    await scene.lag("g")
    assert lag.metrics.windows == 2
    await asyncio.to_thread(admin.delete_consumer_groups(["g"])["g"].result)
    await lag.sample()
    assert lag.metrics.windows == 1
    assert [group.group_id for group in await lag.groups()] == ["h"]


async def test_a_deleted_topic_is_no_alarm(scene: Scene) -> None:
    """Samples find the deletion, without any request for the group."""
    lag = scene.server.assembly.lag
    await scene.create()
    await scene.produce(10)
    for _ in range(10):
        await scene.commit("g", 1)
    assert [group.summary.state.name for group in await lag.groups()] == ["STALL"]
    await asyncio.to_thread(scene.admin.delete_topics([TOPIC])[TOPIC].result)
    for _ in range(2):
        await lag.sample()
    assert [group.summary.state.name for group in await lag.groups()] in ([], ["OK"])
    assert lag.metrics.windows == 0
    assert (await lag.offsets()).get("g", {}) == {}


async def test_a_group_with_the_id_of_a_deleted_one_is_no_rewind(scene: Scene) -> None:
    """No sample is taken in between."""
    await scene.create(partitions=2)
    await scene.produce(10)
    await scene.commit("g", 9)
    await scene.commit("g", 0, partition=1)
    await asyncio.to_thread(scene.admin.delete_consumer_groups(["g"])["g"].result)
    await scene.commit("g", 1)
    [group] = await scene.server.assembly.lag.groups()
    assert (group.summary.state.name, len(group.partitions)) == ("OK", 1)


async def test_a_group_whose_members_have_left(scene: Scene) -> None:
    await scene.create()
    await scene.produce(10)
    await scene.commit("never-had-members", 4)
    await scene.read("left", 4)
    _, answer = await scene.get("/v1/lag")
    rows = {row["group_id"]: row for row in answer["groups"]}
    assert {name: row["abandoned"] for name, row in rows.items()} == {
        "left": True, "never-had-members": False,
    }  # fmt: skip
    found = rows["left"]
    assert (found["state"], found["lag_records"]) == ("OK", 6)
    assert found["explanation"].endswith(" ago. All members have left the group.")
    assert (await scene.lag("left"))["explanation"] == found["explanation"]
    assert not rows["never-had-members"]["explanation"].endswith("the group.")


async def test_a_topic_with_the_same_name_is_no_rewind(scene: Scene) -> None:
    await scene.create()
    await scene.produce(10)
    await scene.commit("g", 9)
    admin = scene.admin
    await asyncio.to_thread(admin.delete_topics([TOPIC])[TOPIC].result)
    await scene.create()
    await scene.produce(10)
    await scene.commit("g", 1)
    found = await scene.lag("g")
    assert (found["state"], found["partitions"][0]["commits_seen"]) == ("OK", 1)


async def test_the_window_of_a_deleted_offset_is_dropped(scene: Scene) -> None:
    lag = scene.server.assembly.lag
    await scene.create(partitions=2)
    await scene.commit("g", 0)
    await scene.commit("g", 0, partition=1)
    await scene.server.coordinator.delete_offsets("g", [(TOPIC, 1)])
    await lag.sample()
    [group] = await lag.groups()
    assert [str(found.where) for found in group.partitions] == [f"{TOPIC}-0"]


async def test_offsets_of_a_transaction_that_outlasts_a_sample(scene: Scene) -> None:
    await scene.create()
    await scene.produce(10)
    consumer = Consumer(scene.conf | {"group.id": "g"})
    producer = Producer(scene.conf | {"transactional.id": "t"})

    def begin() -> None:
        producer.init_transactions(60)
        producer.begin_transaction()
        where = [TopicPartition(TOPIC, 0, 5)]
        producer.send_offsets_to_transaction(where, consumer.consumer_group_metadata(), 60)

    await asyncio.to_thread(begin)
    lag = scene.server.assembly.lag
    await lag.sample()
    assert [group.summary.lag for group in await lag.groups()] in ([], [0])
    await asyncio.to_thread(producer.commit_transaction, 60)
    await lag.sample()
    assert [group.summary.lag for group in await lag.groups()] == [5]
    await asyncio.to_thread(consumer.close)


async def test_too_many_windows_are_refused_and_counted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.lag.service.WINDOWS_MAX", 1)
    await scene.create(partitions=2)
    for partition in (0, 1, 1):
        await scene.commit("g", 0, partition=partition)
    metrics = scene.server.assembly.lag.metrics
    assert (metrics.windows, metrics.windows_refused) == (1, 2)
