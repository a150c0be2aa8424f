"""Table of handlers: the method that handles each API.

`Handlers` constructs the classes of these methods. It imports a module and constructs its class
when one of its APIs is first requested.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.net.connection import Buffer, RequestContext

if TYPE_CHECKING:
    from penstock.broker.assembly import Assembly
    from penstock.broker.fetch.operation import Fetch
    from penstock.broker.handlers.api_versions import ApiVersions, ClientTelemetry, Features
    from penstock.broker.handlers.cluster import Cluster, LogDirs, Quorum
    from penstock.broker.handlers.configs import ClientQuotas, Configs
    from penstock.broker.handlers.groups import Groups, ModernGroups
    from penstock.broker.handlers.list_offsets import ListOffsets, Producers
    from penstock.broker.handlers.metadata import Metadata
    from penstock.broker.handlers.offsets import Offsets
    from penstock.broker.handlers.produce import Produce
    from penstock.broker.handlers.replication import Replication
    from penstock.broker.handlers.security import Security
    from penstock.broker.handlers.share import ShareGroupOffsets, ShareRecords
    from penstock.broker.handlers.streams import StreamsGroups
    from penstock.broker.handlers.tokens import DelegationTokens
    from penstock.broker.handlers.topics import Topics
    from penstock.broker.handlers.transactions import Markers, Transactions


Answer = Mapping[str, Any] | bytes | list[Buffer]
Handler = Callable[[RequestContext, Any], Answer | Coroutine[Any, Any, Answer]]


class Handlers:
    """Handler objects of one broker, each constructed at its first use."""

    def __init__(self, broker: Assembly) -> None:
        self._broker = broker

    def of(self, api: str) -> Handler:
        """Return the handler of an API other than Produce and Fetch."""
        return HANDLERS[api](self)

    @cached_property
    def api_versions(self) -> ApiVersions:
        from penstock.broker.handlers.api_versions import ApiVersions

        broker = self._broker
        return ApiVersions(
            node_id=broker.node_id, cluster=broker.cluster, telemetry=broker.telemetry
        )

    @cached_property
    def cluster(self) -> Cluster:
        from penstock.broker.handlers.cluster import Cluster

        broker = self._broker
        return Cluster(settings=broker.settings, cluster=broker.cluster, control=broker.control)

    @cached_property
    def configs(self) -> Configs:
        from penstock.broker.handlers.configs import Configs

        broker = self._broker
        return Configs(
            settings=broker.settings,
            node_id=broker.node_id,
            control=broker.control,
            cluster=broker.cluster,
            migrations=broker.migrations,
            identity=broker.identity,
            readiness=broker.readiness,
            topic_admin=broker.topic_admin,
        )

    @cached_property
    def features(self) -> Features:
        from penstock.broker.handlers.api_versions import Features

        return Features(node_id=self._broker.node_id)

    @cached_property
    def fetch(self) -> Fetch:
        from penstock.broker.fetch.operation import Fetch

        broker = self._broker
        return Fetch(
            fetch_hub=broker.fetch_hub,
            fetch_sessions=broker.fetch_sessions,
            settings=broker.settings,
            node_id=broker.node_id,
            clock=broker.clock,
            cluster=broker.cluster,
            partitions=broker.partitions,
            metrics=broker.metrics,
            quotas=broker.quotas,
            stopping=broker.stopping,
            audit=broker.audit,
            traces=broker.traces,
        )

    @cached_property
    def groups(self) -> Groups:
        from penstock.broker.handlers.groups import Groups

        broker = self._broker
        return Groups(
            randomness=broker.randomness,
            cluster=broker.cluster,
            coordinator=broker.coordinator,
            share=broker.share,
        )

    @cached_property
    def list_offsets(self) -> ListOffsets:
        from penstock.broker.handlers.list_offsets import ListOffsets

        broker = self._broker
        return ListOffsets(partitions=broker.partitions)

    @cached_property
    def log_dirs(self) -> LogDirs:
        from penstock.broker.handlers.cluster import LogDirs

        broker = self._broker
        return LogDirs(
            node_id=broker.node_id,
            store=broker.store,
            cluster=broker.cluster,
            partitions=broker.partitions,
            diskless=broker.diskless,
        )

    @cached_property
    def markers(self) -> Markers:
        from penstock.broker.handlers.transactions import Markers

        broker = self._broker
        return Markers(clock=broker.clock, partitions=broker.partitions)

    @cached_property
    def metadata(self) -> Metadata:
        from penstock.broker.handlers.metadata import Metadata

        broker = self._broker
        return Metadata(
            settings=broker.settings,
            cluster=broker.cluster,
            partitions=broker.partitions,
            metadata_cache=broker.metadata_cache,
            topic_admin=broker.topic_admin,
            quotas=broker.quotas,
        )

    @cached_property
    def modern_groups(self) -> ModernGroups:
        from penstock.broker.handlers.groups import ModernGroups

        broker = self._broker
        return ModernGroups(
            randomness=broker.randomness, cluster=broker.cluster, coordinator=broker.coordinator
        )

    @cached_property
    def streams_groups(self) -> StreamsGroups:
        from penstock.broker.handlers.streams import StreamsGroups

        broker = self._broker
        return StreamsGroups(
            coordinator=broker.coordinator, topic_admin=broker.topic_admin, quotas=broker.quotas
        )

    @cached_property
    def offsets(self) -> Offsets:
        from penstock.broker.handlers.offsets import Offsets

        broker = self._broker
        return Offsets(
            settings=broker.settings,
            control=broker.control,
            clock=broker.clock,
            partitions=broker.partitions,
            coordinator=broker.coordinator,
            transaction_link=broker.transaction_link,
        )

    @cached_property
    def produce(self) -> Produce:
        from penstock.broker.handlers.produce import Produce
        from penstock.broker.requests.joining import Joining

        broker = self._broker
        joining = Joining(
            authoriser=broker.authoriser,
            clock=broker.clock,
            commits=broker.commits,
            metrics=broker.metrics,
            partitions=broker.partitions,
            quotas=broker.quotas,
            produce_waiting=broker.produce_waiting,
        )
        produce = Produce(
            clock=broker.clock,
            cluster=broker.cluster,
            joining=joining,
            opener=broker.opener,
            partitions=broker.partitions,
            commits=broker.commits,
            metrics=broker.metrics,
            quotas=broker.quotas,
            schema_checks=broker.schema_checks,
            settings=broker.settings,
            verifier=broker.verifier,
            produce_waiting=broker.produce_waiting,
            traces=broker.traces,
        )
        joining.answer = produce.answer_single
        return produce

    @cached_property
    def producers(self) -> Producers:
        from penstock.broker.handlers.list_offsets import Producers

        broker = self._broker
        return Producers(node_id=broker.node_id, partitions=broker.partitions)

    @cached_property
    def quorum(self) -> Quorum:
        from penstock.broker.handlers.cluster import Quorum

        broker = self._broker
        return Quorum(node_id=broker.node_id, clock=broker.clock, cluster=broker.cluster)

    @cached_property
    def quotas(self) -> ClientQuotas:
        from penstock.broker.handlers.configs import ClientQuotas

        broker = self._broker
        return ClientQuotas(control=broker.control, cluster=broker.cluster)

    @cached_property
    def replication(self) -> Replication:
        from penstock.broker.handlers.replication import Replication

        broker = self._broker
        return Replication(
            cluster=broker.cluster,
            control=broker.control,
            topic_admin=broker.topic_admin,
            replicas=broker.replicas,
        )

    @cached_property
    def security(self) -> Security:
        from penstock.broker.handlers.security import Security

        broker = self._broker
        return Security(
            control=broker.control,
            cluster=broker.cluster,
            authoriser=broker.authoriser,
            security_service=broker.security_service,
        )

    @cached_property
    def share(self) -> ShareRecords:
        from penstock.broker.handlers.share import ShareRecords

        broker = self._broker
        return ShareRecords(
            share=broker.share,
            fetch_hub=broker.fetch_hub,
            partitions=broker.partitions,
            cluster=broker.cluster,
            clock=broker.clock,
            quotas=broker.quotas,
            settings=broker.settings,
            stopping=broker.stopping,
        )

    @cached_property
    def share_offsets(self) -> ShareGroupOffsets:
        from penstock.broker.handlers.share import ShareGroupOffsets

        broker = self._broker
        return ShareGroupOffsets(
            share=broker.share,
            cluster=broker.cluster,
            coordinator=broker.coordinator,
            end_offsets=broker.end_offsets,
        )

    @cached_property
    def telemetry(self) -> ClientTelemetry:
        from penstock.broker.handlers.api_versions import ClientTelemetry

        broker = self._broker
        return ClientTelemetry(settings=broker.settings, telemetry=broker.telemetry)

    @cached_property
    def tokens(self) -> DelegationTokens:
        from penstock.broker.handlers.tokens import DelegationTokens

        broker = self._broker
        return DelegationTokens(
            control=broker.control,
            cluster=broker.cluster,
            clock=broker.clock,
            randomness=broker.randomness,
            settings=broker.security.settings,
        )

    @cached_property
    def topics(self) -> Topics:
        from penstock.broker.handlers.topics import Topics

        broker = self._broker
        return Topics(
            settings=broker.settings,
            control=broker.control,
            cluster=broker.cluster,
            partitions=broker.partitions,
            topic_admin=broker.topic_admin,
            quotas=broker.quotas,
        )

    @cached_property
    def transactions(self) -> Transactions:
        from penstock.broker.handlers.transactions import Transactions

        broker = self._broker
        return Transactions(
            cluster=broker.cluster,
            producer_ids=broker.producer_ids,
            transactions=broker.transactions,
        )


HANDLERS: Final[dict[str, Callable[[Handlers], Handler]]] = {
    "ListOffsets": lambda handlers: handlers.list_offsets.list_offsets,
    "Metadata": lambda handlers: handlers.metadata.metadata,
    "OffsetCommit": lambda handlers: handlers.offsets.offset_commit,
    "OffsetFetch": lambda handlers: handlers.offsets.offset_fetch,
    "FindCoordinator": lambda handlers: handlers.groups.find_coordinator,
    "JoinGroup": lambda handlers: handlers.groups.join_group,
    "Heartbeat": lambda handlers: handlers.groups.heartbeat,
    "LeaveGroup": lambda handlers: handlers.groups.leave_group,
    "SyncGroup": lambda handlers: handlers.groups.sync_group,
    "DescribeGroups": lambda handlers: handlers.groups.describe_groups,
    "ListGroups": lambda handlers: handlers.groups.list_groups,
    "SaslHandshake": lambda handlers: handlers.security.sasl_handshake,
    "ApiVersions": lambda handlers: handlers.api_versions.api_versions,
    "CreateTopics": lambda handlers: handlers.topics.create_topics,
    "DeleteTopics": lambda handlers: handlers.topics.delete_topics,
    "DeleteRecords": lambda handlers: handlers.topics.delete_records,
    "InitProducerId": lambda handlers: handlers.transactions.init_producer_id,
    "OffsetForLeaderEpoch": lambda handlers: handlers.list_offsets.offset_for_leader_epoch,
    "AddPartitionsToTxn": lambda handlers: handlers.transactions.add_partitions_to_txn,
    "AddOffsetsToTxn": lambda handlers: handlers.transactions.add_offsets_to_txn,
    "EndTxn": lambda handlers: handlers.transactions.end_txn,
    "WriteTxnMarkers": lambda handlers: handlers.markers.write_txn_markers,
    "TxnOffsetCommit": lambda handlers: handlers.offsets.txn_offset_commit,
    "DescribeAcls": lambda handlers: handlers.security.describe_acls,
    "CreateAcls": lambda handlers: handlers.security.create_acls,
    "DeleteAcls": lambda handlers: handlers.security.delete_acls,
    "DescribeConfigs": lambda handlers: handlers.configs.describe_configs,
    "AlterConfigs": lambda handlers: handlers.configs.alter_configs,
    "AlterReplicaLogDirs": lambda handlers: handlers.log_dirs.alter_replica_log_dirs,
    "DescribeLogDirs": lambda handlers: handlers.log_dirs.describe_log_dirs,
    "SaslAuthenticate": lambda handlers: handlers.security.sasl_authenticate,
    "CreatePartitions": lambda handlers: handlers.topics.create_partitions,
    "CreateDelegationToken": lambda handlers: handlers.tokens.create_delegation_token,
    "RenewDelegationToken": lambda handlers: handlers.tokens.renew_delegation_token,
    "ExpireDelegationToken": lambda handlers: handlers.tokens.expire_delegation_token,
    "DescribeDelegationToken": lambda handlers: handlers.tokens.describe_delegation_token,
    "DeleteGroups": lambda handlers: handlers.groups.delete_groups,
    "ElectLeaders": lambda handlers: handlers.replication.elect_leaders,
    "IncrementalAlterConfigs": lambda handlers: handlers.configs.incremental_alter_configs,
    "AlterPartitionReassignments": lambda handlers: (
        handlers.replication.alter_partition_reassignments
    ),
    "ListPartitionReassignments": lambda handlers: (
        handlers.replication.list_partition_reassignments
    ),
    "OffsetDelete": lambda handlers: handlers.offsets.offset_delete,
    "DescribeClientQuotas": lambda handlers: handlers.quotas.describe_client_quotas,
    "AlterClientQuotas": lambda handlers: handlers.quotas.alter_client_quotas,
    "DescribeUserScramCredentials": lambda handlers: (
        handlers.security.describe_user_scram_credentials
    ),
    "AlterUserScramCredentials": lambda handlers: handlers.security.alter_user_scram_credentials,
    "DescribeQuorum": lambda handlers: handlers.quorum.describe_quorum,
    "UpdateFeatures": lambda handlers: handlers.features.update_features,
    "DescribeCluster": lambda handlers: handlers.cluster.describe_cluster,
    "DescribeProducers": lambda handlers: handlers.producers.describe_producers,
    "UnregisterBroker": lambda handlers: handlers.cluster.unregister_broker,
    "DescribeTransactions": lambda handlers: handlers.transactions.describe_transactions,
    "ListTransactions": lambda handlers: handlers.transactions.list_transactions,
    "ConsumerGroupHeartbeat": lambda handlers: handlers.modern_groups.consumer_group_heartbeat,
    "ConsumerGroupDescribe": lambda handlers: handlers.modern_groups.consumer_group_describe,
    "GetTelemetrySubscriptions": lambda handlers: handlers.telemetry.get_telemetry_subscriptions,
    "PushTelemetry": lambda handlers: handlers.telemetry.push_telemetry,
    "ListConfigResources": lambda handlers: handlers.configs.list_config_resources,
    "DescribeTopicPartitions": lambda handlers: handlers.cluster.describe_topic_partitions,
    "ShareGroupHeartbeat": lambda handlers: handlers.modern_groups.share_group_heartbeat,
    "ShareGroupDescribe": lambda handlers: handlers.modern_groups.share_group_describe,
    "ShareFetch": lambda handlers: handlers.share.share_fetch,
    "ShareAcknowledge": lambda handlers: handlers.share.share_acknowledge,
    "StreamsGroupHeartbeat": lambda handlers: handlers.streams_groups.streams_group_heartbeat,
    "StreamsGroupDescribe": lambda handlers: handlers.streams_groups.streams_group_describe,
    "DescribeShareGroupOffsets": lambda handlers: (
        handlers.share_offsets.describe_share_group_offsets
    ),
    "AlterShareGroupOffsets": lambda handlers: handlers.share_offsets.alter_share_group_offsets,
    "DeleteShareGroupOffsets": lambda handlers: handlers.share_offsets.delete_share_group_offsets,
}
"""Handlers by API name, except Produce and Fetch, which `Dispatcher` calls directly."""
