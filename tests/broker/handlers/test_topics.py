"""Topics are created, grown, trimmed and deleted in every version, or refused with a cause."""

import asyncio
from typing import Any

import pytest

from penstock.base.ids import TopicPartition
from penstock.base.system import SYSTEM_RANDOMNESS
from penstock.broker.handlers.metadata import MetadataCache
from penstock.broker.partitions.registry import LOGS_CHANGED_PER_TURN
from penstock.broker.server import BrokerServer
from penstock.control import ControlUnavailable, MemoryControlPlane, MetadataImage, Topic
from tests.broker.handlers.calls import call, names, versions
from tests.broker.handlers.conftest import give


def creation(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": factor,
        "assignments": (),
        "configs": (),
        **more,
    }


async def create(
    broker: BrokerServer, *topics: dict[str, Any], version: int = 7, validate_only: bool = False
) -> Any:
    request = {"topics": topics, "timeout": 1000, "validate_only": validate_only}
    return (await call(broker, "CreateTopics", version, request)).topics


@pytest.mark.parametrize("version", versions("CreateTopics"))
async def test_creates_topics(broker: BrokerServer, version: int) -> None:
    configs = ({"name": "retention.ms", "value": "60000"},)
    answers = await create(
        broker, creation("a", 3, configs=configs), creation("b", -1, -1), version=version
    )
    assert [(answer.name, names(answer.error_code)) for answer in answers] == [
        ("a", "none"),
        ("b", "none"),
    ]
    assert len(broker.partitions.topics["a"].partitions) == 3
    assert broker.partitions.topics["a"].topic.configs == {"retention.ms": "60000"}
    if version >= 5:
        assert (answers[0].num_partitions, answers[0].replication_factor) == (3, 1)
        shown = {config.name: config for config in answers[0].configs}
        assert (shown["retention.ms"].value, shown["retention.ms"].config_source) == ("60000", 1)
        assert shown["segment.bytes"].config_source == 5
    if version >= 7:
        assert answers[0].topic_id == broker.partitions.topics["a"].topic.topic_id


@pytest.mark.parametrize("version", versions("CreateTopics"))
async def test_says_which_configurations_have_no_effect(
    broker: BrokerServer, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    def configs(**values: str) -> Any:
        return [{"name": k.replace("_", "."), "value": v} for k, v in values.items()]

    answers = await create(
        broker,
        creation("reserved", configs=configs(cleanup_policy="compact", preallocate="true")),
        creation("plain", configs=configs(cleanup_policy="delete", delete_retention_ms="86400000")),
        creation("tiered", configs=configs(remote_storage_enable="true")),
        creation("local", configs=configs(local_retention_bytes="5")),
        version=version,
    )
    codes = [names(answer.error_code) for answer in answers]
    assert codes == ["none", "none", "invalid_config", "none"]
    assert sorted(broker.partitions.topics) == ["local", "plain", "reserved"]
    (record,) = caplog.records
    assert record.getMessage().startswith("topic reserved: setting preallocate = 'true'")
    if version >= 1:
        said = [answer.error_message for answer in answers]
        assert "preallocate = 'true': it has no effect" in said[0]
        assert said[1] is None
        assert "needs remote.log.storage.system.enable = true" in said[2]
        assert said[3] is None


async def test_creating_and_deleting_many_partitions_does_not_block_the_event_loop(
    broker: BrokerServer,
) -> None:
    turns = 0
    running = True

    def turn() -> None:
        nonlocal turns
        turns += 1
        if running:
            asyncio.get_running_loop().call_soon(turn)

    count = 40 * LOGS_CHANGED_PER_TURN
    await create(broker, creation("small"))
    asyncio.get_running_loop().call_soon(turn)
    made = []
    broker.cluster.on_image.append(lambda: made.append(turns))
    before = turns
    await create(broker, creation("large", count))
    assert made[0] - before >= 40
    assert sum(log is not None for log in broker.partitions.topics["large"].partitions) == count
    before = turns
    request = {"topics": [{"name": "large", "topic_id": None}], "timeout": 1000}
    await call(broker, "DeleteTopics", 6, request)
    running = False
    assert turns - before >= 40
    assert list(broker.store.partitions) == [TopicPartition("small", 0)]


async def test_a_cancelled_deletion_is_finished_by_the_next_refresh(
    broker: BrokerServer,
) -> None:
    count = 20 * LOGS_CHANGED_PER_TURN
    await create(broker, creation("a", count))
    request = {"topics": [{"name": "a", "topic_id": None}], "timeout": 1000}
    given_up = asyncio.create_task(call(broker, "DeleteTopics", 6, request))
    while len(broker.store.partitions) == count and not given_up.done():
        await asyncio.sleep(0)
    assert "a" not in broker.partitions.topics
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    assert broker.store.partitions
    await broker.cluster.refresh()
    assert not broker.store.partitions


async def test_a_cancelled_refresh_is_finished_by_the_next(broker: BrokerServer) -> None:
    given_up = asyncio.create_task(create(broker, creation("a", 20 * LOGS_CHANGED_PER_TURN)))
    while not (broker.store.partitions or given_up.done()):
        await asyncio.sleep(0)
    assert "a" not in broker.partitions.topics
    other = asyncio.create_task(broker.cluster.refresh())
    await asyncio.sleep(0)
    given_up.cancel()
    await other
    assert all(log is not None for log in broker.partitions.topics["a"].partitions)
    assert len(broker.store.partitions) == 20 * LOGS_CHANGED_PER_TURN
    with pytest.raises(asyncio.CancelledError):
        await given_up


async def test_validate_only_creates_nothing(broker: BrokerServer) -> None:
    (answer,) = await create(broker, creation("a", 3), validate_only=True)
    assert names(answer.error_code) == "none"
    assert answer.num_partitions == 3
    assert broker.partitions.topics == {}


async def test_refuses_each_topic_by_itself(broker: BrokerServer) -> None:
    await create(broker, creation("old"))
    answers = await create(
        broker,
        creation("old"),
        creation("bad name"),
        creation("a.b"),
        creation("a_b"),
        creation("t1", 0),
        creation("t2", 1, 2),
        creation("t3", configs=({"name": "retention.ms", "value": "soon"},)),
        creation("twice"),
        creation("twice"),
        creation("good"),
    )
    assert {answer.name: names(answer.error_code) for answer in answers} == {
        "old": "topic_already_exists",
        "bad name": "invalid_topic_exception",
        "a.b": "none",
        "a_b": "invalid_topic_exception",
        "t1": "invalid_partitions",
        "t2": "invalid_replication_factor",
        "t3": "invalid_config",
        "twice": "invalid_request",
        "good": "none",
    }
    messages = {answer.name: answer.error_message for answer in answers}
    assert "t3" in messages["t3"]
    assert "soon" in messages["t3"]
    assert set(broker.partitions.topics) == {"old", "a.b", "good"}


@pytest.mark.parametrize("version", versions("DeleteTopics"))
async def test_deletes_topics(broker: BrokerServer, version: int) -> None:
    await create(broker, creation("a"), creation("b"))
    asked = ["a", "gone", "a", "b"]
    request: dict[str, Any] = {"timeout": 1000, "topic_names": asked}
    if version >= 6:
        request["topics"] = [{"name": name} for name in asked]
    answers = (await call(broker, "DeleteTopics", version, request)).responses
    assert {answer.name: names(answer.error_code) for answer in answers} == {
        "a": "invalid_request",
        "gone": "unknown_topic_or_partition",
        "b": "none",
    }
    assert set(broker.partitions.topics) == {"a"}


async def test_deletes_topics_by_id(broker: BrokerServer) -> None:
    await create(broker, creation("a"), creation("b"))
    a, b = (broker.partitions.topics[name].topic.topic_id for name in ("a", "b"))
    request = {
        "timeout": 1000,
        "topics": [
            {"name": None, "topic_id": a},
            {"name": "b", "topic_id": b},
            {"name": None, "topic_id": None},
            {"name": None, "topic_id": broker.randomness.uuid()},
        ],
    }
    answers = (await call(broker, "DeleteTopics", 6, request)).responses
    assert [names(answer.error_code) for answer in answers] == [
        "none",
        "invalid_request",
        "invalid_request",
        "unknown_topic_id",
    ]
    assert answers[0].name == "a"
    assert set(broker.partitions.topics) == {"b"}


@pytest.mark.parametrize("version", versions("CreatePartitions"))
async def test_adds_partitions(broker: BrokerServer, version: int) -> None:
    await create(broker, creation("a", 2), creation("b", 2))
    request = {
        "topics": [
            {"name": "a", "count": 4, "assignments": None},
            {"name": "b", "count": 2, "assignments": None},
            {"name": "c", "count": 2, "assignments": None},
        ],
        "timeout": 1000,
        "validate_only": False,
    }
    answers = (await call(broker, "CreatePartitions", version, request)).results
    assert [names(answer.error_code) for answer in answers] == [
        "none",
        "invalid_partitions",
        "unknown_topic_or_partition",
    ]
    assert len(broker.partitions.topics["a"].partitions) == 4


async def test_validates_more_partitions(broker: BrokerServer) -> None:
    await create(broker, creation("a", 2))
    request = {
        "topics": [{"name": "a", "count": 3, "assignments": [{"broker_ids": [1]}]}],
        "timeout": 1000,
        "validate_only": True,
    }
    (answer,) = (await call(broker, "CreatePartitions", 3, request)).results
    assert names(answer.error_code) == "none"
    assert len(broker.partitions.topics["a"].partitions) == 2


@pytest.mark.parametrize("version", versions("DeleteRecords"))
async def test_delete_records_names_each_partition(broker: BrokerServer, version: int) -> None:
    compacted = ({"name": "cleanup.policy", "value": "compact"},)
    await create(broker, creation("a"), creation("k", configs=compacted))

    def partition(index: int, offset: int) -> dict[str, int]:
        return {"partition_index": index, "offset": offset}

    request = {
        "topics": [
            {"name": "a", "partitions": [partition(0, -1), partition(0, 9), partition(1, 0)]},
            {"name": "k", "partitions": [partition(0, -1)]},
        ],
        "timeout": 1000,
    }
    first, second = (await call(broker, "DeleteRecords", version, request)).topics
    assert [(p.low_watermark, names(p.error_code)) for p in first.partitions] == [
        (0, "none"),
        (-1, "offset_out_of_range"),
        (-1, "unknown_topic_or_partition"),
    ]
    assert names(second.partitions[0].error_code) == "policy_violation"


async def test_the_replicas_of_a_broker_alone_are_ordered_again(broker: BrokerServer) -> None:
    """Apache Kafka accepts the order, also where min.insync.replicas is above what there is."""
    await create(broker, creation("a", configs=({"name": "min.insync.replicas", "value": "2"},)))
    request = {
        "timeout": 1000,
        "allow_replication_factor_change": True,
        "topics": [{"name": "a", "partitions": [{"partition_index": 0, "replicas": [1]}]}],
    }
    (topic,) = (await call(broker, "AlterPartitionReassignments", 1, request)).responses
    assert (names(topic.partitions[0].error_code), topic.partitions[0].error_message) == (
        "none",
        None,
    )


async def test_metadata_know_what_another_broker_has_just_created(broker: BrokerServer) -> None:
    broker.metadata_cache = MetadataCache()
    asked = {
        "topics": ({"topic_id": None, "name": "new"},),
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    (unknown,) = (await call(broker, "Metadata", 12, asked)).topics
    assert names(unknown.error_code) == "unknown_topic_or_partition"
    created = await broker.control.create_topic(
        name="new", topic_id=SYSTEM_RANDOMNESS.uuid(), partitions=[[1]], configs={}
    )
    (known,) = (await call(broker, "Metadata", 12, asked)).topics
    assert (names(known.error_code), known.topic_id) == ("none", created.topic_id)


class AwayControl(MemoryControlPlane):
    """A control plane that is away."""

    async def image(self) -> MetadataImage:
        raise ControlUnavailable("away")

    async def create_topic(self, **_: object) -> Topic:
        raise ControlUnavailable("away")


@pytest.mark.parametrize("create", [False, True])
async def test_a_topic_that_cannot_be_looked_up_is_not_unknown(
    broker: BrokerServer, create: bool
) -> None:
    broker.metadata_cache = MetadataCache()
    give(broker, control=AwayControl())
    unheard_of = SYSTEM_RANDOMNESS.uuid()
    topics: list[dict[str, Any]] = [
        {"topic_id": None, "name": "new"},
        {"topic_id": None, "name": "no name"},
    ]
    if not create:
        topics.append({"topic_id": unheard_of, "name": None})
    asked = {
        "topics": topics,
        "allow_auto_topic_creation": create,
        "include_topic_authorized_operations": False,
    }
    answers = (await call(broker, "Metadata", 12, asked)).topics
    codes = {answer.topic_id or answer.name: names(answer.error_code) for answer in answers}
    expected: dict[Any, str] = {
        "new": "leader_not_available",
        "no name": "invalid_topic_exception",
    }
    assert codes == (expected if create else {**expected, unheard_of: "leader_not_available"})
