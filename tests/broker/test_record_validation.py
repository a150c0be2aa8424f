"""Handmade batches on a real connection: what a log that looks inside refuses is never stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.broker.server import BrokerServer
from tests.broker.conftest import StartBroker
from tests.broker.wire_client import WireClient, produce_request
from tests.records.nonsense import GOOD, KEYLESS, SPOILED, sealed

Connect = Callable[[BrokerServer], Awaitable[WireClient]]
GOOD_BATCH = sealed(b"".join(GOOD), 3)
INVALID_RECORD = 87
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53


async def end_offset(client: WireClient, partition: int = 0) -> int:
    found = await client.fetch("t", 0, partition)
    assert found.error_code == 0
    return int(found.high_watermark)


async def alter(client: WireClient, topic: str, name: str, value: str) -> None:
    change = {"name": name, "config_operation": 0, "value": value}
    resource = {"resource_type": 2, "resource_name": topic, "configs": [change]}
    answer = await client.call(
        "IncrementalAlterConfigs", 1, {"resources": [resource], "validate_only": False}
    )
    assert answer.responses[0].error_code == 0


async def described(client: WireClient, topic: str, name: str) -> tuple[str, int]:
    """A topic's configuration, and where it comes from."""
    resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": [name]}
    answer = await client.call(
        "DescribeConfigs",
        4,
        {"resources": [resource], "include_synonyms": False, "include_documentation": False},
    )
    (found,) = answer.results[0].configs
    return str(found.value), int(found.config_source)


@pytest.mark.parametrize("name", SPOILED)
async def test_nonsense_is_refused_and_nothing_of_it_is_stored(
    start_broker: StartBroker, connect: Connect, name: str
) -> None:
    client = await connect(await start_broker({"log.record.validation": "chain"}))
    await client.create("t", partitions=2)
    section, count, record, reason = SPOILED[name]
    for _ in range(2):
        rows: list[dict[str, Any]] = [
            {"index": 0, "records": sealed(section, count)},
            {"index": 1, "records": GOOD_BATCH},
        ]
        request = produce_request("t") | {"topic_data": [{"name": "t", "partition_data": rows}]}
        answer = await client.call("Produce", 9, request)
        refused, stored = answer.responses[0].partition_responses
        assert (refused.error_code, refused.base_offset) == (INVALID_RECORD, -1)
        assert f"batch 0, record {record} of {count}: " in refused.error_message
        assert reason in refused.error_message
        assert [error.batch_index for error in refused.record_errors] == [record]
        assert stored.error_code == 0
    assert (await client.produce("t", GOOD_BATCH)).base_offset == 0
    assert [await end_offset(client, partition) for partition in range(2)] == [3, 6]


async def test_compressed_batches_are_opened_with_full_only(
    start_broker: StartBroker, connect: Connect
) -> None:
    client = await connect(await start_broker())
    await client.create("t")
    section, count, record, reason = SPOILED["offsets with a gap"]
    packed, plain = sealed(section, count, codec=4), sealed(section, count)
    assert await described(client, "t", "record.validation") == ("chain", 5)
    for setting, accepted in (("headers", 2), ("chain", 1), ("full", 0)):
        await alter(client, "t", "record.validation", setting)
        assert await described(client, "t", "record.validation") == (setting, 1)
        answers = [await client.produce("t", data) for data in (packed, plain)]
        assert [done.error_code for done in answers] == (
            [0] * accepted + [INVALID_RECORD] * (2 - accepted)
        )
    assert reason in answers[0].error_message
    assert [error.batch_index for error in answers[0].record_errors] == [record]
    assert (await client.produce("t", sealed(b"".join(GOOD), 3, codec=2))).error_code == 0
    assert await end_offset(client) == 3 * 3 + 3


async def test_what_is_opened_for_another_codec_is_looked_at(
    start_broker: StartBroker, connect: Connect
) -> None:
    settings = {"log.record.validation": "chain", "compression.type": "zstd"}
    client = await connect(await start_broker(settings))
    await client.create("t")
    section, count, _, _ = SPOILED["trailing bytes"]
    for codec in (0, 3):
        done = await client.produce("t", sealed(section, count, codec=codec))
        assert done.error_code == INVALID_RECORD
        assert (await client.produce("t", sealed(b"".join(GOOD), 3, codec=codec))).error_code == 0
    assert (await client.produce("t", sealed(section, count, codec=4))).error_code == 0
    assert await end_offset(client) == 9


@pytest.mark.parametrize("codec", [0, 1])
async def test_a_compacted_topic_takes_no_record_without_a_key(
    start_broker: StartBroker, connect: Connect, codec: int
) -> None:
    client = await connect(await start_broker({"log.cleanup.policy": "delete,compact"}))
    await client.create("t")
    keyless = sealed(GOOD[0] + KEYLESS + GOOD[2], 3, codec=codec)
    done = await client.produce("t", keyless)
    assert done.error_code == INVALID_RECORD
    assert "record 1 of 3: a compacted topic rejects records without a key" in done.error_message
    assert [error.batch_index for error in done.record_errors] == [1]
    assert (await client.produce("t", sealed(b"".join(GOOD), 3, codec=codec))).base_offset == 0


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"attributes": 0x10}, TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (
            {"attributes": 0x10, "producer_id": 5, "producer_epoch": 0, "base_sequence": 0},
            TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        ({"attributes": 0x20}, INVALID_RECORD),
    ],
)
async def test_clients_write_no_transactions_and_no_markers(
    client: WireClient, changes: dict[str, int], error: int
) -> None:
    await client.create("t")
    done = await client.produce("t", sealed(b"".join(GOOD), 3, **changes))
    assert done.error_code == error
    assert await end_offset(client) == 0
