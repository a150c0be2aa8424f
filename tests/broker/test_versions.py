"""APIs and versions that Kafka 4.4 added: intended brokers, features, the quorum, patterns."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.handlers.api_versions import FEATURES
from penstock.broker.server import BrokerServer
from tests.broker.handlers.calls import names
from tests.broker.wire_client import WireClient

SOFTWARE = {"client_software_name": "tests", "client_software_version": "1"}


@pytest.mark.parametrize(
    ("cluster", "node", "error"),
    [
        (None, -1, "none"),
        ("own", 1, "none"),
        ("own", 2, "rebootstrap_required"),
        ("other", 1, "rebootstrap_required"),
        ("own", -1, "invalid_request"),
        (None, 1, "invalid_request"),
    ],
)
async def test_a_client_that_meets_another_broker_must_bootstrap_again(
    broker: BrokerServer, client: WireClient, cluster: str | None, node: int, error: str
) -> None:
    own = broker.cluster.image.cluster_id
    intended = {"cluster_id": own if cluster == "own" else cluster, "node_id": node}
    answer = await client.call("ApiVersions", 5, {**SOFTWARE, **intended})
    assert names(answer.error_code) == error
    assert bool(answer.api_keys) == (error == "none")


def update(version: int, feature: str, level: int) -> dict[str, Any]:
    kind = {"allow_downgrade": False} if version == 0 else {"upgrade_type": 1}
    change = {"feature": feature, "max_version_level": level, **kind}
    return {"feature_updates": [change], "validate_only": False, "timeout": 1000}


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_levels_of_features_are_fixed(client: WireClient, version: int) -> None:
    current = FEATURES["share.version"]
    for feature, level, reason in (
        ("share.version", current, ""),
        ("share.version", current + 1, f"only supports versions 0-{current}"),
        ("share.version", -1, f"only supports versions 0-{current}"),
        ("share.version", 0, f"fixed at {current}"),
        ("metadata.version", 7, "does not support this feature"),
    ):
        answer = await client.call("UpdateFeatures", version, update(version, feature, level))
        told = answer if version == 2 else answer.results[0]
        assert names(told.error_code) == ("invalid_update_version" if reason else "none")
        assert reason in (told.error_message or "")


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_database_is_described_as_a_quorum_of_one(
    broker: BrokerServer, client: WireClient, version: int
) -> None:
    await client.create("t")
    partitions = [{"partition_index": 0}]
    asked = {"topics": [{"topic_name": "__cluster_metadata", "partitions": partitions}]}
    answer = await client.call("DescribeQuorum", version, asked)
    image = broker.cluster.image
    (row,) = answer.topics[0].partitions
    assert (row.leader_id, row.leader_epoch) == (1, image.cluster_epoch)
    assert row.high_watermark == image.version
    assert [(voter.replica_id, voter.log_end_offset) for voter in row.current_voters] == [
        (1, image.version)
    ]
    assert row.observers == ()
    if version == 2:
        assert [node.node_id for node in answer.nodes] == [1]
    other = {"topics": [{"topic_name": "t", "partitions": partitions}]}
    refused = await client.call("DescribeQuorum", version, other)
    assert names(refused.topics[0].partitions[0].error_code) == "unknown_topic_or_partition"


@pytest.mark.parametrize("version", [1, 2])
async def test_partitions_move_to_no_other_directory(
    broker: BrokerServer, client: WireClient, version: int
) -> None:
    await client.create("t")

    async def moved(path: str, topic: str) -> Any:
        topics = [{"name": topic, "partitions": [0]}]
        asked = {"dirs": [{"path": path, "topics": topics}]}
        answer = await client.call("AlterReplicaLogDirs", version, asked)
        return names(answer.results[0].partitions[0].error_code)

    own = broker.store.directory
    assert await moved("/elsewhere", "t") == "log_dir_not_found"
    assert await moved(own, "t") == "none"
    assert await moved(own, "unknown") == "unknown_topic_or_partition"


async def test_transactional_ids_are_listed_by_a_pattern(client: WireClient) -> None:
    for name in ("orders-1", "orders-2", "bills-1"):
        started = {"transactional_id": name, "transaction_timeout": 60_000}
        answer = await client.call("InitProducerId", 1, started)
        assert names(answer.error_code) == "none"

    async def listed(pattern: str | None) -> Any:
        asked = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
        return await client.call(
            "ListTransactions", 2, {**asked, "transactional_id_pattern": pattern}
        )

    for pattern, found in (
        (None, {"orders-1", "orders-2", "bills-1"}),
        ("", {"orders-1", "orders-2", "bills-1"}),
        ("orders-.*", {"orders-1", "orders-2"}),
        ("orders", set()),
    ):
        answer = await listed(pattern)
        assert {row.transactional_id for row in answer.transaction_states} == found
    for pattern in ("(", r"(a)\1", "(?=a)"):
        assert names((await listed(pattern)).error_code) == "invalid_regular_expression"


async def test_the_deletion_of_a_group_says_why_it_failed(client: WireClient) -> None:
    answer = await client.call("DeleteGroups", 3, {"groups_names": ["unknown"]})
    assert names(answer.results[0].error_code) == "group_id_not_found"
    assert "unknown" in answer.results[0].error_message


async def test_sync_group_needs_its_protocol(client: WireClient) -> None:
    asked = {
        "group_id": "g",
        "generation_id": 1,
        "member_id": "m",
        "protocol_type": None,
        "protocol_name": "range",
        "assignments": [],
    }
    answer = await client.call("SyncGroup", 5, asked)
    assert names(answer.error_code) == "inconsistent_group_protocol"


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ("é" * 64, "none"),
        ("é" * 65, "offset_metadata_too_large"),
        ("𝄞" * 33, "offset_metadata_too_large"),
    ],
)
async def test_metadata_of_offsets_is_bounded_in_characters(
    start_broker: Any, metadata: str, error: str
) -> None:
    """Java counts a character beyond 16 bits as two."""
    broker = await start_broker({"offset.metadata.max.bytes": 64})
    client = await WireClient.connect(broker.kafka_address)
    await client.create("t")
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": metadata}
    asked = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "t", "partitions": [partition]}],
    }
    answer = await client.call("OffsetCommit", 7, asked)
    assert names(answer.topics[0].partitions[0].error_code) == error
    await client.close()
