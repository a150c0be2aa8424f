"""Configurations are described and altered over the wire, per resource."""

from typing import Any

import pytest

from penstock.broker.server import BrokerServer
from tests.broker.handlers.calls import call, names, versions
from tests.broker.handlers.test_topics import create, creation

TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)


async def describe(
    broker: BrokerServer,
    *resources: tuple[int, str, list[str] | None],
    version: int = 4,
    synonyms: bool = False,
    documentation: bool = False,
) -> Any:
    request = {
        "resources": [
            {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
            for kind, name, keys in resources
        ],
        "include_synonyms": synonyms,
        "include_documentation": documentation,
    }
    return (await call(broker, "DescribeConfigs", version, request)).results


async def alter(
    broker: BrokerServer, *resources: tuple[int, str, Any], validate_only: bool = False
) -> list[str]:
    request = {
        "resources": [
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [
                    {"name": key, "config_operation": operation, "value": value}
                    for key, operation, value in changes
                ],
            }
            for kind, name, changes in resources
        ],
        "validate_only": validate_only,
    }
    response = await call(broker, "IncrementalAlterConfigs", 1, request)
    return [names(answer.error_code) for answer in response.responses]


@pytest.mark.parametrize("version", versions("DescribeConfigs"))
async def test_describes_a_topic(broker: BrokerServer, version: int) -> None:
    await create(broker, creation("a", configs=({"name": "retention.ms", "value": "5"},)))
    (result,) = await describe(
        broker, (TOPIC, "a", None), version=version, synonyms=True, documentation=True
    )
    assert (result.resource_type, result.resource_name) == (TOPIC, "a")
    by_name = {config.name: config for config in result.configs}
    assert by_name["retention.ms"].value == "5"
    assert by_name["retention.ms"].config_source == 1
    assert [synonym.source for synonym in by_name["retention.ms"].synonyms] == [1, 5]
    assert not by_name["retention.ms"].read_only
    if version >= 3:
        assert by_name["retention.ms"].config_type == 5
        assert by_name["retention.ms"].documentation


async def test_describes_by_keys_and_without_extras(broker: BrokerServer) -> None:
    await create(broker, creation("a"))
    (result,) = await describe(broker, (TOPIC, "a", ["segment.bytes", "no.such"]))
    (config,) = result.configs
    assert (config.name, config.value, config.synonyms, config.documentation) == (
        "segment.bytes",
        str(1 << 30),
        (),
        None,
    )


async def test_describes_brokers(broker: BrokerServer) -> None:
    own, cluster, other, text = await describe(
        broker, (BROKER, "1", None), (BROKER, "", None), (BROKER, "2", None), (BROKER, "x", None)
    )
    by_name = {config.name: config for config in own.configs}
    assert by_name["node.id"].read_only
    assert not by_name["log.retention.hours"].read_only
    assert cluster.configs == ()
    assert [names(r.error_code) for r in (own, cluster, other, text)] == [
        "none",
        "none",
        "invalid_request",
        "invalid_request",
    ]


@pytest.mark.parametrize(
    ("advertised", "shown"),
    [
        (("broker.example", 9093), "PLAINTEXT://broker.example:9093"),
        (("::1", 9092), "PLAINTEXT://[::1]:9092"),
    ],
)
async def test_describes_the_advertised_address(
    broker: BrokerServer, advertised: tuple[str, int], shown: str
) -> None:
    broker.identity.endpoints = {"PLAINTEXT": advertised}
    (result,) = await describe(broker, (BROKER, "1", ["advertised.listeners"]))
    (config,) = result.configs
    assert (config.value, config.config_source, config.read_only) == (shown, 4, True)


async def test_lists_what_has_configurations(broker: BrokerServer) -> None:
    await create(broker, creation("b"), creation("a"))

    async def listed(version: int, *types: int) -> list[tuple[int, str]]:
        request = {"resource_types": types}
        response = await call(broker, "ListConfigResources", version, request)
        assert names(response.error_code) == "none"
        return [(item.resource_type, item.resource_name) for item in response.config_resources]

    topics, brokers = [(TOPIC, "a"), (TOPIC, "b")], [(BROKER, "1")]
    assert await listed(1) == topics + brokers
    assert await listed(1, TOPIC) == topics
    assert await listed(1, BROKER, 8, 16, 32) == brokers
    assert await listed(0) == []
    response = await call(broker, "ListConfigResources", 1, {"resource_types": [TOPIC, 7]})
    assert (names(response.error_code), response.config_resources) == ("unsupported_version", ())


async def test_describe_refuses_what_is_not_there(broker: BrokerServer) -> None:
    results = await describe(
        broker, (TOPIC, "gone", None), (TOPIC, "a b", None), (LOGGER, "1", None)
    )
    assert [names(result.error_code) for result in results] == [
        "unknown_topic_or_partition",
        "invalid_topic_exception",
        "invalid_request",
    ]


async def test_incremental_changes(broker: BrokerServer) -> None:
    await create(broker, creation("a", configs=({"name": "retention.ms", "value": "5"},)))
    outcome = await alter(
        broker,
        (
            TOPIC,
            "a",
            [
                ("retention.ms", DELETE, None),
                ("segment.bytes", SET, "2097152"),
                ("cleanup.policy", APPEND, "compact"),
            ],
        ),
    )
    assert outcome == ["none"]
    assert broker.partitions.topics["a"].topic.configs == {
        "segment.bytes": "2097152",
        "cleanup.policy": "delete,compact",
    }
    assert await alter(broker, (TOPIC, "a", [("cleanup.policy", SUBTRACT, "delete")])) == ["none"]
    log = broker.partitions.partition("a", 0)
    assert log.config.cleanup_policy == ("compact",)
    assert log.config.segment_bytes == 2_097_152


async def test_a_change_without_effect_is_made_with_a_warning(
    broker: BrokerServer, caplog: pytest.LogCaptureFixture
) -> None:
    await create(broker, creation("a"))
    useless = {"name": "preallocate", "config_operation": SET, "value": "true"}
    compact = {"name": "cleanup.policy", "config_operation": SET, "value": "compact"}
    reserve = {"name": "log.preallocate", "config_operation": SET, "value": "true"}

    async def warning(kind: int, name: str, *configs: dict[str, Any]) -> str | None:
        resource = {"resource_type": kind, "resource_name": name, "configs": configs}
        request = {"resources": [resource], "validate_only": False}
        (answer,) = (await call(broker, "IncrementalAlterConfigs", 1, request)).responses
        assert names(answer.error_code) == "none"
        found: str | None = answer.error_message
        return found

    said = await warning(TOPIC, "a", compact, useless)
    assert said is not None
    assert "preallocate = 'true': it has no effect: segment files grow as they are written" in said
    assert "cleanup.policy" not in said
    assert broker.partitions.partition("a", 0).config.cleanup_policy == ("compact",)
    # What was told once is not told again with the next change.
    assert await warning(TOPIC, "a", compact) is None
    said = await warning(BROKER, "", reserve)
    assert said is not None
    assert "it has no effect: segment files grow as they are written" in said
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "topic a: setting preallocate" in caplog.text


async def test_remote_storage_enable_is_refused_without_a_tier(broker: BrokerServer) -> None:
    await create(broker, creation("a"))
    outcome = await alter(broker, (TOPIC, "a", [("remote.storage.enable", SET, "true")]))
    assert outcome == ["invalid_config"]
    assert broker.partitions.topics["a"].topic.configs == {}
    assert await alter(broker, (TOPIC, "a", [("remote.storage.enable", SET, "false")])) == ["none"]


async def test_settings_of_apache_kafka_are_accepted_with_a_warning(
    broker: BrokerServer, caplog: pytest.LogCaptureFixture
) -> None:
    """librdkafka's test 0081_admin alters the first of them."""
    name = "sasl.kerberos.min.time.before.relogin"
    assert await alter(broker, (BROKER, "1", [(name, SET, "58000")])) == ["none"]
    assert f"setting {name} = '58000': it has no effect" in caplog.text
    assert await alter(broker, (BROKER, "", [("num.io.threads", SET, "4")])) == ["none"]
    (result,) = await describe(broker, (BROKER, "1", [name, "num.io.threads"]), synonyms=True)
    found = {row.name: (row.value, row.config_source, row.read_only) for row in result.configs}
    assert found == {name: ("58000", 2, False), "num.io.threads": ("4", 3, False)}
    (result,) = await describe(broker, (BROKER, "", None))
    assert [(row.name, row.value) for row in result.configs] == [("num.io.threads", "4")]
    outcome = await alter(
        broker,
        (BROKER, "1", [("zookeeper.connect", SET, "localhost")]),
        (BROKER, "", [("sasl.kerberos.", SET, "x")]),
    )
    assert outcome == ["invalid_request", "invalid_config"], "static in Apache Kafka; no name"
    assert await alter(broker, (BROKER, "1", [(name, DELETE, None)])) == ["none"]


async def test_incremental_changes_are_refused_one_by_one(broker: BrokerServer) -> None:
    await create(broker, creation("a"), creation("b"), creation("c"))
    outcome = await alter(
        broker,
        (TOPIC, "a", [("retention.ms", SET, "soon")]),
        (TOPIC, "b", [("retention.ms", SET, "1"), ("retention.ms", SET, "2")]),
        (TOPIC, "gone", [("retention.ms", SET, "1")]),
        (TOPIC, "c", [("retention.ms", 9, "1")]),
        (BROKER, "1", [("node.id", SET, "9")]),
        (BROKER, "", [("no.such", SET, "9")]),
        (LOGGER, "1", [("root", SET, "INFO")]),
    )
    assert outcome == [
        "invalid_config",
        "invalid_request",
        "unknown_topic_or_partition",
        "invalid_request",
        "invalid_request",
        "invalid_config",
        "invalid_request",
    ]
    repeated = (TOPIC, "a", [("retention.ms", SET, "1")])
    assert await alter(broker, repeated, repeated) == ["invalid_request", "invalid_request"]
    assert broker.partitions.topics["a"].topic.configs == {}


async def test_validate_only_changes_nothing(broker: BrokerServer) -> None:
    await create(broker, creation("a"))
    asked = (TOPIC, "a", [("retention.ms", SET, "1")])
    assert await alter(broker, asked, validate_only=True) == ["none"]
    assert broker.partitions.topics["a"].topic.configs == {}


async def test_broker_defaults_reach_topics(broker: BrokerServer) -> None:
    await create(broker, creation("a"))
    assert await alter(broker, (BROKER, "", [("log.retention.hours", SET, "2")])) == ["none"]
    assert broker.partitions.partition("a", 0).config.retention_ms == 7_200_000
    assert await alter(broker, (BROKER, "1", [("log.retention.ms", SET, "9")])) == ["none"]
    assert broker.partitions.partition("a", 0).config.retention_ms == 9
    (result,) = await describe(broker, (TOPIC, "a", ["retention.ms"]), synonyms=True)
    assert [(s.name, s.source) for s in result.configs[0].synonyms] == [
        ("log.retention.ms", 2),
        ("log.retention.hours", 3),
        ("log.retention.hours", 5),
    ]
    (cluster,) = await describe(broker, (BROKER, "", None))
    assert [(config.name, config.value) for config in cluster.configs] == [
        ("log.retention.hours", "2")
    ]


@pytest.mark.parametrize("version", versions("AlterConfigs"))
async def test_the_old_request_replaces_everything(broker: BrokerServer, version: int) -> None:
    await create(broker, creation("a", configs=({"name": "retention.ms", "value": "5"},)))
    request = {
        "resources": [
            {
                "resource_type": TOPIC,
                "resource_name": "a",
                "configs": [{"name": "segment.bytes", "value": "2097152"}],
            }
        ],
        "validate_only": False,
    }
    response = await call(broker, "AlterConfigs", version, request)
    assert names(response.responses[0].error_code) == "none"
    assert broker.partitions.topics["a"].topic.configs == {"segment.bytes": "2097152"}
