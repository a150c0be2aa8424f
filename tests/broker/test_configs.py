"""Configurations are looked up through their levels, described with them, and changed safely."""

import re
from collections.abc import Mapping

import pytest

from penstock.base.settings import describe, load
from penstock.broker.configuration.configs import (
    TOPIC_SYNONYMS,
    Change,
    ConfigSource,
    ConfigType,
    Levels,
    Operation,
    apply_broker_changes,
    apply_topic_changes,
    check_broker_configs,
    check_topic_configs,
    describe_broker,
    describe_cluster_defaults,
    describe_topic,
    topic_config,
)
from penstock.broker.configuration.settings import BrokerSettings
from penstock.broker.net.errors import BadRequest, InvalidConfig
from penstock.storage.files.settings import LogConfig


def levels(
    file: Mapping[str, object] | None = None,
    cluster: Mapping[str, str] | None = None,
    broker: Mapping[str, str] | None = None,
) -> Levels:
    return Levels(
        file=(load(BrokerSettings, file or {}),), cluster=cluster or {}, broker=broker or {}
    )


def test_broker_defaults_agree_with_the_topics_own() -> None:
    own = {info.name: info for info in describe(LogConfig)}
    assert set(TOPIC_SYNONYMS) <= set(own)
    assert topic_config(levels(), {}) == LogConfig()


def test_levels_override_each_other_in_order() -> None:
    file = {"log.retention.bytes": 1}
    cluster = {"log.retention.bytes": "2"}
    broker = {"log.retention.bytes": "3"}
    topic = {"retention.bytes": "4"}
    assert topic_config(levels(file), {}).retention_bytes == 1
    assert topic_config(levels(file, cluster), {}).retention_bytes == 2
    assert topic_config(levels(file, cluster, broker), {}).retention_bytes == 3
    assert topic_config(levels(file, cluster, broker), topic).retention_bytes == 4
    (entry,) = describe_topic(levels(file, cluster, broker), topic, ["retention.bytes"])
    assert [(s.name, s.value, s.source) for s in entry.synonyms] == [
        ("retention.bytes", "4", ConfigSource.DYNAMIC_TOPIC),
        ("log.retention.bytes", "3", ConfigSource.DYNAMIC_BROKER),
        ("log.retention.bytes", "2", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("log.retention.bytes", "1", ConfigSource.STATIC_BROKER),
        ("log.retention.bytes", "-1", ConfigSource.DEFAULT),
    ]
    assert (entry.value, entry.source, entry.type) == (
        "4",
        ConfigSource.DYNAMIC_TOPIC,
        ConfigType.LONG,
    )


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ({}, 168 * 3_600_000),
        ({"log.retention.hours": 1}, 3_600_000),
        ({"log.retention.hours": -1}, -1),
        ({"log.retention.hours": 1, "log.retention.minutes": 2}, 120_000),
        ({"log.retention.minutes": 2, "log.retention.ms": 3}, 3),
        ({"log.retention.ms": -1}, -1),
    ],
)
def test_times_come_in_several_units(file: Mapping[str, object], expected: int) -> None:
    assert topic_config(levels(file), {}).retention_ms == expected
    (entry,) = describe_topic(levels(file), {}, ["retention.ms"])
    assert entry.value == str(expected)
    assert entry.source is (ConfigSource.STATIC_BROKER if file else ConfigSource.DEFAULT)


def test_describes_a_topic_whole_or_by_keys() -> None:
    entries = describe_topic(levels(), {"cleanup.policy": "compact"})
    assert [entry.name for entry in entries] == sorted(info.name for info in describe(LogConfig))
    assert all(entry.documentation and not entry.read_only for entry in entries)
    assert describe_topic(levels(), {}, ["no.such"]) == []


def test_describes_a_broker() -> None:
    entries = {e.name: e for e in describe_broker(levels({"node.id": 4}, {}, {}))}
    assert entries["node.id"].source is ConfigSource.STATIC_BROKER
    assert entries["node.id"].read_only
    assert not entries["log.retention.bytes"].read_only
    assert entries["log.retention.ms"].value is None
    assert entries["listeners"].type is ConfigType.LIST
    assert entries["delete.topic.enable"].type is ConfigType.BOOLEAN


def test_the_empty_broker_name_shows_only_what_is_dynamic() -> None:
    shown = describe_cluster_defaults(levels(cluster={"log.retention.bytes": "7"}))
    assert [(e.name, e.value, e.source) for e in shown] == [
        ("log.retention.bytes", "7", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    ]


@pytest.mark.parametrize(
    ("configs", "named"),
    [
        ({"no.such": "1"}, "no.such"),
        ({"retention.msec": "1"}, "did you mean retention.ms?"),
        ({"retention.ms": "soon"}, "soon"),
        ({"retention.ms": "-2"}, "at least -1"),
        ({"cleanup.policy": "burn"}, "delete"),
        ({"retention.ms": None}, "retention.ms"),
    ],
)
def test_refuses_topic_configurations(configs: Mapping[str, str | None], named: str) -> None:
    with pytest.raises(InvalidConfig, match=named) as caught:
        check_topic_configs("orders", levels(), configs)
    assert "orders" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        ("compression.gzip.level", ("-1", "1", "9"), ("0", "-2", "10", "fast")),
        ("compression.lz4.level", ("1", "17"), ("0", "18")),
        ("compression.zstd.level", ("-131072", "22"), ("-131073", "23")),
        ("leader.replication.throttled.replicas", ("", "*", "0:1", "0:1,12:3"), ("0", "*,0:1")),
        ("follower.replication.throttled.replicas", ("", "*", "0:1"), ("0:1:2", "a:b", "0:-1")),
        ("internal.segment.bytes", ("0", "500"), ("-1", "2147483648")),
    ],
)
def test_knows_what_kafka_4_knows(
    name: str, taken: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    for value in taken:
        assert check_topic_configs("orders", levels(), {name: value}) == {name: value}
    for value in refused:
        with pytest.raises(InvalidConfig, match=rf"setting {name} = '{re.escape(value)}'"):
            check_topic_configs("orders", levels(), {name: value})


def test_segments_for_tests_are_smaller_than_any_others() -> None:
    assert topic_config(levels(), {"internal.segment.bytes": "500"}).segment_bytes == 500
    assert topic_config(levels(), {}).segment_bytes == 1 << 30


def test_a_stored_remote_storage_enable_keeps_other_configs_valid() -> None:
    """Stored by a version that took it: its other configurations still hold."""
    stored = {"remote.storage.enable": "true", "retention.ms": "-1"}
    assert topic_config(levels(), stored).retention_ms == -1
    by_name = {entry.name: entry.value for entry in describe_topic(levels(), stored)}
    assert by_name["remote.storage.enable"] == "true"


def test_refuses_broker_configurations() -> None:
    assert check_broker_configs({"log.retention.bytes": "5"}) == {"log.retention.bytes": "5"}
    with pytest.raises(BadRequest, match=r"node\.id"):
        check_broker_configs({"node.id": "5"})
    with pytest.raises(InvalidConfig, match=r"no\.such"):
        check_broker_configs({"no.such": "5"})


def change(name: str, operation: Operation, value: str | None = None) -> Change:
    return Change(name=name, operation=operation, value=value)


def test_incremental_changes() -> None:
    current = {"retention.ms": "1", "segment.ms": "2"}
    assert apply_topic_changes(
        levels(),
        current,
        [
            change("retention.ms", Operation.DELETE),
            change("segment.ms", Operation.SET, "3"),
            change("cleanup.policy", Operation.APPEND, "compact,delete"),
        ],
    ) == {"segment.ms": "3", "cleanup.policy": "delete,compact"}
    assert apply_topic_changes(
        levels(),
        {"cleanup.policy": "delete,compact"},
        [change("cleanup.policy", Operation.SUBTRACT, "delete")],
    ) == {"cleanup.policy": "compact"}
    assert apply_broker_changes(
        levels(), {}, [change("log.cleanup.policy", Operation.APPEND, "compact")]
    ) == {"log.cleanup.policy": "delete,compact"}


def test_incremental_changes_that_cannot_be() -> None:
    with pytest.raises(InvalidConfig, match="lists only"):
        apply_topic_changes(levels(), {}, [change("retention.ms", Operation.APPEND, "1")])
    with pytest.raises(BadRequest, match="needs a value"):
        apply_topic_changes(levels(), {}, [change("retention.ms", Operation.SET)])
    with pytest.raises(BadRequest, match="more than once"):
        apply_topic_changes(
            levels(),
            {},
            [change("retention.ms", Operation.SET, "1"), change("retention.ms", Operation.DELETE)],
        )
