"""Administration, as far as each client has it, and the names of what goes wrong."""

from __future__ import annotations

import pytest

from compat.drivers import Driver, KafkaProblem, eventually
from compat.scenes import clients, in_order, plain_records
from compat.servers import Server
from compat.wire import batches, served


@clients("create_topic", "delete_topic", "topics")
def test_creates_and_deletes_topics(driver: Driver, name: str) -> None:
    driver.create_topic(name, 3, {"retention.ms": "3600000"})
    eventually(lambda: driver.topics().get(name) == 3, driver.topics)
    with pytest.raises(KafkaProblem) as again:
        driver.create_topic(name, 3, {})
    assert again.value.code == "TOPIC_ALREADY_EXISTS"
    driver.delete_topic(name)
    eventually(lambda: name not in driver.topics(), driver.topics)


@clients("topics")
def test_lists_topics_with_their_partitions(driver: Driver, topic: str) -> None:
    assert driver.topics()[topic] == 6


@clients("create_topic")
@pytest.mark.parametrize(
    ("bad_name", "partitions", "configs", "code"),
    [
        ("in valid", 1, {}, "INVALID_TOPIC_EXCEPTION"),
        ("fine", 1, {"retention.ms": "soon"}, "INVALID_CONFIG"),
        ("fine", 1, {"no.such.config": "1"}, "INVALID_CONFIG"),
        ("fine", 0, {}, "INVALID_PARTITIONS"),
    ],
    ids=["name", "config value", "config name", "partitions"],
)
def test_refuses_what_is_wrong_with_a_topic(
    driver: Driver,
    name: str,
    bad_name: str,
    partitions: int,
    configs: dict[str, str],
    code: str,
) -> None:
    wanted = bad_name if bad_name != "fine" else name
    with pytest.raises(KafkaProblem) as refused:
        driver.create_topic(wanted, partitions, configs)
    assert refused.value.code == code


@clients("create_topic", "configs")
def test_creates_the_compacted_topics_of_streams_and_connect(driver: Driver, name: str) -> None:
    """Penstock says beside the success that nothing is compacted yet: no client takes it amiss."""
    asked = {"cleanup.policy": "compact", "compression.zstd.level": "5", "preallocate": "true"}
    driver.create_topic(name, 1, asked)
    eventually(lambda: asked.items() <= driver.configs(name).items(), lambda: driver.configs(name))


@clients("configs", "alter_config")
def test_a_change_without_effect_is_no_error(driver: Driver, topic: str) -> None:
    driver.alter_config(topic, "preallocate", "true")
    eventually(
        lambda: driver.configs(topic)["preallocate"] == "true", lambda: driver.configs(topic)
    )


@clients("delete_topic")
def test_names_an_unknown_topic(driver: Driver, name: str) -> None:
    with pytest.raises(KafkaProblem) as refused:
        driver.delete_topic(name)
    assert refused.value.code == "UNKNOWN_TOPIC_OR_PARTITION"


@clients("create_partitions")
def test_adds_partitions(
    driver: Driver, helper: Driver, server: Server, topic: str, now_ms: int
) -> None:
    driver.create_partitions(topic, 8)
    eventually(lambda: helper.topics()[topic] == 8, helper.topics)
    eventually(lambda: served(server.bootstrap, topic, 8), lambda: f"{topic} has no leaders yet")
    sent = plain_records(16, partitions=8, timestamp=now_ms)
    assert helper.produce(topic, sent) == [0] * 8 + [1] * 8
    with pytest.raises(KafkaProblem) as refused:
        driver.create_partitions(topic, 4)
    assert refused.value.code == "INVALID_PARTITIONS"


@clients("configs", "alter_config")
def test_describes_and_alters_configs(driver: Driver, topic: str) -> None:
    before = driver.configs(topic)
    assert before["cleanup.policy"] == "delete"
    assert before["compression.type"] == "producer"
    assert before["min.insync.replicas"] == "1"
    assert before["message.timestamp.type"] == "CreateTime"
    assert before["retention.ms"] == "604800000"
    driver.alter_config(topic, "max.message.bytes", "2000")
    eventually(
        lambda: driver.configs(topic)["max.message.bytes"] == "2000", lambda: driver.configs(topic)
    )
    after = {**driver.configs(topic), "max.message.bytes": before["max.message.bytes"]}
    assert after == before


@clients("alter_config")
def test_a_config_takes_effect(driver: Driver, helper: Driver, topic: str, now_ms: int) -> None:
    driver.alter_config(topic, "max.message.bytes", "20000")
    eventually(
        lambda: helper.configs(topic)["max.message.bytes"] == "20000",
        lambda: helper.configs(topic),
    )
    small = plain_records(1, timestamp=now_ms)
    assert helper.produce(topic, small) == [0]
    large = [type(small[0])(value=b"x" * 30_000, timestamp=now_ms)]

    def refused() -> bool:
        try:
            helper.produce(topic, large)
        except KafkaProblem as problem:
            return problem.code == "MESSAGE_TOO_LARGE"
        return False

    # The leader may be a broker that has not heard of it yet
    eventually(refused, lambda: "a record above max.message.bytes is taken")


@clients("alter_config")
def test_refuses_a_wrong_config(driver: Driver, topic: str) -> None:
    with pytest.raises(KafkaProblem) as refused:
        driver.alter_config(topic, "retention.ms", "soon")
    assert refused.value.code == "INVALID_CONFIG"


@clients("delete_records")
def test_deletes_records(driver: Driver, helper: Driver, topic: str, now_ms: int) -> None:
    sent = plain_records(120, partitions=2, timestamp=now_ms)
    helper.produce(topic, sent)
    driver.delete_records(topic, {0: 25})
    assert helper.bounds(topic, [0, 1]) == {0: (25, 60), 1: (0, 60)}
    read = in_order(helper.consume(topic, {0: 25}, 35))
    assert [record.value for record in read] == [record.value for record in sent[50::2]]
    with pytest.raises(KafkaProblem) as refused:
        driver.delete_records(topic, {0: 1_000})
    assert refused.value.code == "OFFSET_OUT_OF_RANGE"


@clients("groups", "describe_group")
def test_lists_and_describes_groups(driver: Driver, helper: Driver, topic: str, name: str) -> None:
    group = f"g-{name}"
    members = [helper.join(group, topic) for _ in range(2)]
    try:
        eventually(
            lambda: sorted(len(member.assignment()) for member in members) == [3, 3],
            lambda: [member.assignment() for member in members],
        )
        assert group in driver.groups()
        found = driver.describe_group(group)
        assert (found.state, found.members) == ("stable", 2)
    finally:
        for member in members:
            member.close()
    found = driver.describe_group(group)
    assert (found.state, found.members) == ("empty", 0)


@clients("delete_group")
def test_deletes_an_empty_group(driver: Driver, helper: Driver, topic: str, name: str) -> None:
    group = f"g-{name}"
    helper.commit(group, topic, {0: (1, "")})
    assert group in driver.groups()
    driver.delete_group(group)
    assert group not in driver.groups()
    assert helper.committed(group, topic, [0]) == {}
    with pytest.raises(KafkaProblem) as refused:
        driver.delete_group(group)
    assert refused.value.code == "GROUP_ID_NOT_FOUND"


@clients("delete_group")
def test_keeps_a_group_that_has_members(
    driver: Driver, helper: Driver, topic: str, name: str
) -> None:
    group = f"g-{name}"
    member = helper.join(group, topic)
    try:
        eventually(lambda: len(member.assignment()) == 6, member.assignment)
        with pytest.raises(KafkaProblem) as refused:
            driver.delete_group(group)
        assert refused.value.code == "NON_EMPTY_GROUP"
    finally:
        member.close()


@clients("cluster")
def test_describes_the_cluster(driver: Driver, helper: Driver, server: Server) -> None:
    cluster_id, brokers = driver.cluster()
    known = server.bootstrap.count(",") + 1
    assert brokers in {known, max(1, known - 1)}  # one may be about to restart
    assert cluster_id == helper.cluster()[0]


@clients("log_dirs")
def test_says_how_many_bytes_partitions_have(
    driver: Driver, helper: Driver, server: Server, topic: str, now_ms: int
) -> None:
    helper.produce(topic, plain_records(30, partitions=2, timestamp=now_ms))

    def stored() -> dict[int, int]:
        return {
            partition: sum(
                batch.size_bytes for batch in batches(server.bootstrap, topic, partition)
            )
            for partition in range(6)
        }

    eventually(lambda: driver.log_dirs(topic) == stored(), lambda: driver.log_dirs(topic))
    assert stored()[0] > 0


@clients("config_topics")
def test_lists_what_has_configurations(driver: Driver, topic: str) -> None:
    assert topic in driver.config_topics()
