"""The one table of API keys that the broker serves.

The dispatcher, the ApiVersions answer and `docs/reference/api-keys.md` are made from this table,
so nothing is advertised that is not implemented. Version ranges are as wide as kio's schemas,
but for InitProducerId, whose version 6 is for transactions in two phases (KIP-939), which Apache
Kafka 4.3 does not advertise either, and ListTransactions, whose version 2 matches ids by a regular
expression of whoever asks. Two numbers may differ from kio's range:

- `minimum` is what ApiVersions advertises, `served_from` what is really served. Produce is
  advertised from version 0, because librdkafka turns compression off when it does not see the
  old versions; versions 0 to 2 (which carry message formats older than RecordBatch v2) are
  answered with an error.
- `flexible_from` is the first version with tagged fields (KIP-482); a request header must be
  read before any schema is loaded, so the number stands here, and a test compares it with kio.

`handler` names a function in `penstock.broker.handlers` as `module:function`; it is text because
`wire` knows nothing of the broker, and because handlers are imported at first use.

Source: Kafka's `clients/src/main/resources/common/message/*.json` as generated in kio; KIP-35,
KIP-482, KIP-511.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

Operation = Literal[
    "none",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "cluster_action",
    "describe_configs",
    "alter_configs",
    "idempotent_write",
]
Resource = Literal["none", "topic", "group", "transactional_id", "cluster"]

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
API_VERSIONS: Final = 18

NEVER_FLEXIBLE: Final = 32767


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API key: what is advertised, what is served, who handles it, what it needs."""

    key: int
    name: str
    minimum: int
    maximum: int
    served_from: int
    flexible_from: int
    handler: str
    resource: Resource
    operation: Operation

    def serves(self, version: int) -> bool:
        return self.served_from <= version <= self.maximum

    def request_header_version(self, version: int) -> int:
        return 2 if version >= self.flexible_from else 1

    def response_header_version(self, version: int) -> int:
        """ApiVersions always answers with header 0, so that old clients can read it (KIP-511)."""
        if self.key == API_VERSIONS:
            return 0
        return 1 if version >= self.flexible_from else 0


_ROWS: Final[tuple[tuple[int, str, int, int, int, str, Resource, Operation], ...]] = (
    # key, name, minimum, maximum, flexible from, handler, resource, operation
    (0, "Produce", 0, 13, 9, "produce:produce", "topic", "write"),
    (1, "Fetch", 4, 18, 12, "fetch:fetch", "topic", "read"),
    (2, "ListOffsets", 1, 11, 6, "list_offsets:list_offsets", "topic", "describe"),
    (3, "Metadata", 0, 13, 9, "metadata:metadata", "topic", "describe"),
    (8, "OffsetCommit", 2, 10, 8, "offsets:offset_commit", "group", "read"),
    (9, "OffsetFetch", 1, 10, 6, "offsets:offset_fetch", "group", "describe"),
    (10, "FindCoordinator", 0, 6, 3, "groups:find_coordinator", "group", "describe"),
    (11, "JoinGroup", 0, 9, 6, "groups:join_group", "group", "read"),
    (12, "Heartbeat", 0, 4, 4, "groups:heartbeat", "group", "read"),
    (13, "LeaveGroup", 0, 5, 4, "groups:leave_group", "group", "read"),
    (14, "SyncGroup", 0, 5, 4, "groups:sync_group", "group", "read"),
    (15, "DescribeGroups", 0, 6, 5, "groups:describe_groups", "group", "describe"),
    (16, "ListGroups", 0, 5, 3, "groups:list_groups", "cluster", "describe"),
    (18, "ApiVersions", 0, 4, 3, "api_versions:api_versions", "none", "none"),
    (19, "CreateTopics", 2, 7, 5, "topics:create_topics", "cluster", "create"),
    (20, "DeleteTopics", 1, 6, 4, "topics:delete_topics", "topic", "delete"),
    (21, "DeleteRecords", 0, 2, 2, "topics:delete_records", "topic", "delete"),
    (
        22, "InitProducerId", 0, 5, 2,
        "producer_ids:init_producer_id", "cluster", "idempotent_write",
    ),
    (
        23, "OffsetForLeaderEpoch", 2, 4, 4,
        "list_offsets:offset_for_leader_epoch", "topic", "describe",
    ),
    (
        24, "AddPartitionsToTxn", 0, 5, 3,
        "transactions:add_partitions_to_txn", "transactional_id", "write",
    ),
    (
        25, "AddOffsetsToTxn", 0, 4, 3,
        "transactions:add_offsets_to_txn", "transactional_id", "write",
    ),
    (26, "EndTxn", 0, 5, 3, "transactions:end_txn", "transactional_id", "write"),
    (
        27, "WriteTxnMarkers", 1, 2, 1,
        "markers:write_txn_markers", "cluster", "cluster_action",
    ),
    (
        28, "TxnOffsetCommit", 0, 5, 3,
        "transaction_offsets:txn_offset_commit", "transactional_id", "write",
    ),
    (
        32, "DescribeConfigs", 1, 4, 4,
        "configs:describe_configs", "cluster", "describe_configs",
    ),
    (33, "AlterConfigs", 0, 2, 2, "configs:alter_configs", "cluster", "alter_configs"),
    (35, "DescribeLogDirs", 1, 5, 2, "log_dirs:describe_log_dirs", "cluster", "describe"),
    (37, "CreatePartitions", 0, 3, 2, "topics:create_partitions", "topic", "alter"),
    (42, "DeleteGroups", 0, 2, 2, "groups:delete_groups", "group", "delete"),
    (43, "ElectLeaders", 0, 2, 2, "elections:elect_leaders", "cluster", "alter"),
    (
        44, "IncrementalAlterConfigs", 0, 1, 1,
        "configs:incremental_alter_configs", "cluster", "alter_configs",
    ),
    (
        45, "AlterPartitionReassignments", 0, 1, 0,
        "reassignments:alter_partition_reassignments", "cluster", "alter",
    ),
    (
        46, "ListPartitionReassignments", 0, 0, 0,
        "reassignments:list_partition_reassignments", "cluster", "describe",
    ),
    (47, "OffsetDelete", 0, 0, NEVER_FLEXIBLE, "offsets:offset_delete", "group", "delete"),
    (
        48, "DescribeClientQuotas", 0, 1, 1,
        "quotas:describe_client_quotas", "cluster", "describe_configs",
    ),
    (
        49, "AlterClientQuotas", 0, 1, 1,
        "quotas:alter_client_quotas", "cluster", "alter_configs",
    ),
    (60, "DescribeCluster", 0, 2, 0, "cluster:describe_cluster", "cluster", "describe"),
    (61, "DescribeProducers", 0, 0, 0, "producers:describe_producers", "topic", "read"),
    (64, "UnregisterBroker", 0, 0, 0, "cluster:unregister_broker", "cluster", "alter"),
    (
        65, "DescribeTransactions", 0, 0, 0,
        "transactions:describe_transactions", "transactional_id", "describe",
    ),
    (
        66, "ListTransactions", 0, 1, 0,
        "transactions:list_transactions", "cluster", "describe",
    ),
    (
        68, "ConsumerGroupHeartbeat", 0, 1, 0,
        "consumer_groups:consumer_group_heartbeat", "group", "read",
    ),
    (
        69, "ConsumerGroupDescribe", 0, 1, 0,
        "consumer_groups:consumer_group_describe", "group", "describe",
    ),
    (
        71, "GetTelemetrySubscriptions", 0, 0, 0,
        "telemetry:get_telemetry_subscriptions", "none", "none",
    ),
    (72, "PushTelemetry", 0, 0, 0, "telemetry:push_telemetry", "none", "none"),
    (
        74, "ListConfigResources", 0, 1, 0,
        "configs:list_config_resources", "cluster", "describe_configs",
    ),
    (
        75, "DescribeTopicPartitions", 0, 0, 0,
        "cluster:describe_topic_partitions", "topic", "describe",
    ),
    (
        76, "ShareGroupHeartbeat", 1, 1, 0,
        "share_groups:share_group_heartbeat", "group", "read",
    ),
    (
        77, "ShareGroupDescribe", 1, 1, 0,
        "share_groups:share_group_describe", "group", "describe",
    ),
    (78, "ShareFetch", 1, 2, 0, "share:share_fetch", "group", "read"),
    (79, "ShareAcknowledge", 1, 2, 0, "share:share_acknowledge", "group", "read"),
    (
        90, "DescribeShareGroupOffsets", 0, 1, 0,
        "share_offsets:describe_share_group_offsets", "group", "describe",
    ),
    (
        91, "AlterShareGroupOffsets", 0, 0, 0,
        "share_offsets:alter_share_group_offsets", "group", "read",
    ),
    (
        92, "DeleteShareGroupOffsets", 0, 0, 0,
        "share_offsets:delete_share_group_offsets", "group", "delete",
    ),
)  # fmt: skip


def _table() -> Iterator[Api]:
    for key, name, minimum, maximum, flexible_from, handler, resource, operation in _ROWS:
        yield Api(
            key=key,
            name=name,
            minimum=minimum,
            maximum=maximum,
            served_from=3 if key == PRODUCE else minimum,
            flexible_from=flexible_from,
            handler=handler,
            resource=resource,
            operation=operation,
        )


APIS: Final[dict[int, Api]] = {api.key: api for api in _table()}
BY_NAME: Final[dict[str, Api]] = {api.name: api for api in APIS.values()}


def reference_page() -> str:
    """The text of `docs/reference/api-keys.md`."""
    lines = [
        "# API keys",
        "",
        "Generated from `penstock.wire.kafka.apis`; do not edit.",
        "",
        "| key | name | versions | flexible from | resource | operation |",
        "|---:|---|---|---:|---|---|",
    ]
    for api in APIS.values():
        served = f"{api.served_from}–{api.maximum}"
        if api.served_from != api.minimum:
            served += f" (advertised from {api.minimum}, refused below {api.served_from})"
        flexible = "never" if api.flexible_from == NEVER_FLEXIBLE else str(api.flexible_from)
        lines.append(
            f"| {api.key} | {api.name} | {served} | {flexible} | {api.resource} | {api.operation} |"
        )
    return "\n".join(lines) + "\n"
