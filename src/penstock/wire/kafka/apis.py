"""Table of the API keys that the broker serves.

The dispatcher, the ApiVersions response and `docs/reference/api-keys.md` use this table. Version
ranges are those of Apache Kafka 4.4, except for InitProducerId version 6 (two-phase transactions,
KIP-939), which Apache Kafka does not advertise either. Some fields need an explanation:

- `minimum` is the first version that ApiVersions advertises, `served_from` the first that is
  served. They differ for Produce, which is advertised from version 0, because librdkafka otherwise
  turns compression off; versions 0 to 2 (older message formats) return an error.
- `flexible_from` is the first version with tagged fields (KIP-482). It is needed to read request
  headers before any schema is loaded. A test compares it with kio.

`checks` are the required permissions, in order (`broker/requests/access.py` enforces them):

- `whole`: on all resources of the request. Without one of them the whole request is rejected.
- `each`: on each element of the request. Unauthorized elements are removed from it.
- `listed`: on each element of the response. Unauthorized elements are left out.
- `asked`: checked by the handler, because the resources depend on its state.

Source: Kafka's `clients/src/main/resources/common/message/*.json` as generated in kio; KIP-35,
KIP-482, KIP-511.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec import Struct

Operation = Literal[
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
    "create_tokens",
    "describe_tokens",
]
Resource = Literal[
    "topic", "group", "transactional_id", "cluster", "config", "delegation_token", "user"
]
"""Resource type. `config` means the resource that the fields `resource_type` and `resource_name` of
an element describe."""
Scope = Literal["whole", "each", "listed", "asked"]

PRODUCE: Final = 0
_SERVED_FROM: Final = {PRODUCE: 3}
"""First version that is served, for APIs of which it is not the first advertised one."""
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
API_VERSIONS: Final = 18

VERSION_MAX: Final = 32767
NEVER_FLEXIBLE: Final = VERSION_MAX


class Check(Struct, frozen=True, kw_only=True):
    """Permission that a principal needs for an API."""

    scope: Scope
    operation: Operation
    resource: Resource
    unless: Operation | None = None
    """Operation on the cluster: a principal with this permission does not need the other one."""
    since: int = 0
    until: int = VERSION_MAX
    """Last version of the API in which the permission is checked."""

    def asked_of(self, version: int) -> bool:
        return self.since <= version <= self.until

    def __str__(self) -> str:
        text = f"{self.scope}: {self.operation} on {self.resource}"
        if self.unless is not None:
            text += f", or {self.unless} on cluster"
        if self.since:
            text += f" (from version {self.since})"
        return text if self.until == VERSION_MAX else f"{text} (to version {self.until})"


class Api(Struct, frozen=True, kw_only=True):
    """API key with its versions and permissions."""

    key: int
    name: str
    minimum: int
    maximum: int
    served_from: int
    flexible_from: int
    checks: tuple[Check, ...]
    """Required permissions; a test names the few APIs without any."""

    def serves(self, version: int) -> bool:
        return self.served_from <= version <= self.maximum

    def request_header_version(self, version: int) -> int:
        return 2 if version >= self.flexible_from else 1

    def response_header_version(self, version: int) -> int:
        """Return the header version of a response; for ApiVersions it is always 0 (KIP-511)."""
        if self.key == API_VERSIONS:
            return 0
        return 1 if version >= self.flexible_from else 0


def whole(operation: Operation, resource: Resource, **more: Any) -> Check:
    return Check(scope="whole", operation=operation, resource=resource, **more)


def each(operation: Operation, resource: Resource, **more: Any) -> Check:
    return Check(scope="each", operation=operation, resource=resource, **more)


def listed(operation: Operation, resource: Resource, **more: Any) -> Check:
    return Check(scope="listed", operation=operation, resource=resource, **more)


def asked(operation: Operation, resource: Resource, **more: Any) -> Check:
    return Check(scope="asked", operation=operation, resource=resource, **more)


def _api(
    key: int,
    name: str,
    minimum: int,
    maximum: int,
    flexible_from: int,
    *checks: Check,
) -> Api:
    return Api(
        key=key,
        name=name,
        minimum=minimum,
        maximum=maximum,
        served_from=_SERVED_FROM.get(key, minimum),
        flexible_from=flexible_from,
        checks=checks,
    )


_ROWS: Final = (
    # key, name, minimum, maximum, flexible from, checks
    _api(0, "Produce", 0, 13, 9, asked("write", "transactional_id"), asked("write", "topic")),
    _api(1, "Fetch", 4, 18, 12, asked("read", "topic")),
    _api(2, "ListOffsets", 1, 11, 6, each("describe", "topic")),
    _api(
        3, "Metadata", 0, 13, 9,
        asked("describe", "topic"), asked("create", "topic", unless="create"),
    ),
    _api(8, "OffsetCommit", 2, 10, 8, whole("read", "group"), each("read", "topic")),
    _api(9, "OffsetFetch", 1, 10, 6, asked("describe", "group"), asked("describe", "topic")),
    _api(
        10, "FindCoordinator", 0, 6, 3,
        asked("describe", "group"),
        asked("describe", "transactional_id"),
        asked("cluster_action", "cluster"),
    ),
    _api(11, "JoinGroup", 0, 9, 6, whole("read", "group")),
    _api(12, "Heartbeat", 0, 4, 4, whole("read", "group")),
    _api(13, "LeaveGroup", 0, 5, 4, whole("read", "group")),
    _api(14, "SyncGroup", 0, 5, 4, whole("read", "group")),
    _api(15, "DescribeGroups", 0, 6, 5, each("describe", "group")),
    _api(16, "ListGroups", 0, 5, 3, listed("describe", "group", unless="describe")),
    _api(17, "SaslHandshake", 0, 1, NEVER_FLEXIBLE),
    _api(18, "ApiVersions", 0, 5, 3),
    _api(
        19, "CreateTopics", 2, 7, 5,
        each("create", "topic", unless="create"), asked("describe_configs", "topic"),
    ),
    _api(
        20, "DeleteTopics", 1, 6, 4,
        asked("describe", "topic", unless="delete"), asked("delete", "topic", unless="delete"),
    ),
    _api(21, "DeleteRecords", 0, 2, 2, each("delete", "topic")),
    _api(
        22, "InitProducerId", 0, 5, 2,
        asked("write", "transactional_id"),
        asked("idempotent_write", "cluster"),
        asked("write", "topic"),
    ),
    _api(23, "OffsetForLeaderEpoch", 2, 4, 4, each("describe", "topic", unless="cluster_action")),
    _api(
        24, "AddPartitionsToTxn", 0, 5, 3,
        whole("write", "transactional_id", until=3),
        asked("write", "topic", until=3),
        whole("cluster_action", "cluster", since=4),
    ),
    _api(
        25, "AddOffsetsToTxn", 0, 4, 3, whole("write", "transactional_id"), whole("read", "group"),
    ),
    _api(26, "EndTxn", 0, 5, 3, whole("write", "transactional_id")),
    _api(27, "WriteTxnMarkers", 1, 2, 1, whole("cluster_action", "cluster", unless="alter")),
    _api(
        28, "TxnOffsetCommit", 0, 6, 3,
        whole("write", "transactional_id"), whole("read", "group"), each("read", "topic"),
    ),
    _api(29, "DescribeAcls", 1, 3, 2, whole("describe", "cluster")),
    _api(30, "CreateAcls", 1, 3, 2, whole("alter", "cluster")),
    _api(31, "DeleteAcls", 1, 3, 2, whole("alter", "cluster")),
    _api(32, "DescribeConfigs", 1, 4, 4, each("describe_configs", "config")),
    _api(33, "AlterConfigs", 0, 2, 2, each("alter_configs", "config")),
    _api(34, "AlterReplicaLogDirs", 1, 2, 2, asked("alter", "cluster")),
    _api(35, "DescribeLogDirs", 1, 5, 2, whole("describe", "cluster")),
    _api(36, "SaslAuthenticate", 0, 2, 2),
    _api(37, "CreatePartitions", 0, 3, 2, each("alter", "topic")),
    _api(38, "CreateDelegationToken", 1, 3, 2, asked("create_tokens", "user")),
    _api(39, "RenewDelegationToken", 1, 2, 2),
    _api(40, "ExpireDelegationToken", 1, 2, 2),
    _api(
        41, "DescribeDelegationToken", 1, 3, 2,
        asked("describe", "delegation_token"), asked("describe_tokens", "user"),
    ),
    _api(42, "DeleteGroups", 0, 3, 2, each("delete", "group")),
    _api(43, "ElectLeaders", 0, 2, 2, whole("alter", "cluster")),
    _api(44, "IncrementalAlterConfigs", 0, 1, 1, each("alter_configs", "config")),
    _api(45, "AlterPartitionReassignments", 0, 1, 0, whole("alter", "cluster")),
    _api(46, "ListPartitionReassignments", 0, 0, 0, whole("describe", "cluster")),
    _api(47, "OffsetDelete", 0, 0, NEVER_FLEXIBLE, whole("delete", "group"), each("read", "topic")),
    _api(48, "DescribeClientQuotas", 0, 1, 1, whole("describe_configs", "cluster")),
    _api(49, "AlterClientQuotas", 0, 1, 1, whole("alter_configs", "cluster")),
    _api(50, "DescribeUserScramCredentials", 0, 0, 0, whole("describe", "cluster")),
    _api(51, "AlterUserScramCredentials", 0, 0, 0, whole("alter", "cluster")),
    _api(55, "DescribeQuorum", 0, 2, 0, whole("describe", "cluster")),
    _api(57, "UpdateFeatures", 0, 2, 0, whole("alter", "cluster")),
    _api(60, "DescribeCluster", 0, 2, 0, asked("describe", "cluster")),
    _api(61, "DescribeProducers", 0, 0, 0, each("read", "topic")),
    _api(64, "UnregisterBroker", 0, 0, 0, whole("alter", "cluster")),
    _api(
        65, "DescribeTransactions", 0, 0, 0,
        each("describe", "transactional_id"), asked("describe", "topic"),
    ),
    _api(66, "ListTransactions", 0, 2, 0, listed("describe", "transactional_id")),
    _api(68, "ConsumerGroupHeartbeat", 0, 1, 0, whole("read", "group"), whole("describe", "topic")),
    _api(
        69, "ConsumerGroupDescribe", 0, 1, 0, each("describe", "group"), asked("describe", "topic"),
    ),
    _api(71, "GetTelemetrySubscriptions", 0, 0, 0),
    _api(72, "PushTelemetry", 0, 0, 0),
    _api(74, "ListConfigResources", 0, 1, 0, whole("describe_configs", "cluster")),
    _api(75, "DescribeTopicPartitions", 0, 0, 0, asked("describe", "topic")),
    _api(76, "ShareGroupHeartbeat", 1, 1, 0, whole("read", "group"), whole("describe", "topic")),
    _api(77, "ShareGroupDescribe", 1, 1, 0, each("describe", "group"), asked("describe", "topic")),
    _api(78, "ShareFetch", 1, 2, 0, whole("read", "group"), asked("read", "topic")),
    _api(79, "ShareAcknowledge", 1, 2, 0, whole("read", "group"), asked("read", "topic")),
    _api(88, "StreamsGroupHeartbeat", 0, 1, 0, whole("read", "group"), asked("describe", "topic")),
    _api(
        89, "StreamsGroupDescribe", 0, 1, 0, each("describe", "group"), asked("describe", "topic"),
    ),
    _api(
        90, "DescribeShareGroupOffsets", 0, 1, 0,
        asked("describe", "group"), asked("describe", "topic"),
    ),
    _api(91, "AlterShareGroupOffsets", 0, 0, 0, whole("read", "group"), each("read", "topic")),
    _api(92, "DeleteShareGroupOffsets", 0, 0, 0, whole("delete", "group"), each("read", "topic")),
)  # fmt: skip


APIS: Final[dict[int, Api]] = {api.key: api for api in _ROWS}
BY_NAME: Final[dict[str, Api]] = {api.name: api for api in APIS.values()}


def reference_page() -> str:
    lines = [
        "# API keys",
        "",
        "Generated from `penstock.wire.kafka.apis`; do not edit.",
        "",
        "The last column has the permissions that a principal needs, in the order of the checks."
        " *whole*: on all resources of the request, else the request is rejected. *each*: on each"
        " element of the request; unauthorized elements get an error. *listed*: on each element of"
        " the response; unauthorized elements are left out. *asked*: on resources that the handler"
        " determines.",
        "",
        "| key | name | versions | flexible from | needs |",
        "|---:|---|---|---:|---|",
    ]
    for api in APIS.values():
        served = f"{api.served_from}–{api.maximum}"
        if api.served_from != api.minimum:
            served += f" (advertised from {api.minimum}, rejected below {api.served_from})"
        flexible = "never" if api.flexible_from == NEVER_FLEXIBLE else str(api.flexible_from)
        needs = "; ".join(map(str, api.checks)) or "nothing"
        lines.append(f"| {api.key} | {api.name} | {served} | {flexible} | {needs} |")
    return "\n".join(lines) + "\n"
