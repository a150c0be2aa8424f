"""Plans of new topics and partitions, and every way to be rejected."""

import dataclasses
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from penstock.base.errors import PenstockError
from penstock.broker.configuration.configs import Levels, check_broker_configs
from penstock.broker.configuration.settings import BrokerSettings
from penstock.broker.net.listeners import REPLICATION
from penstock.broker.topics.plan import TopicSpec, plan_partitions, plan_topic
from penstock.control import Broker, MetadataImage, Partition, Topic


def topic(name: str, partitions: int = 1, factor: int = 1) -> Topic:
    replicas = tuple(range(1, factor + 1))
    return Topic(
        topic_id=UUID(int=7),
        name=name,
        configs={},
        partitions=tuple(
            Partition(index=index, leader=1, leader_epoch=0, replicas=replicas, isr=replicas)
            for index in range(partitions)
        ),
        internal=False,
    )


def image(*topics: Topic, brokers: int = 2) -> MetadataImage:
    return MetadataImage(
        version=1,
        cluster_id="cluster",
        brokers=tuple(
            Broker(
                broker_id=broker_id,
                host="h",
                port=1,
                rack=None,
                incarnation=UUID(int=broker_id),
                epoch=1,
            )
            for broker_id in range(1, brokers + 1)
        ),
        topics={item.name: item for item in topics},
        broker_configs={},
    )


TOPIC_ID = UUID(int=8)
SETTINGS = BrokerSettings(num_partitions=3, topic_partitions_max=100, broker_partitions_max=120)
LEVELS = Levels(file=(SETTINGS,), cluster={}, broker={})


def plan(spec: TopicSpec, known: MetadataImage | None = None) -> Any:
    return plan_topic(spec, TOPIC_ID, image=known or image(), settings=SETTINGS, levels=LEVELS)


def test_defaults_fill_in() -> None:
    made = plan(TopicSpec(name="orders", configs=(("retention.ms", "5"),)))
    assert sorted(made.partitions[:2]) == [(1,), (2,)]  # each leads one before one leads two
    assert len(made.partitions) == 3
    assert made.topic_id == TOPIC_ID
    assert made.configs == {"retention.ms": "5"}


def test_manual_assignment() -> None:
    diskless = (("diskless.enable", "true"),)
    made = plan(TopicSpec(name="orders", assignments=((1, (2, 1)), (0, (1, 2))), configs=diskless))
    assert made.partitions == ((1, 2), (2, 1))


@pytest.mark.parametrize(
    ("spec", "code", "named"),
    [
        (TopicSpec(name=""), "invalid_topic_exception", "empty"),
        (TopicSpec(name="a/b"), "invalid_topic_exception", "a/b"),
        (TopicSpec(name="x" * 250), "invalid_topic_exception", "249"),
        (TopicSpec(name="old"), "topic_already_exists", "old"),
        (TopicSpec(name="a_b"), "invalid_topic_exception", r"a\.b"),
        (TopicSpec(name="__cluster_metadata"), "invalid_request", "internal"),
        (TopicSpec(name="t", partition_count=0), "invalid_partitions", "0"),
        (TopicSpec(name="t", partition_count=-2), "invalid_partitions", "-2"),
        (TopicSpec(name="t", partition_count=101), "invalid_partitions", "100"),
        (TopicSpec(name="t", partition_count=99), "policy_violation", "120"),
        (TopicSpec(name="t", replication_factor=0), "invalid_replication_factor", "0"),
        (TopicSpec(name="t", replication_factor=3), "invalid_replication_factor", "2 broker"),
        (TopicSpec(name="t", replication_factor=2), "invalid_replication_factor", "on broker 1, 2"),
        (
            TopicSpec(name="t", assignments=((0, (1, 2)),)),
            "invalid_replication_factor",
            "replication.listener is not set on broker",
        ),
        (
            TopicSpec(name="t", assignments=((0, (1,)),), partition_count=1),
            "invalid_request",
            "-1",
        ),
        (
            TopicSpec(name="t", assignments=((0, (1,)),), replication_factor=1),
            "invalid_request",
            "-1",
        ),
        (
            TopicSpec(name="t", assignments=((1, (1,)),)),
            "invalid_replica_assignment",
            "without gaps",
        ),
        (
            TopicSpec(name="t", assignments=((0, (1,)), (0, (2,)))),
            "invalid_replica_assignment",
            "more than once",
        ),
        (
            TopicSpec(name="t", assignments=((0, (1,)), (1, (1, 2)))),
            "invalid_replica_assignment",
            "before it",
        ),
        (TopicSpec(name="t", configs=(("no.such", "1"),)), "invalid_config", "no.such"),
        (TopicSpec(name="t", configs=(("retention.ms", None),)), "invalid_config", "no value"),
        (
            TopicSpec(name="t", configs=(("retention.ms", "1"), ("retention.ms", "2"))),
            "invalid_request",
            "more than once",
        ),
    ],
)
def test_refusals_name_their_cause(spec: TopicSpec, code: str, named: str) -> None:
    with pytest.raises(PenstockError, match=named) as caught:
        plan(spec, image(topic("old", 10), topic("a.b", 20)))
    assert caught.value.code == code


def test_a_broker_that_is_away_counts_if_it_has_copies_and_does_not_lead() -> None:
    known = image(topic("copied", 2, factor=3), topic("alone", 1))
    configs = (("min.insync.replicas", "2"),)
    spec = TopicSpec(name="t", replication_factor=3, partition_count=20, configs=configs)
    with pytest.raises(PenstockError, match="only 2 broker"):
        plan(spec, image(topic("alone", 1)))
    reachable = dataclasses.replace(
        known,
        brokers=tuple(
            replace(broker, endpoints=((REPLICATION, "h", 2),)) for broker in known.brokers
        ),
    )
    made = plan(spec, reachable)
    assert all(sorted(replicas) == [1, 2, 3] for replicas in made.partitions)
    assert {replicas[0] for replicas in made.partitions} == {1, 2}
    with pytest.raises(PenstockError, match="factor 4: only 3 broker"):
        plan(replace(spec, replication_factor=4), reachable)


def test_nothing_new_is_placed_on_a_broker_that_is_to_go() -> None:
    cluster = {"placement.excluded.brokers": "2, 9"}
    levels = replace(LEVELS, cluster=cluster)

    def made(spec: TopicSpec) -> Any:
        return plan_topic(spec, TOPIC_ID, image=image(), settings=SETTINGS, levels=levels)

    assert made(TopicSpec(name="t", partition_count=20)).partitions == ((1,),) * 20
    assert made(TopicSpec(name="t", assignments=((0, (2,)),))).partitions == ((2,),), "by hand"
    with pytest.raises(PenstockError, match=r"only 1 broker.* 2, 9 are excluded"):
        made(TopicSpec(name="t", replication_factor=2))
    old = topic("orders", partitions=2)
    more = plan_partitions(
        old, total_count=3, assignments=None, image=image(old), settings=SETTINGS, levels=levels
    )
    assert more == ((1,),)
    with pytest.raises(PenstockError, match="'x': must be broker ids"):
        check_broker_configs({"placement.excluded.brokers": "2,x"})


def grow(total: int, assignments: list[tuple[int, ...]] | None = None) -> Any:
    old = topic("orders", partitions=2, factor=2)
    return plan_partitions(
        old,
        total_count=total,
        assignments=assignments,
        image=image(old),
        settings=SETTINGS,
        levels=LEVELS,
    )


def test_more_partitions() -> None:
    assert grow(4) == ((2, 1), (2, 1))  # as broker 1 leads the two that there are
    assert grow(3, [(2, 1)]) == ((2, 1),)


def test_more_partitions_have_as_many_replicas_as_a_reassignment_will_make() -> None:
    old = topic("orders", factor=1)
    moved = replace(old, partitions=(replace(old.partitions[0], target=(1, 2), move=1),))
    more = plan_partitions(
        moved, total_count=2, assignments=[(2, 1)], image=image(moved), settings=SETTINGS,
        levels=LEVELS,
    )  # fmt: skip
    assert more == ((2, 1),)


@pytest.mark.parametrize(
    ("total", "assignments", "code"),
    [
        (2, None, "invalid_partitions"),
        (1, None, "invalid_partitions"),
        (-1, None, "invalid_partitions"),
        (101, None, "invalid_partitions"),
        (4, [(1, 2)], "invalid_replica_assignment"),
        (3, [(1,)], "invalid_replica_assignment"),
        (3, [(1, 9)], "invalid_replica_assignment"),
    ],
)
def test_growth_that_cannot_be(
    total: int, assignments: list[tuple[int, ...]] | None, code: str
) -> None:
    with pytest.raises(PenstockError) as caught:
        grow(total, assignments)
    assert caught.value.code == code
