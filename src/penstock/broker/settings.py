"""The broker's settings, under Kafka's names wherever Kafka has one.

Listeners, limits of connections and requests, defaults of new topics, and the bounds of
consumer groups. What a topic gets by default stands in `topic_defaults.py`; what the storage
does with its files stands in `penstock.storage`. The configuration reference and the answers
of DescribeConfigs are made from these declarations.

Source: Kafka's `SocketServerConfigs`, `ServerConfigs`, `GroupCoordinatorConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.base.errors import InvalidSetting
from penstock.base.settings import INT_MAX, LONG_MAX, NoEffect, setting
from penstock.broker.topic_defaults import UNSET, TopicDefaults

__all__ = ["UNSET", "BrokerSettings", "TopicDefaults"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(TopicDefaults):
    """Everything a broker is told; a change takes a restart unless DescribeConfigs says not."""

    node_id: int = setting(
        1,
        name="node.id",
        doc="Identity of this broker in the cluster.",
        minimum=0,
        maximum=INT_MAX,
    )
    broker_rack: str = setting(
        "",
        name="broker.rack",
        doc="Rack or zone of this broker, for rack-aware assignment and fetches.",
    )
    broker_session_timeout_ms: int = setting(
        9_000,
        name="broker.session.timeout.ms",
        doc=(
            "A broker that has not renewed its registration for this long counts as gone; others"
            " take over its groups."
        ),
        unit="ms",
        minimum=100,
        maximum=INT_MAX,
    )
    broker_heartbeat_interval_ms: int = setting(
        2_000,
        name="broker.heartbeat.interval.ms",
        doc="How often a broker renews its registration.",
        unit="ms",
        minimum=10,
        maximum=INT_MAX,
    )
    listeners: tuple[str, ...] = setting(
        ("PLAINTEXT://127.0.0.1:9092",),
        name="listeners",
        doc="Addresses to listen on, as PROTOCOL://host:port; port 0 picks a free one.",
    )
    advertised_listeners: tuple[str, ...] = setting(
        (),
        name="advertised.listeners",
        doc="Addresses that clients are told to connect to; empty means those of listeners.",
    )
    admin_listener: str = setting(
        "127.0.0.1:9644",
        name="admin.listener",
        doc="host:port of the admin HTTP interface; empty turns it off, port 0 picks a free one.",
    )
    admin_request_max_bytes: int = setting(
        65_536,
        name="admin.request.max.bytes",
        doc="Largest request body that the admin HTTP interface reads.",
        unit="bytes",
        minimum=0,
        maximum=INT_MAX,
    )
    admin_max_connections: int = setting(
        128,
        name="admin.max.connections",
        doc="Requests that the admin HTTP interface handles at a time; more are answered 503.",
        minimum=1,
        maximum=INT_MAX,
    )
    max_connections: int = setting(
        10_000,
        name="max.connections",
        doc="Kafka connections open at a time; more are closed at once.",
        minimum=1,
        maximum=INT_MAX,
    )
    max_connections_per_ip: int = setting(
        INT_MAX,
        name="max.connections.per.ip",
        doc="Kafka connections open at a time from one address.",
        minimum=1,
        maximum=INT_MAX,
    )
    connections_max_idle_ms: int = setting(
        600_000,
        name="connections.max.idle.ms",
        doc="A connection without a request for this long is closed; -1 never closes it.",
        unit="ms",
        minimum=-1,
        maximum=LONG_MAX,
    )
    socket_request_max_bytes: int = setting(
        100 << 20,
        name="socket.request.max.bytes",
        doc="Largest request frame; a longer one closes the connection before it is read.",
        unit="bytes",
        minimum=1,
        maximum=INT_MAX,
    )
    socket_send_buffer_bytes: int = setting(
        -1,
        name="socket.send.buffer.bytes",
        doc="SO_SNDBUF of Kafka connections; -1 leaves it to the system.",
        unit="bytes",
        minimum=-1,
        maximum=INT_MAX,
    )
    socket_receive_buffer_bytes: int = setting(
        -1,
        name="socket.receive.buffer.bytes",
        doc="SO_RCVBUF of Kafka connections; -1 leaves it to the system.",
        unit="bytes",
        minimum=-1,
        maximum=INT_MAX,
    )
    socket_listen_backlog_size: int = setting(
        1024,
        name="socket.listen.backlog.size",
        doc="Connections that may wait to be accepted.",
        minimum=1,
        maximum=INT_MAX,
    )
    queued_max_requests: int = setting(
        500,
        name="queued.max.requests",
        doc="Requests of one connection in the works; reading pauses until one is answered.",
        minimum=1,
        maximum=INT_MAX,
    )
    queued_max_request_bytes: int = setting(
        512 << 20,
        name="queued.max.request.bytes",
        doc="Bytes of requests in the works over all connections; reading pauses above.",
        unit="bytes",
        minimum=1,
        maximum=LONG_MAX,
    )
    request_timeout_ms: int = setting(
        30_000,
        name="request.timeout.ms",
        doc="Longest time that the broker works on an administrative request.",
        unit="ms",
        minimum=1,
        maximum=INT_MAX,
        no_effect=NoEffect(why="administrative requests have no time limit of their own"),
    )
    shutdown_timeout_ms: int = setting(
        10_000,
        name="shutdown.timeout.ms",
        doc="Time that open requests get to finish when the broker stops.",
        unit="ms",
        minimum=0,
        maximum=INT_MAX,
    )
    fetch_max_bytes: int = setting(
        55 << 20,
        name="fetch.max.bytes",
        doc="Largest fetch answer, whatever the consumer asks for.",
        unit="bytes",
        minimum=1024,
        maximum=INT_MAX,
    )
    fetch_sessions_max: int = setting(
        1000,
        name="max.incremental.fetch.session.cache.slots",
        doc="Incremental fetch sessions kept; the least recently used one is evicted.",
        minimum=0,
        maximum=INT_MAX,
    )
    max_request_partition_size_limit: int = setting(
        2000,
        name="max.request.partition.size.limit",
        doc="Partitions in one page of DescribeTopicPartitions.",
        minimum=1,
        maximum=INT_MAX,
    )
    auto_create_topics_enable: bool = setting(
        True,
        name="auto.create.topics.enable",
        doc="Create a topic when a client asks for it by name and allows its creation.",
    )
    delete_topic_enable: bool = setting(
        True,
        name="delete.topic.enable",
        doc="Allow topics to be deleted.",
    )
    num_partitions: int = setting(
        1,
        name="num.partitions",
        doc="Partitions of a topic that does not say.",
        minimum=1,
        maximum=INT_MAX,
    )
    default_replication_factor: int = setting(
        1,
        name="default.replication.factor",
        doc="Replicas of a topic that does not say.",
        minimum=1,
        maximum=32_767,
    )
    topic_partitions_max: int = setting(
        10_000,
        name="topic.partitions.max",
        doc="Most partitions that one topic may have.",
        minimum=1,
        maximum=INT_MAX,
    )
    broker_partitions_max: int = setting(
        200_000,
        name="broker.partitions.max",
        doc="Most partitions over all topics.",
        minimum=1,
        maximum=INT_MAX,
    )
    group_min_session_timeout_ms: int = setting(
        6_000,
        name="group.min.session.timeout.ms",
        doc="Shortest session timeout that a group member may ask for.",
        unit="ms",
        minimum=1,
        maximum=INT_MAX,
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000,
        name="group.max.session.timeout.ms",
        doc="Longest session timeout that a group member may ask for.",
        unit="ms",
        minimum=1,
        maximum=INT_MAX,
    )
    group_initial_rebalance_delay_ms: int = setting(
        3_000,
        name="group.initial.rebalance.delay.ms",
        doc="How long a new group waits for more members before its first rebalance.",
        unit="ms",
        minimum=0,
        maximum=INT_MAX,
    )
    group_max_size: int = setting(
        10_000,
        name="group.max.size",
        doc="Most members of one consumer group.",
        minimum=1,
        maximum=INT_MAX,
    )
    groups_max: int = setting(
        100_000,
        name="groups.max",
        doc="Most consumer groups held at a time.",
        minimum=1,
        maximum=INT_MAX,
    )
    offset_metadata_max_bytes: int = setting(
        4096,
        name="offset.metadata.max.bytes",
        doc="Largest metadata text of a committed offset.",
        unit="bytes",
        minimum=0,
        maximum=INT_MAX,
    )
    offsets_retention_minutes: int = setting(
        10_080,
        name="offsets.retention.minutes",
        doc="How long the offsets of a group without members are kept.",
        unit="minutes",
        minimum=1,
        maximum=INT_MAX,
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000,
        name="offsets.retention.check.interval.ms",
        doc="How often expired offsets are looked for.",
        unit="ms",
        minimum=1,
        maximum=LONG_MAX,
    )

    log_diskless_enable: bool = setting(
        False,
        name="log.diskless.enable",
        doc=(
            "Make new topics diskless that do not say; those with compaction stay on brokers. A"
            " topic keeps what it was created with."
        ),
    )
    sink_staging_directory: str = setting(
        "",
        name="sink.staging.directory",
        doc=(
            "Directory of the blobs that Spark's workers stage for an exactly-once sink; empty"
            " means the directory staging below log.dirs."
        ),
    )
    sink_staging_max_bytes: int = setting(
        64 << 30,
        name="sink.staging.max.bytes",
        doc="Bytes of all staged blobs above which no more are taken.",
        unit="bytes",
        minimum=0,
        maximum=LONG_MAX,
    )
    sink_staging_blob_max_bytes: int = setting(
        1 << 30,
        name="sink.staging.blob.max.bytes",
        doc="Largest staged blob.",
        unit="bytes",
        minimum=1,
        maximum=LONG_MAX,
    )
    sink_staging_orphan_age_ms: int = setting(
        86_400_000,
        name="sink.staging.orphan.age.ms",
        doc="Age at which a staged blob that no commit in the works names is removed.",
        unit="ms",
        minimum=1000,
        maximum=LONG_MAX,
    )
    sink_commits_max: int = setting(
        4,
        name="sink.commits.max",
        doc="Commits of exactly-once sinks in the works at a time; more wait for their turn.",
        minimum=1,
        maximum=1000,
    )

    def __post_init__(self) -> None:
        if self.broker_heartbeat_interval_ms * 3 > self.broker_session_timeout_ms:
            raise InvalidSetting(
                "broker.heartbeat.interval.ms",
                self.broker_heartbeat_interval_ms,
                "must be at most a third of broker.session.timeout.ms ="
                f" {self.broker_session_timeout_ms}",
            )
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise InvalidSetting(
                "group.min.session.timeout.ms",
                self.group_min_session_timeout_ms,
                "must not exceed group.max.session.timeout.ms = "
                f"{self.group_max_session_timeout_ms}",
            )
        if not self.listeners:
            raise InvalidSetting("listeners", "", "must name at least one address")
