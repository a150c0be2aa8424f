"""Audit events of Kafka requests."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import urlopen

import pytest

from penstock.broker.requests.access import CHANGES, RequestAudit
from penstock.broker.server import BrokerServer
from penstock.security import CLUSTER
from penstock.testing import Broker
from penstock.wire.kafka.apis import APIS
from tests.broker.test_authorisation import Recording
from tests.broker.wire_client import WireClient, batch
from tests.security.access import Noted


@pytest.fixture
def noted(broker: BrokerServer) -> Noted:
    noted = Noted()
    broker._dispatcher._audit = RequestAudit(noted)
    return noted


@pytest.fixture
def recording(broker: BrokerServer) -> Recording:
    return Recording.on(broker)


def test_the_table_says_what_is_a_change() -> None:
    names = {APIS[key].name for key in CHANGES}
    assert names >= {
        "CreateTopics", "DeleteTopics", "CreatePartitions", "DeleteRecords", "AlterConfigs",
        "IncrementalAlterConfigs", "AlterClientQuotas", "DeleteGroups", "OffsetDelete",
        "ElectLeaders", "AlterPartitionReassignments", "UnregisterBroker",
    }  # fmt: skip
    assert not names & {"Produce", "Fetch", "Metadata", "OffsetCommit", "JoinGroup"}


async def test_changes_are_audited_by_their_names(client: WireClient, noted: Noted) -> None:
    await client.create("orders")
    await client.produce("orders", batch(b"v"))
    config = {"name": "retention.ms", "value": "s3cret", "config_operation": 0}
    resources = [{"resource_type": 2, "resource_name": "orders", "configs": [config]}]
    await client.call(
        "IncrementalAlterConfigs", 1, {"resources": resources, "validate_only": False}
    )
    config["value"] = "60000"
    await client.call("IncrementalAlterConfigs", 1, {"resources": resources, "validate_only": True})
    await client.call(
        "IncrementalAlterConfigs", 1, {"resources": resources, "validate_only": False}
    )
    entity = [{"entity_type": "client-id", "entity_name": "app"}]
    operations = [{"key": "request_percentage", "value": 50.0, "remove": False}]
    entries = [{"entity": entity, "ops": operations}]
    await client.call("AlterClientQuotas", 1, {"entries": entries, "validate_only": False})
    await client.call("DeleteGroups", 1, {"groups_names": ["none"]})
    await client.call("DeleteTopics", 4, {"topic_names": ["orders"], "timeout": 1000})
    assert noted.facts("operation", "resources", "reason") == [
        ("change", "success", "CreateTopics", ["orders"], ""),
        ("change", "failure", "IncrementalAlterConfigs", ["orders"], "INVALID_CONFIG"),
        ("change", "success", "IncrementalAlterConfigs", ["orders"], ""),
        ("change", "success", "AlterClientQuotas", ["client-id app"], ""),
        ("change", "failure", "DeleteGroups", ["none"], "GROUP_ID_NOT_FOUND"),
        ("change", "success", "DeleteTopics", ["orders"], ""),
    ]
    first = noted.events[0]
    assert (first.principal, first.address, first.listener) == (
        "User:ANONYMOUS", "127.0.0.1", "PLAINTEXT",
    )  # fmt: skip


async def test_refusals_are_audited(client: WireClient, noted: Noted, recording: Recording) -> None:
    await client.create("orders")
    noted.events.clear()
    recording.refused = lambda _, kind, name: name in ("orders", CLUSTER)
    await client.produce("orders", batch(b"v"))
    await client.call("DescribeLogDirs", 1, {"topics": None})
    assert noted.facts("operation", "resources", "reason") == [
        (
            "denial", "denied", "Produce", ["orders"],
            "User:ANONYMOUS may not write topic orders",
        ),
        (
            "denial", "denied", "DescribeLogDirs", [CLUSTER],
            "User:ANONYMOUS may not describe cluster kafka-cluster",
        ),
    ]  # fmt: skip
    noted.events.clear()
    await client.call("DeleteTopics", 4, {"topic_names": ["orders"], "timeout": 1000})
    assert [event.event for event in noted.events] == ["denial"]


def test_a_broker_writes_the_file_that_its_settings_name(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with Broker({"audit.log.file": str(path)}) as broker:
        broker.create_topic("orders")
        with urlopen(f"{broker.admin_url}/metrics") as response:
            metrics = response.read().decode()
    assert 'penstock_audit_events_total{event="change"} 1.0' in metrics
    assert 'penstock_audit_dropped_total{sink="file"} 0.0' in metrics
    (line,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert (line["broker"], line["event"], line["operation"], line["resources"]) == (
        1, "change", "CreateTopics", ["orders"],
    )  # fmt: skip
