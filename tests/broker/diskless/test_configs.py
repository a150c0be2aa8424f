"""`diskless.enable`: set when a topic is created or later, and then fixed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from penstock.broker.metadata.leaders import check_change, configs_of_new, is_diskless
from penstock.broker.server import BrokerServer
from penstock.control import Topic
from penstock.storage.files.settings import LogConfig
from tests.broker.diskless.conftest import Cluster
from tests.broker.wire_client import WireClient, batch

Create = Callable[..., Awaitable[Any]]
INVALID_CONFIG = 40


async def configs_of(client: WireClient, topic: str) -> dict[str, str]:
    answer = await client.call(
        "DescribeConfigs",
        4,
        {
            "resources": [{"resource_type": 2, "resource_name": topic, "configuration_keys": None}],
            "include_synonyms": False,
            "include_documentation": False,
        },
    )
    return {entry.name: entry.value for entry in answer.results[0].configs}


async def altered(client: WireClient, topic: str, operation: int = 0, **configs: str) -> Any:
    answer = await client.call(
        "IncrementalAlterConfigs",
        1,
        {
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": topic,
                    "configs": [
                        {
                            "name": name.replace("_", "."),
                            "config_operation": operation,
                            "value": value or None,
                        }
                        for name, value in configs.items()
                    ],
                }
            ],
            "validate_only": False,
        },
    )
    return answer.responses[0]


@pytest.mark.parametrize(("given", "kept"), [("true", True), ("TRUE", True), ("false", False)])
async def test_a_topic_is_what_it_was_created_as(
    broker: BrokerServer, client: WireClient, create: Create, given: str, kept: bool
) -> None:
    assert (await create("t", diskless_enable=given)).error_code == 0
    assert broker.partitions.topics["t"].diskless is kept
    assert (await configs_of(client, "t"))["diskless.enable"] == str(kept).lower()


async def test_a_diskless_topic_may_be_compacted(client: WireClient, create: Create) -> None:
    assert (await create("t", cleanup_policy="compact,delete")).error_code == 0
    configs = await configs_of(client, "t")
    assert (configs["diskless.enable"], configs["cleanup.policy"]) == ("true", "compact,delete")


async def test_records_go_to_brokers_that_can_hold_replicas(
    client: WireClient, create: Create
) -> None:
    await create("t")
    refused = await altered(client, "t", diskless_enable="false")
    assert refused.error_code.name == "invalid_replication_factor"
    assert "1 replicas, but only brokers [] can hold them" in refused.error_message
    assert (await altered(client, "t", diskless_enable="true")).error_code == 0
    assert (await configs_of(client, "t"))["diskless.enable"] == "true"


async def test_a_diskless_topic_takes_other_configs_and_keeps_its_records(
    client: WireClient, create: Create
) -> None:
    await create("t")
    await client.produce("t", batch(b"a"))
    assert (await altered(client, "t", retention_ms="12345")).error_code == 0
    assert (await client.produce("t", batch(b"b"))).base_offset == 1
    assert (await altered(client, "t", cleanup_policy="compact")).error_code == 0
    deleted = await altered(client, "t", operation=1, diskless_enable="")
    assert deleted.error_code == INVALID_CONFIG
    whole = await client.call(
        "AlterConfigs",
        2,
        {
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": "t",
                    "configs": [{"name": "retention.ms", "value": "9"}],
                }
            ],
            "validate_only": False,
        },
    )
    assert whole.responses[0].error_code == 0
    configs = await configs_of(client, "t")
    assert (configs["diskless.enable"], configs["retention.ms"]) == ("true", "9")


async def test_new_topics_follow_the_brokers_default_unless_they_say(cluster: Cluster) -> None:
    broker = await cluster.start({"log.diskless.enable": "true"})
    client = await cluster.connect(broker)
    await client.create("plain")
    await client.call(
        "Metadata", 9, {"topics": [{"name": "auto"}], "allow_auto_topic_creation": True}
    )
    for name, configs in (
        ("local", {"diskless.enable": "false"}),
        ("compacted", {"cleanup.policy": "compact"}),
    ):
        await client.call(
            "CreateTopics",
            7,
            {
                "topics": [
                    {
                        "name": name,
                        "num_partitions": 1,
                        "replication_factor": 1,
                        "assignments": [],
                        "configs": [{"name": n, "value": v} for n, v in configs.items()],
                    }
                ],
                "timeout": 5000,
            },
        )
    kinds = {name: topic.diskless for name, topic in broker.partitions.topics.items()}
    assert kinds == {"plain": True, "auto": True, "local": False, "compacted": False}


def topic(**configs: str) -> Topic:
    from uuid import UUID

    named = {name.replace("_", "."): value for name, value in configs.items()}
    return Topic(topic_id=UUID(int=1), name="t", configs=named, partitions=())


def test_the_rules_as_functions() -> None:
    assert configs_of_new({}, LogConfig(), default=False) == {}
    assert configs_of_new({}, LogConfig(), default=True) == {"diskless.enable": "true"}
    compacted = LogConfig(cleanup_policy=("compact",))
    assert configs_of_new({}, compacted, default=True) == {}
    said, both = {"diskless.enable": "true"}, replace(compacted, diskless_enable=True)
    assert configs_of_new(said, both, default=False) == said
    assert is_diskless(topic(diskless_enable="true"))
    assert not is_diskless(topic(diskless_enable="false"))
    diskless = LogConfig(diskless_enable=True)
    assert check_change(topic(), {"diskless.enable": "1"}, diskless) == {"diskless.enable": "true"}
    assert check_change(topic(), said, both) == said
