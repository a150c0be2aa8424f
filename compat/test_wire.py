"""Requests that no client sends on a good day, answered as Apache Kafka answers them."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.broker.wire_client import (
    WireClient,
    batch,
    fetch_request,
    produce_request,
    promising,
)

from compat.security import protocol
from compat.servers import Server
from compat.wire import Following, served
from penstock.records import seal

HOUR_MS = 3_600_000


@pytest.fixture
async def client(server: Server) -> AsyncIterator[WireClient]:
    client = await Following.connect_to(server.bootstrap)
    yield client
    await client.close()


@pytest.fixture
async def t(server: Server, client: WireClient, name: str) -> str:
    """A new topic of two partitions."""
    await client.create(name, 2)
    deadline = time.monotonic() + 20
    while not served(server.bootstrap, name, 2):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    return name


def changed(data: bytes, place: int, form: str, value: int, *, sealed: bool = True) -> bytes:
    """The batch with another value in its header, and a checksum that covers it."""
    copy = bytearray(data)
    struct.pack_into(form, copy, place, value)
    if sealed:
        seal(copy)
    return bytes(copy)


ONE = batch(b"a", b"b")
PRODUCED = {
    "one": (ONE, "none"),
    "two batches": (ONE + ONE, "invalid_record"),
    "base offset 5": (changed(ONE, 0, ">q", 5), "invalid_record"),
    "base offset -1": (changed(ONE, 0, ">q", -1), "invalid_record"),
    "cut in its records": (ONE[:-3], "invalid_record"),
    "cut in its header": (ONE[:40], "invalid_record"),
    "cut in its length": (ONE[:5], "invalid_record"),
    "length beyond": (changed(ONE, 8, ">i", 1 << 30, sealed=False), "invalid_record"),
    "length too small": (changed(ONE, 8, ">i", 10, sealed=False), "corrupt_message"),
    "checksum": (changed(ONE, 17, ">I", 1, sealed=False), "corrupt_message"),
    "magic 3": (changed(ONE, 16, ">b", 3), "corrupt_message"),
    "no records": (changed(changed(ONE, 57, ">i", 0), 23, ">i", -1), "invalid_record"),
    "count -1": (changed(ONE, 57, ">i", -1), "invalid_record"),
    "count beyond": (changed(changed(ONE, 57, ">i", 3), 23, ">i", 2), "invalid_record"),
    "delta beyond": (changed(ONE, 23, ">i", 7), "invalid_record"),
    "control batch": (changed(ONE, 21, ">h", 0x20), "invalid_record"),
    "later header": (promising(ONE, 1000), "none"),
}


@pytest.mark.parametrize("case", PRODUCED)
async def test_what_a_partition_of_a_produce_request_holds(
    client: WireClient, t: str, case: str
) -> None:
    records, error = PRODUCED[case]
    assert (await client.produce(t, records)).error_code.name == error
    assert (await client.produce(t, ONE)).base_offset == (2 if error == "none" else 0)


async def listed(client: WireClient, topic: str, version: int, timestamp: int) -> tuple[str, int]:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    request = {
        "replica_id": -1,
        "isolation_level": 0,
        "timeout": 1000,
        "topics": [{"name": topic, "partitions": [partition]}],
    }
    row = (await client.call("ListOffsets", version, request)).topics[0].partitions[0]
    return row.error_code.name, row.offset


async def test_special_timestamps_belong_to_versions(client: WireClient, t: str) -> None:
    await client.produce(t, ONE)
    first_version = {-3: 7, -4: 8, -5: 9, -6: 11, -7: 99, -100: 99}
    for version in range(1, 12):
        for timestamp, first in first_version.items():
            error, _ = await listed(client, t, version, timestamp)
            assert error == ("none" if version >= first else "unsupported_version")


async def test_a_header_with_a_later_maximum_time_hides_no_record(
    client: WireClient, t: str
) -> None:
    base = int(time.time() * 1000) - 3_600_000  # older ones may be deleted while this runs
    await client.produce(t, promising(batch(b"a", timestamp_ms=base), 1000))
    await client.produce(t, batch(b"b", timestamp_ms=base + 500))
    await client.produce(t, promising(batch(b"c", timestamp_ms=base + 600), 5000))
    for later_ms, offset in ((0, 0), (1, 1), (500, 1), (501, 2), (601, -1), (4000, -1)):
        assert await listed(client, t, 7, base + later_ms) == ("none", offset)
    assert await listed(client, t, 7, -3) == ("none", 2)


async def test_offsets_of_the_empty_group(client: WireClient, t: str) -> None:
    # Apache Kafka makes the topic of its offsets at the first question for a coordinator
    deadline = time.monotonic() + 30
    not_yet = {"not_coordinator", "coordinator_not_available", "coordinator_load_in_progress"}
    while await commit(client, t, -1, "") in not_yet:
        assert time.monotonic() < deadline
        await client.call("FindCoordinator", 3, {"key": "", "key_type": 0})
        await asyncio.sleep(0.1)
    assert await commit(client, t, -1, "") == "none"
    assert await commit(client, t, 1, "somebody") == "unknown_member_id"
    asked = {"group_id": "", "topics": [{"name": t, "partition_indexes": [0]}]}
    found = await client.call("OffsetFetch", 5, asked)
    assert found.topics[0].partitions[0].committed_offset == 7
    deleted = await client.call("OffsetDelete", 0, {"group_id": "", "topics": []})
    assert deleted.error_code.name == "invalid_group_id"
    gone = await client.call("DeleteGroups", 2, {"groups_names": [""]})
    assert gone.results[0].error_code.name == "none"


async def commit(client: WireClient, topic: str, generation: int, member: str) -> str:
    request = {
        "group_id": "",
        "generation_id_or_member_epoch": generation,
        "member_id": member,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
                ],
            }
        ],
    }
    answer = await client.call("OffsetCommit", 7, request)
    return str(answer.topics[0].partitions[0].error_code.name)


async def test_versions_of_init_producer_id_end_before_two_phases(client: WireClient) -> None:
    asked = {"client_software_name": "compat", "client_software_version": "1"}
    answer = await client.call("ApiVersions", 3, asked)
    found = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    assert found[22] == (0, 5)
    assert found[35] == (1, 5)
    assert found[74] == (0, 1)


async def test_a_broker_says_which_address_it_advertises(
    server: Server, client: WireClient
) -> None:
    cluster = await client.call(
        "DescribeCluster", 0, {"include_cluster_authorized_operations": False}
    )
    broker = cluster.brokers[0]
    resource = {
        "resource_type": 4,
        "resource_name": str(broker.broker_id),
        "configuration_keys": ["advertised.listeners"],
    }
    request = {
        "resources": [resource],
        "include_synonyms": False,
        "include_documentation": False,
    }
    (result,) = (await client.call("DescribeConfigs", 4, request)).results
    assert [(config.name, config.value) for config in result.configs] == [
        ("advertised.listeners", f"{protocol()}://{broker.host}:{broker.port}")
    ]


async def test_config_resources_of_unknown_types(client: WireClient, t: str) -> None:
    async def asked(*types: int) -> Any:
        return await client.call("ListConfigResources", 1, {"resource_types": types})

    assert (await asked(7)).error_code.name == "unsupported_version"
    kinds = {item.resource_type for item in (await asked(2, 4, 32)).config_resources}
    assert kinds == {2, 4}


async def test_an_unknown_partition_does_not_end_the_waiting_of_others(
    server: Server, client: WireClient, t: str
) -> None:
    """In a session the error is told, and what comes first after that are the records."""
    gone = {(t, 0): 0, (f"{t}-gone", 0): 0}
    first = await client.call("Fetch", 12, fetch_request(gone, session_id=0, session_epoch=0))
    assert first.session_id
    follow = fetch_request({}, session_id=first.session_id, session_epoch=1, max_wait=HOUR_MS)
    client.writer.write(client.frame("Fetch", 12, follow))
    producer = await Following.connect_to(server.bootstrap)
    try:
        # requests of another connection, so that a fetch that does not wait is answered by then
        for _ in range(20):
            await producer.call("ApiVersions", 0, {})
        await producer.call("Produce", 9, produce_request(t, ONE))
        answer = await client.response("Fetch", 12)
    finally:
        await producer.close()
    rows = {
        (topic.topic, row.partition_index): row
        for topic in answer.responses
        for row in topic.partitions
    }
    assert rows[t, 0].records
    assert rows[f"{t}-gone", 0].error_code.name == "unknown_topic_or_partition"
