"""One request of each API, which changes nothing that another one of the matrix looks at.

Topics `m-t` and `m-u`, groups `m-g` and `m-share`, transactional id `m-i`; there is no `m-x`. Where
a request would change what others see, a super user sets it right before (`before`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid4

from tests.broker.wire_client import batch, fetch_request, produce_request

from penstock.wire.kafka.apis import BY_NAME

Body = dict[str, Any]
TOPIC, OTHER, MISSING, GROUP, TRANSACTION = "m-t", "m-u", "m-x", "m-g", "m-i"
SHARE_GROUP: Final = "m-share"
NO_FILTER: Final[Body] = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
    "principal_filter": "User:nobody", "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request, and what a super user asks before it."""

    name: str
    body: Body
    version: int = -1
    before: tuple[str, Body] | None = None

    @property
    def asked_version(self) -> int:
        return BY_NAME[self.name].maximum if self.version < 0 else self.version


def topics(*names: str) -> list[Body]:
    return [{"name": name} for name in names]


def partitions(*names: str, **each: Any) -> list[Body]:
    return [{"name": name, "partitions": [each]} for name in names]


def new_topic(name: str) -> Body:
    return {
        "name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [],
        "configs": [],
    }  # fmt: skip


def create(*names: str, validate_only: bool = False) -> Body:
    return {
        "topics": [new_topic(name) for name in names], "timeout": 10_000,
        "validate_only": validate_only,
    }  # fmt: skip


def offsets(group: str, *named: Body) -> Body:
    return {
        "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "",
        "group_instance_id": None, "topics": list(named),
    }  # fmt: skip


ONE_OFFSET: Final[Body] = {
    "partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1,
    "committed_metadata": "",
}  # fmt: skip
HAS_OFFSETS: Final = (
    "OffsetCommit", offsets(GROUP, {"name": TOPIC, "partitions": [ONE_OFFSET]}),
)  # fmt: skip


def asks(ids: Mapping[str, UUID]) -> Iterator[Ask]:
    """All requests; `ids` are those of the topics on the server."""
    yield from _records(ids)
    yield from _topics(ids)
    yield from _groups(ids)
    yield from _transactions(ids)
    yield from _cluster()


def _records(ids: Mapping[str, UUID]) -> Iterator[Ask]:
    both = {(TOPIC, 0): 0, (OTHER, 0): 0, (MISSING, 0): 0}
    two = {
        "acks": 1, "timeout": 10_000, "transactional_id": None,
        "topic_data": [
            {"name": name, "partition_data": [{"index": 0, "records": batch(b"v")}]}
            for name in (TOPIC, MISSING, OTHER)
        ],
    }  # fmt: skip
    by_id = [
        {"topic_id": topic_id, "partition_data": [{"index": 0, "records": batch(b"v")}]}
        for topic_id in (ids[TOPIC], ids[OTHER], UUID(int=99))
    ]
    yield Ask(name="Produce", body=two, version=12)
    yield Ask(name="Produce", body={**two, "topic_data": by_id})
    yield Ask(name="Produce", body=produce_request(MISSING, batch(b"v")), version=3)
    written = produce_request(TOPIC, batch(b"v", attributes=0x10))
    yield Ask(name="Produce", body={**written, "transactional_id": TRANSACTION}, version=11)
    yield Ask(name="Produce", body=written, version=11)
    yield Ask(name="Fetch", body=fetch_request(both), version=12)
    wanted = fetch_request(both)
    for topic in wanted["topics"]:
        topic["topic_id"] = ids.get(topic["topic"], UUID(int=99))
    yield Ask(name="Fetch", body=wanted)
    position = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    yield Ask(
        name="ListOffsets",
        body={"replica_id": -1, "isolation_level": 0, "timeout": 1000,
              "topics": partitions(TOPIC, MISSING, OTHER, **position)},
    )  # fmt: skip
    yield Ask(
        name="DeleteRecords",
        body={"topics": partitions(TOPIC, OTHER, MISSING, partition_index=0, offset=0),
              "timeout": 10_000},
    )  # fmt: skip
    epoch = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    yield Ask(
        name="OffsetForLeaderEpoch",
        body={"replica_id": -1,
              "topics": [{"topic": name, "partitions": [epoch]} for name in (TOPIC, MISSING)]},
    )  # fmt: skip
    yield Ask(
        name="DescribeProducers",
        body={"topics": [{"name": name, "partition_indexes": [0]} for name in (TOPIC, OTHER)]},
    )


def _topics(ids: Mapping[str, UUID]) -> Iterator[Ask]:
    names = {
        "topics": [{"topic_id": None, "name": name} for name in (TOPIC, OTHER, MISSING)],
        "allow_auto_topic_creation": False, "include_topic_authorized_operations": True,
    }  # fmt: skip
    yield Ask(name="Metadata", body=names)
    yield Ask(name="Metadata", body={**names, "topics": None})
    yield Ask(
        name="Metadata",
        body={**names, "topics": topics(TOPIC), "include_cluster_authorized_operations": True},
        version=10,
    )
    known = [
        {"topic_id": topic_id, "name": None} for topic_id in (ids[TOPIC], ids[OTHER], UUID(int=99))
    ]
    yield Ask(name="Metadata", body={**names, "topics": known})
    yield Ask(
        name="Metadata",
        body={**names, "topics": topics("m-auto"), "allow_auto_topic_creation": True},
        version=9,
        before=("DeleteTopics", {"topic_names": ["m-auto"], "timeout": 10_000}),
    )
    every = {"topics": topics(TOPIC, MISSING, OTHER), "response_partition_limit": 100}
    yield Ask(name="DescribeTopicPartitions", body={**every, "cursor": None})
    yield Ask(name="DescribeTopicPartitions", body={**every, "topics": [], "cursor": None})
    yield Ask(name="CreateTopics", body=create("m-new", "m-newer", validate_only=True))
    yield Ask(
        name="DeleteTopics",
        body={"topic_names": [MISSING, "m-del"], "timeout": 10_000},
        version=5,
        before=("CreateTopics", create("m-del")),
    )
    yield Ask(
        name="DeleteTopics",
        body={"topics": [{"name": None, "topic_id": UUID(int=99)}], "timeout": 10_000},
    )
    yield Ask(
        name="CreatePartitions",
        body={"topics": [{"name": name, "count": 9, "assignments": None}
                         for name in (TOPIC, MISSING)],
              "timeout": 10_000, "validate_only": True},
    )  # fmt: skip
    yield Ask(
        name="ElectLeaders",
        body={"election_type": 0, "topic_partitions": [{"topic": TOPIC, "partitions": [0]}],
              "timeout": 10_000},
    )  # fmt: skip
    yield Ask(name="AlterPartitionReassignments", body={"timeout": 10_000, "topics": []})
    yield Ask(name="ListPartitionReassignments", body={"timeout": 10_000, "topics": None})


def _groups(ids: Mapping[str, UUID]) -> Iterator[Ask]:
    by_name = [{"name": name, "partitions": [ONE_OFFSET]} for name in (TOPIC, MISSING, OTHER)]
    known = (ids[TOPIC], ids[OTHER], UUID(int=99))
    by_id = [{"topic_id": topic_id, "partitions": [ONE_OFFSET]} for topic_id in known]
    yield Ask(name="OffsetCommit", body=offsets(GROUP, *by_name), version=9)
    yield Ask(name="OffsetCommit", body=offsets(GROUP, *by_id))
    wanted = [{"name": name, "partition_indexes": [0]} for name in (TOPIC, MISSING, OTHER)]
    yield Ask(name="OffsetFetch", body={"group_id": GROUP, "topics": wanted}, version=5)
    more = {"member_id": None, "member_epoch": -1}
    two = [{"group_id": group, "topics": wanted, **more} for group in (GROUP, "m-none")]
    yield Ask(name="OffsetFetch", body={"groups": two, "require_stable": False}, version=9)
    all_of = [{"group_id": GROUP, "topics": None, **more}]
    yield Ask(
        name="OffsetFetch",
        body={"groups": all_of, "require_stable": False},
        version=9,
        before=HAS_OFFSETS,
    )
    for key_type, key in ((0, GROUP), (1, TRANSACTION)):
        keys = {"key_type": key_type, "coordinator_keys": [key, "other-key"], "key": key}
        yield Ask(name="FindCoordinator", body=keys)
        yield Ask(name="FindCoordinator", body=keys, version=3)
    yield from _members()
    yield from _share_groups(ids)


def _members() -> Iterator[Ask]:
    yield Ask(
        name="JoinGroup",
        body={"group_id": GROUP, "session_timeout": 10_000, "rebalance_timeout": 10_000,
              "member_id": "", "group_instance_id": None, "protocol_type": "consumer",
              "protocols": [{"name": "range", "metadata": b""}], "reason": None},
    )  # fmt: skip
    member = {"group_id": GROUP, "generation_id": 1, "member_id": "nobody",
              "group_instance_id": None}  # fmt: skip
    yield Ask(name="Heartbeat", body=member)
    yield Ask(name="LeaveGroup", body={
        "group_id": GROUP,
        "members": [{"member_id": "nobody", "group_instance_id": None, "reason": None}],
    })  # fmt: skip
    yield Ask(
        name="SyncGroup",
        body={**member, "protocol_type": "consumer", "protocol_name": "range", "assignments": []},
    )
    yield Ask(
        name="DescribeGroups",
        body={"groups": [GROUP, "m-none"], "include_authorized_operations": True},
        before=HAS_OFFSETS,
    )
    yield Ask(name="ListGroups", body={"states_filter": [], "types_filter": []}, before=HAS_OFFSETS)
    yield Ask(name="DeleteGroups", body={"groups_names": ["m-none", GROUP]})
    yield Ask(
        name="OffsetDelete",
        body={"group_id": GROUP, "topics": partitions(TOPIC, MISSING, partition_index=0)},
        before=HAS_OFFSETS,
    )
    beat = {
        "group_id": GROUP, "member_id": str(UUID(int=5)), "member_epoch": 5, "instance_id": None,
        "rack_id": None, "rebalance_timeout": -1, "subscribed_topic_names": [TOPIC, OTHER],
        "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": None,
    }  # fmt: skip
    for name in ("ConsumerGroupHeartbeat", "ShareGroupHeartbeat"):
        yield Ask(name=name, body=beat)
        yield Ask(name=name, body={**beat, "subscribed_topic_names": None})
    groups = {
        "group_ids": [GROUP, "m-none"], "include_authorized_operations": False,
        "include_topology_description": False,
    }  # fmt: skip
    for name in ("ConsumerGroupDescribe", "ShareGroupDescribe", "StreamsGroupDescribe"):
        yield Ask(name=name, body=groups)
    yield from _streams(beat)


def _streams(beat: Body) -> Iterator[Ask]:
    """Heartbeats of no member: one without and one with a topology, which a join alone may have."""
    nothing = dict.fromkeys((
        "active_tasks", "standby_tasks", "warmup_tasks", "process_id", "user_endpoint",
        "client_tags", "task_offsets", "task_end_offsets",
    ))  # fmt: skip
    heartbeat = {
        **beat, **nothing, "topology": None, "endpoint_information_epoch": 0,
        "shutdown_application": False,
    }  # fmt: skip
    yield Ask(name="StreamsGroupHeartbeat", body=heartbeat)
    for sources, sinks in (([TOPIC, MISSING], []), ([TOPIC], [OTHER])):
        subtopology = {
            "subtopology_id": "0", "source_topics": sources, "source_topic_regex": [],
            "state_changelog_topics": [], "repartition_sink_topics": sinks,
            "repartition_source_topics": [], "copartition_groups": [],
        }  # fmt: skip
        topology = {"epoch": 0, "subtopologies": [subtopology]}
        yield Ask(name="StreamsGroupHeartbeat", body={**heartbeat, "topology": topology})


def share_member(epoch: int) -> Body:
    """The heartbeat of the share group's one member, which joins (0) and leaves (-1)."""
    return {
        "group_id": SHARE_GROUP, "member_id": str(UUID(int=7)), "member_epoch": epoch,
        "rack_id": None, "subscribed_topic_names": [TOPIC] if epoch == 0 else None,
    }  # fmt: skip


def _share_groups(ids: Mapping[str, UUID]) -> Iterator[Ask]:
    share = {"group_id": SHARE_GROUP, "member_id": str(uuid4()), "share_session_epoch": 0,
             "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "max_records": 1,
             "batch_size": 1, "forgotten_topics_data": []}  # fmt: skip
    rows = [{"partition_index": 0, "acknowledgement_batches": []}]
    wanted = [{"topic_id": topic_id, "partitions": rows} for topic_id in (ids[TOPIC], ids[OTHER])]
    yield Ask(name="ShareFetch", body={**share, "topics": wanted})
    yield Ask(
        name="ShareAcknowledge",
        body={**share, "member_id": str(UUID(int=6)), "share_session_epoch": 1, "topics": wanted},
    )
    named = [{"topic_name": name, "partitions": [0]} for name in (TOPIC, MISSING)]
    yield Ask(
        name="DescribeShareGroupOffsets",
        body={
            "groups": [{"group_id": group, "topics": named} for group in (SHARE_GROUP, "m-none")]
        },
    )
    starts = [
        {"topic_name": name, "partitions": [{"partition_index": 0, "start_offset": 0}]}
        for name in (TOPIC, MISSING)
    ]
    yield Ask(name="AlterShareGroupOffsets", body={"group_id": SHARE_GROUP, "topics": starts})
    gone = [{"topic_name": name} for name in (TOPIC, MISSING)]
    yield Ask(name="DeleteShareGroupOffsets", body={"group_id": SHARE_GROUP, "topics": gone})


def _transactions(ids: Mapping[str, UUID]) -> Iterator[Ask]:
    producer = {"producer_id": 999_999, "producer_epoch": 0}
    for transactional_id in (None, TRANSACTION):
        yield Ask(
            name="InitProducerId",
            body={"transactional_id": transactional_id, "transaction_timeout": 1000,
                  "producer_id": -1, "producer_epoch": -1},
        )  # fmt: skip
    added = [{"name": name, "partitions": [0]} for name in (TOPIC, OTHER)]
    yield Ask(
        name="AddPartitionsToTxn",
        version=3,
        body={"v3_and_below_transactional_id": TRANSACTION, "v3_and_below_producer_id": 999_999,
              "v3_and_below_producer_epoch": 0, "v3_and_below_topics": added},
    )  # fmt: skip
    one = {"transactional_id": TRANSACTION, **producer, "verify_only": True, "topics": added}
    yield Ask(name="AddPartitionsToTxn", body={"transactions": [one]})
    yield Ask(
        name="AddOffsetsToTxn",
        body={"transactional_id": TRANSACTION, **producer, "group_id": GROUP},
    )
    yield Ask(name="EndTxn", body={"transactional_id": TRANSACTION, **producer, "committed": False})
    staged = {"transactional_id": TRANSACTION, "group_id": GROUP, **producer, "generation_id": -1,
              "member_id": "", "group_instance_id": None}  # fmt: skip
    by_name = [{"name": name, "partitions": [ONE_OFFSET]} for name in (TOPIC, MISSING, OTHER)]
    by_id = [
        {"topic_id": topic_id, "partitions": [ONE_OFFSET]}
        for topic_id in (ids[TOPIC], UUID(int=99), ids[OTHER])
    ]
    yield Ask(name="TxnOffsetCommit", body={**staged, "topics": by_name}, version=5)
    yield Ask(name="TxnOffsetCommit", body={**staged, "topics": by_id})
    marker = {**producer, "transaction_result": False, "coordinator_epoch": 0,
              "transaction_version": 1,
              "topics": [{"name": TOPIC, "partition_indexes": [0]}]}  # fmt: skip
    yield Ask(name="WriteTxnMarkers", body={"markers": [marker]})
    yield Ask(
        name="DescribeTransactions",
        body={"transactional_ids": [TRANSACTION, "m-none"]},
        before=("InitProducerId", {
            "transactional_id": TRANSACTION, "transaction_timeout": 1000, "producer_id": -1,
            "producer_epoch": -1,
        }),
    )  # fmt: skip
    yield Ask(
        name="ListTransactions",
        body={"state_filters": [], "producer_id_filters": [], "duration_filter": -1},
    )


def configs(*resources: tuple[int, str], **each: Any) -> list[Body]:
    return [{"resource_type": kind, "resource_name": name, **each} for kind, name in resources]


def _cluster() -> Iterator[Ask]:
    resources = ((2, TOPIC), (2, MISSING), (4, "1"), (4, ""), (16, "m-metrics"), (32, GROUP))
    yield Ask(
        name="DescribeConfigs",
        body={"resources": configs(*resources, configuration_keys=["retention.ms"]),
              "include_synonyms": False, "include_documentation": False},
    )  # fmt: skip
    retention = {"name": "retention.ms", "value": "1000000000", "config_operation": 0}
    changed = configs((2, TOPIC), (2, MISSING), configs=[retention])
    changed += configs((4, ""), configs=[{**retention, "name": "log.retention.ms"}])
    changed += configs((32, GROUP), configs=[
        {**retention, "name": "consumer.session.timeout.ms", "value": "45000"},
    ])  # fmt: skip
    for name in ("AlterConfigs", "IncrementalAlterConfigs"):
        yield Ask(name=name, body={"resources": changed, "validate_only": True})
    yield Ask(name="ListConfigResources", body={"resource_types": [2]})
    yield Ask(name="DescribeLogDirs", body={"topics": None})
    moved = {"path": "/nowhere", "topics": [{"name": TOPIC, "partitions": [0]}]}
    yield Ask(name="AlterReplicaLogDirs", body={"dirs": [moved]})
    quorum = {"topic_name": TOPIC, "partitions": [{"partition_index": 0}]}
    yield Ask(name="DescribeQuorum", body={"topics": [quorum]})
    level = {"feature": "share.version", "max_version_level": 9, "upgrade_type": 1}
    yield Ask(
        name="UpdateFeatures",
        body={"feature_updates": [level], "validate_only": True, "timeout": 10_000},
    )
    yield Ask(name="DescribeAcls", body=NO_FILTER)
    creation = {
        "resource_type": 2, "resource_name": "", "resource_pattern_type": 3,
        "principal": "User:nobody", "host": "*", "operation": 3, "permission_type": 3,
    }  # fmt: skip
    yield Ask(name="CreateAcls", body={"creations": [creation]})
    yield Ask(name="DeleteAcls", body={"filters": [NO_FILTER]})
    # Of all users (null) Apache Kafka 4.3 never answers who may not ask.
    yield Ask(name="DescribeUserScramCredentials", body={"users": topics("nobody")})
    gone = [{"name": "nobody", "mechanism": 1}]
    yield Ask(name="AlterUserScramCredentials", body={"deletions": gone, "upsertions": []})
    yield Ask(name="DescribeClientQuotas", body={"components": [], "strict": False})
    entry = {"entity": [{"entity_type": "user", "entity_name": "nobody"}],
             "ops": [{"key": "producer_byte_rate", "value": 1e6, "remove": False}]}  # fmt: skip
    yield Ask(name="AlterClientQuotas", body={"entries": [entry], "validate_only": True})
    yield Ask(
        name="DescribeCluster",
        body={"include_cluster_authorized_operations": True, "endpoint_type": 1,
              "include_fenced_brokers": False},
    )  # fmt: skip
    yield Ask(name="UnregisterBroker", body={"broker_id": 999})


NEVER_ASKED: Sequence[str] = (
    "ApiVersions", "SaslHandshake", "SaslAuthenticate", "GetTelemetrySubscriptions",
    "PushTelemetry", "CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken",
    "DescribeDelegationToken",
)  # fmt: skip
"""APIs that everybody may call; those of tokens, which have tests of their own
(`tests/broker/security/test_delegation_tokens.py`)."""
