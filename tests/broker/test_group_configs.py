"""Configurations of groups are read, checked, described and changed, by requests and by rules."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.configuration.configs import ConfigSource
from penstock.broker.configuration.groups import (
    check_group_configs,
    describe_group,
    duration_ms,
    group_configs,
)
from penstock.broker.configuration.settings import BrokerSettings
from penstock.broker.net.errors import InvalidConfig
from tests.broker.wire_client import WireClient

GROUP = 32
SET, DELETE = 0, 1
SETTINGS = BrokerSettings(group_share_delivery_count_limit=7)


async def alter(client: WireClient, *changes: tuple[str, int, str | None], name: str = "g") -> Any:
    configs = [
        {"name": key, "config_operation": operation, "value": value}
        for key, operation, value in changes
    ]
    resource = {"resource_type": GROUP, "resource_name": name, "configs": configs}
    answer = await client.call(
        "IncrementalAlterConfigs", 1, {"resources": [resource], "validate_only": False}
    )
    return answer.responses[0]


async def described(client: WireClient, name: str = "g") -> dict[str, tuple[str, int]]:
    request = {
        "resources": [{"resource_type": GROUP, "resource_name": name, "configuration_keys": None}],
        "include_synonyms": True,
        "include_documentation": False,
    }
    answer = await client.call("DescribeConfigs", 4, request)
    return {
        config.name: (config.value, config.config_source) for config in answer.results[0].configs
    }


async def test_configs_are_set_listed_and_taken_back(client: WireClient) -> None:
    before = await described(client)
    assert before["share.delivery.count.limit"] == ("5", ConfigSource.DEFAULT)
    assert not (await alter(client, ("share.delivery.count.limit", SET, "3"))).error_code
    found = await described(client)
    assert found["share.delivery.count.limit"] == ("3", ConfigSource.DYNAMIC_GROUP)
    listed = await client.call("ListConfigResources", 1, {"resource_types": (GROUP,)})
    assert [config_resource.resource_name for config_resource in listed.config_resources] == ["g"]
    assert not (await alter(client, ("share.delivery.count.limit", DELETE, None))).error_code
    assert await described(client) == before


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("share.delivery.count.limit", "1", "must be at least 2"),
        ("share.delivery.count", "1", "did you mean share.delivery.count.limit?"),
        ("share.isolation.level", "some", "must be one of read_uncommitted, read_committed"),
        ("share.auto.offset.reset", "by_duration:1h", "must have the form"),
        ("share.auto.offset.reset", "by_duration:P" + "9" * 400 + "D", "must have the form"),
        ("share.record.lock.duration.ms", "14999", "lock.duration.ms = 15000"),
        ("share.session.timeout.ms", "60001", "group.share.max.session.timeout.ms = 60000"),
        ("consumer.session.timeout.ms", "44999", "group.consumer.min.session.timeout.ms = 45000"),
        ("consumer.heartbeat.interval.ms", "1", "consumer.min.heartbeat.interval.ms = 5000"),
        ("consumer.assignment.interval.ms", "20000", "assignment.interval.ms = 15000"),
    ],
)
async def test_invalid_configs_are_rejected_with_a_cause(
    client: WireClient, name: str, value: str, said: str
) -> None:
    refused = await alter(client, (name, SET, value))
    assert refused.error_code.name == "invalid_config"
    assert said in refused.error_message
    assert refused.error_message.startswith("group 'g': ")


async def test_a_group_has_a_name(client: WireClient) -> None:
    refused = await alter(client, ("share.isolation.level", SET, "read_committed"), name="")
    assert refused.error_code.name == "invalid_request"


def test_the_brokers_settings_hold_where_a_group_has_none() -> None:
    assert group_configs(SETTINGS, {}).share_delivery_count_limit == 7
    configs = {"share.delivery.count.limit": "3"}
    assert group_configs(SETTINGS, configs).share_delivery_count_limit == 3
    (entry,) = describe_group(SETTINGS, configs, ["share.delivery.count.limit"])
    assert [(synonym.name, synonym.value) for synonym in entry.synonyms] == [
        ("share.delivery.count.limit", "3"),
        ("group.share.delivery.count.limit", "7"),
    ]
    assert entry.synonyms[1].source == ConfigSource.STATIC_BROKER


def test_a_value_is_needed() -> None:
    with pytest.raises(InvalidConfig, match="no value given"):
        check_group_configs(SETTINGS, "g", {"share.isolation.level": None})


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("by_duration:P1D", 86_400_000),
        ("by_duration:PT1H30M", 5_400_000),
        ("by_duration:P1DT0.5S", 86_400_500),
        ("by_duration:PT0.57S", 570),
        ("by_duration:PT9999999999H", 35_999_999_996_400_000),
        ("earliest", None),
        ("by_duration:P", None),
        ("by_duration:PT", None),
        ("by_duration:P99999999999D", None),
        ("by_duration:P٣D", None),
    ],
)
def test_durations(text: str, ms: int | None) -> None:
    assert duration_ms(text) == ms
