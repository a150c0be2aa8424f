"""Settings of the broker, under Kafka's names wherever Kafka has one.

`TopicDefaults` has the broker's defaults of topic configurations. The settings of the log store are
in `penstock.storage`. The configuration reference and DescribeConfigs use these declarations.

Source: Kafka's `SocketServerConfigs`, `ServerConfigs`, `GroupCoordinatorConfig`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.base.errors import InvalidSetting
from penstock.base.settings import (
    INT_MAX,
    LONG_MAX,
    Kind,
    NoEffect,
    describe,
    like,
    parse_list,
    setting,
    whole_number,
)
from penstock.control.values.topics import ROLES
from penstock.storage.files.settings import LogConfig

# Broker defaults for topics, under Kafka's broker-side names (`log.*` and a few more).
#
# A configuration has different names for topics and for brokers (`retention.bytes` and
# `log.retention.bytes`). Some times have several broker names with different units
# (`log.retention.ms`, `.minutes`, `.hours`). The first one that is set applies
# (`broker/configuration/configs.py`). `UNSET` means that a setting is not set, as null in Kafka.
#
# Source: Kafka's `ServerLogConfigs`, `CleanerConfig` and `ServerTopicConfigSynonyms`.


UNSET: Final = -(2**31)
"""Value of an integer setting that is not set. It is outside the bounds of all settings."""
_TOPIC: Final = {info.name: info for info in describe(LogConfig)}
_FOR_EVER: Final = _TOPIC["retention.ms"].doc
_JITTER: Final = "Maximum of the random time by which a segment is closed early."


def _of(name: str, **changes: Any) -> Any:
    return like(_TOPIC[name], **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """Broker defaults of topic configurations.

    Of several fields for the same configuration, the first one that is set applies: for
    `retention.ms` the milliseconds, else the minutes, else the hours.
    """

    compression_gzip_level: int = _of("compression.gzip.level")
    compression_lz4_level: int = _of("compression.lz4.level")
    compression_zstd_level: int = _of("compression.zstd.level")
    compression_type: str = _of("compression.type")
    message_max_bytes: int = _of("max.message.bytes")
    min_insync_replicas: int = _of("min.insync.replicas")
    unclean_leader_election_enable: bool = _of("unclean.leader.election.enable")
    log_cleanup_policy: tuple[str, ...] = _of("cleanup.policy")
    log_retention_ms: int = _of(
        "retention.ms", default=UNSET, doc=f"{_FOR_EVER} Overrides minutes and hours."
    )
    log_retention_minutes: int = _of(
        "retention.ms", default=UNSET, doc=f"{_FOR_EVER} Overrides hours.", maximum=INT_MAX
    )
    log_retention_hours: int = _of("retention.ms", default=168, maximum=INT_MAX)
    log_retention_bytes: int = _of("retention.bytes")
    log_segment_bytes: int = _of("segment.bytes")
    log_roll_ms: int = _of(
        "segment.ms", default=UNSET, doc="Age at which a segment is closed. Overrides hours."
    )
    log_roll_hours: int = _of(
        "segment.ms", default=168, doc="Age at which a segment is closed.", maximum=INT_MAX
    )
    log_roll_jitter_ms: int = _of(
        "segment.jitter.ms", default=UNSET, doc=f"{_JITTER} Overrides hours."
    )
    log_roll_jitter_hours: int = _of("segment.jitter.ms", doc=_JITTER, maximum=INT_MAX)
    log_index_interval_bytes: int = _of("index.interval.bytes")
    log_index_size_max_bytes: int = _of("segment.index.bytes", doc="Largest size of an index file.")
    log_flush_interval_messages: int = _of("flush.messages")
    log_segment_delete_delay_ms: int = _of("file.delete.delay.ms")
    log_cleaner_delete_retention_ms: int = _of("delete.retention.ms")
    log_cleaner_min_cleanable_ratio: float = _of("min.cleanable.dirty.ratio")
    log_cleaner_min_compaction_lag_ms: int = _of("min.compaction.lag.ms")
    log_cleaner_max_compaction_lag_ms: int = _of("max.compaction.lag.ms")
    log_preallocate: bool = _of("preallocate")
    log_message_timestamp_type: str = _of("message.timestamp.type")
    log_message_timestamp_before_max_ms: int = _of("message.timestamp.before.max.ms")
    log_message_timestamp_after_max_ms: int = _of("message.timestamp.after.max.ms")
    log_record_validation: str = _of("record.validation")
    log_local_retention_ms: int = _of("local.retention.ms")
    log_local_retention_bytes: int = _of("local.retention.bytes")


EXCLUDED_BROKERS: Final = "placement.excluded.brokers"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(TopicDefaults):
    """Settings of a broker.

    Changes require a restart, except of the dynamic configurations
    (`broker/configuration/configs.py`).
    """

    node_id: int = setting(1, "Identity of this broker in the cluster.", 0, INT_MAX)
    broker_rack: str = setting(
        "", "Rack or zone of this broker, for rack-aware assignment and fetches."
    )
    broker_roles: tuple[str, ...] = setting(
        ROLES, "Roles of this broker. persistence: it holds and leads replicas of partitions."
        " ingestion: it leads partitions of diskless topics and coordinates groups.",
    )  # fmt: skip
    broker_session_timeout_ms: int = setting(
        9_000, "Time without a renewal of its registration after which a broker is fenced and other"
        " brokers coordinate its groups.", 100, INT_MAX,
    )  # fmt: skip
    broker_heartbeat_interval_ms: int = setting(
        2_000, "Interval at which a broker renews its registration.", 10, INT_MAX
    )
    auto_leader_rebalance_enable: bool = setting(
        True, "Hand leadership back to the preferred leaders, a few partitions at a time."
    )
    leader_imbalance_check_interval_seconds: int = setting(
        300,
        "Interval at which a broker checks which partitions to hand back to preferred leaders.",
        1,
        INT_MAX,
    )
    leader_imbalance_per_broker_percentage: int = setting(
        10, "Percentage of the partitions with a broker as preferred leader. If other brokers lead"
        " more than this percentage, they hand partitions back to it.", 0, 100,
    )  # fmt: skip
    listeners: tuple[str, ...] = setting(
        ("PLAINTEXT://127.0.0.1:9092",), "Addresses to listen on, as NAME://host:port; port 0"
        " picks a free one.",
    )  # fmt: skip
    listener_security_protocol_map: tuple[str, ...] = setting(
        ("PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"),
        "Protocol of each listener, as NAME:PROTOCOL: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
    )
    advertised_listeners: tuple[str, ...] = setting(
        (), "Addresses that clients of each listener use, as NAME://host:port. A listener without"
        " an entry here is advertised with its address in listeners.",
    )  # fmt: skip
    admin_listener: str = setting(
        "127.0.0.1:9644", "host:port of the admin HTTP interface; empty turns it off, port 0 picks"
        " a free one.",
    )  # fmt: skip
    admin_security_protocol: str = setting(
        "PLAINTEXT", "Protocol of the admin HTTP interface; SSL encrypts it. listener.name.admin.…"
        " overrides ssl.* and sasl.* settings for it.",
        choices=("PLAINTEXT", "SSL"),
    )  # fmt: skip
    admin_basic_loopback: bool = setting(
        False, "Accept passwords (basic credentials) without TLS from this machine."
    )
    admin_loopback_trusted: bool = setting(
        False, "Grant all permissions to admin requests from this machine without credentials,"
        " regardless of ACLs. The ready line reports it.",
    )  # fmt: skip
    admin_metrics_open: bool = setting(
        False, "Serve /metrics without authorisation. Otherwise, with an authoriser, it requires"
        " describe on the cluster.",
    )  # fmt: skip
    admin_hosts: tuple[str, ...] = setting(
        (), "Further host names that are accepted in admin requests that change state. Always"
        " accepted are IP addresses, localhost, this machine's name and advertised.listeners.",
    )  # fmt: skip
    extents_direct_files_enable: str = setting(
        "auto", "Name to readers the files and objects with the records of a topic, so that Spark"
        " reads them without the broker. Access to these files and objects is not limited to one"
        " topic. true: always. false: never. auto: only without an authoriser; with an authoriser,"
        " readers get signed URLs of objects in S3, which are limited to the bytes of the topic.",
        choices=("auto", "true", "false"),
    )  # fmt: skip
    extents_url_lifetime_ms: int = setting(
        900_000, "Lifetime of the signed URLs of extents, a multiple of 1000. A URL grants access"
        " until then, even after ACLs change. Tasks that start later request new URLs.",
        60_000, 604_800_000,
    )  # fmt: skip
    admin_request_max_bytes: int = setting(
        65_536, "Largest request body that the admin HTTP interface accepts.", 0, INT_MAX
    )
    admin_max_connections: int = setting(
        128, "Maximum number of concurrent requests of the admin HTTP interface. Further ones get"
        " status 503. One remote address may use three quarters of the maximum. Health probes are"
        " not counted.", 1, INT_MAX,
    )  # fmt: skip
    console_enable: bool = setting(
        True, "Serve the console, whose pages are below /console of the admin HTTP interface."
    )
    console_read_only: bool = setting(
        False, "Show the console without acts that change something, and reject such requests with"
        " status 403. The other paths of the admin HTTP interface are not affected.",
    )  # fmt: skip
    console_schema_directory: str = setting(
        "", "Directory with schema files by which the console decodes records: TOPIC-value or"
        " TOPIC-key, with the ending .avsc, .proto, or that of a descriptor set. Empty: none.",
    )  # fmt: skip
    console_masking_file: str = setting(
        "", "TOML file with rules by which the console masks or hides fields of records for users"
        " who are not named in it. It is read again after it has changed. Empty: all who may read"
        " a topic see its records.",
    )  # fmt: skip
    console_pipelines: tuple[str, ...] = setting(
        (), "Addresses of the status pages of pipelines that the console shows, as given to"
        " penstock pipeline run --listen.",
        kind=Kind("http://HOST:PORT,…", lambda value: _sources(value, _check_url)),
    )  # fmt: skip
    console_host_agents: tuple[str, ...] = setting(
        (), "Host agents that the console shows: addresses of their HTTP fronts"
        " (host.http.listener), or paths of socket files on this machine. A socket reports only"
        " the state of its agent.",
        kind=Kind("http://HOST:PORT or /PATH,…", lambda value: _sources(value, _check_agent)),
    )  # fmt: skip
    console_host_agents_token_file: str = setting(
        "", "File with the bearer token that the console sends to HTTP fronts of host agents, over"
        " TLS or to this machine. The agents need a rule with observes = true for it. Empty: none.",
    )  # fmt: skip
    console_outboxes: tuple[str, ...] = setting(
        (), "Root directories of outboxes on this machine that the console shows, with the topic of"
        " their pointers before an equals sign.",
        kind=Kind("[TOPIC=]/PATH,…", lambda value: _sources(value, _check_outbox)),
    )  # fmt: skip
    replication_listener: str = setting(
        "", "host:port on which this broker accepts connections of other brokers for replication."
        " Empty: this broker has no replicated partitions. Port 0 picks a free port.",
    )  # fmt: skip
    replica_lag_time_max_ms: int = setting(
        30_000, "Time after which a replica is not in sync if it has not had the leader's whole log"
        " in the meantime.", 1, INT_MAX,
    )  # fmt: skip
    authorizer_class_name: str = setting(
        "", "Authoriser of requests. Empty: all requests are allowed. acls, or Kafka's name"
        " org.apache.kafka.metadata.authorizer.StandardAuthorizer: ACLs decide.",
    )  # fmt: skip
    super_users: str = setting(
        "", "Principals with all permissions, as User:a;User:b; used only with an authoriser."
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False, "With an authoriser: allow every operation on resources that no ACL names."
    )
    max_connections: int = setting(
        10_000, "Maximum number of open Kafka connections. Further ones are closed at once.",
        1, INT_MAX,
    )  # fmt: skip
    max_connections_per_ip: int = setting(
        INT_MAX, "Maximum number of open Kafka connections from one address.", 1, INT_MAX
    )
    connections_max_idle_ms: int = setting(
        600_000, "Idle time after which a connection is closed; -1 disables the limit.", -1,
        LONG_MAX,
    )  # fmt: skip
    socket_request_max_bytes: int = setting(
        100 << 20, "Largest request frame. A connection with a larger one is closed, unread.",
        1, INT_MAX,
    )  # fmt: skip
    socket_send_buffer_bytes: int = setting(
        -1, "SO_SNDBUF of Kafka connections; -1 is the default of the system.", -1, INT_MAX
    )
    socket_receive_buffer_bytes: int = setting(
        -1, "SO_RCVBUF of Kafka connections; -1 is the default of the system.", -1, INT_MAX
    )
    socket_listen_backlog_size: int = setting(
        1024, "Maximum number of connections that wait to be accepted.", 1, INT_MAX
    )
    queued_max_requests: int = setting(
        500, "Maximum number of requests in flight on one connection, at which reading from it"
        " pauses.", 1, INT_MAX,
    )  # fmt: skip
    queued_max_request_bytes: int = setting(
        512 << 20, "Size of the requests in flight on all connections, above which reading pauses.",
        1, LONG_MAX,
    )  # fmt: skip
    quota_window_num: int = setting(
        11, "Number of windows over which quota rates are measured.", 1, 10_000
    )
    quota_window_size_seconds: int = setting(1, "Length of a quota window in seconds.", 1, 3_600)
    controller_quota_window_num: int = setting(
        11, "Number of windows whose quota (controller_mutation_rate) may be used up at once by"
        " creating or deleting partitions.", 1, 10_000,
    )  # fmt: skip
    controller_quota_window_size_seconds: int = setting(
        1, "Length of a controller quota window in seconds.", 1, 3_600
    )
    telemetry_max_bytes: int = setting(
        1 << 20, "Largest request in which a client pushes its metrics (KIP-714).", 1, INT_MAX
    )
    request_timeout_ms: int = setting(
        30_000, "Time limit of an administrative request.", 1, INT_MAX,
        no_effect=NoEffect(why="administrative requests have no time limit of their own"),
    )  # fmt: skip
    shutdown_timeout_ms: int = setting(
        10_000,
        "Time that a stopping broker allows for handing over its leaderships, and then for open"
        " requests to finish.", 0, INT_MAX,
    )  # fmt: skip
    fetch_max_bytes: int = setting(
        55 << 20, "Largest fetch response, even if the consumer requests more.", 1024, INT_MAX
    )
    fetch_sessions_max: int = setting(
        1000, "Maximum number of incremental fetch sessions. A further one may replace the least"
        " recently used one.", 0, INT_MAX, name="max.incremental.fetch.session.cache.slots",
    )  # fmt: skip
    max_request_partition_size_limit: int = setting(
        2000, "Maximum number of partitions in one page of DescribeTopicPartitions.", 1, INT_MAX
    )
    auto_create_topics_enable: bool = setting(
        True, "Create a missing topic when a metadata request names it and allows its creation."
    )
    delete_topic_enable: bool = setting(True, "Allow topics to be deleted.")
    num_partitions: int = setting(1, "Default number of partitions of new topics.", 1, INT_MAX)
    default_replication_factor: int = setting(
        1, "Default replication factor of new topics.", 1, 32_767
    )
    placement_excluded_brokers: tuple[str, ...] = setting(
        (), "Ids of brokers that get no replicas of new topics and partitions, except by manual"
        " assignment. penstock broker drain sets it for the cluster.",
    )  # fmt: skip
    topic_partitions_max: int = setting(
        10_000, "Maximum number of partitions of one topic.", 1, INT_MAX
    )
    broker_partitions_max: int = setting(
        200_000, "Maximum number of partitions of all topics.", 1, INT_MAX
    )
    group_min_session_timeout_ms: int = setting(
        6_000, "Shortest session timeout that a group member may request.", 1, INT_MAX
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, "Longest session timeout that a group member may request.", 1, INT_MAX
    )
    group_initial_rebalance_delay_ms: int = setting(
        3_000,
        "Time that a new group waits for more members before its first rebalance.",
        0,
        INT_MAX,
    )
    group_max_size: int = setting(10_000, "Maximum size of a classic group.", 1, INT_MAX)
    groups_max: int = setting(100_000, "Maximum number of consumer groups.", 1, INT_MAX)
    group_share_delivery_count_limit: int = setting(
        5, "Maximum number of deliveries of a record in a share group. A record that is then still"
        " not accepted is archived as undeliverable.", 2, 25,
    )  # fmt: skip
    errors_deadletterqueue_auto_create_topics_enable: bool = setting(
        False, "Create the dead letter topic that a share group names, if it does not exist."
    )
    errors_deadletterqueue_topic_name_prefix: str = setting(
        "dlq.", "Required prefix of the names of dead letter topics; empty allows any name."
    )
    group_share_session_timeout_ms: int = setting(
        45_000, "Time without a heartbeat after which a member of a share group is removed.", 1,
        INT_MAX,
    )  # fmt: skip
    group_share_min_session_timeout_ms: int = setting(
        45_000, "Shortest session timeout that a share group may configure.", 1, INT_MAX
    )
    group_share_max_session_timeout_ms: int = setting(
        60_000, "Longest session timeout that a share group may configure.", 1, INT_MAX
    )
    group_share_heartbeat_interval_ms: int = setting(
        5_000, "Heartbeat interval of members of a share group.", 1, INT_MAX
    )
    group_share_min_heartbeat_interval_ms: int = setting(
        5_000, "Shortest heartbeat interval that a share group may configure.", 1, INT_MAX
    )
    group_share_max_heartbeat_interval_ms: int = setting(
        15_000, "Longest heartbeat interval that a share group may configure.", 1, INT_MAX
    )
    group_share_assignment_interval_ms: int = setting(
        1_000, "Minimum time between two assignments of a share group. All members that join within"
        " this time get partitions in the second one.", 0, INT_MAX,
    )  # fmt: skip
    group_share_max_size: int = setting(200, "Maximum size of a share group.", 1, 1000)
    group_share_record_lock_duration_ms: int = setting(
        30_000, "Time that a member of a share group holds the lock of an acquired record.",
        1000, 3_600_000,
    )  # fmt: skip
    group_share_min_record_lock_duration_ms: int = setting(
        15_000, "Shortest lock duration that a share group may configure.", 1000, 30_000
    )
    group_share_max_record_lock_duration_ms: int = setting(
        60_000, "Longest lock duration that a share group may configure.", 30_000, 3_600_000
    )
    group_share_partition_max_record_locks: int = setting(
        2_000, "Maximum number of records of one partition that are acquired, or released for"
        " another delivery, at a time in a share group.", 100, 10_000,
    )  # fmt: skip
    group_share_max_share_sessions: int = setting(
        2_000, "Maximum number of share sessions. Each member of a share group that fetches from"
        " this broker has one.", 1, INT_MAX,
    )  # fmt: skip
    group_consumer_session_timeout_ms: int = setting(
        45_000, "Time without a heartbeat after which a member of a consumer group is removed.", 1,
        INT_MAX,
    )  # fmt: skip
    group_consumer_min_session_timeout_ms: int = setting(
        45_000, "Shortest session timeout of members of a consumer group.", 1, INT_MAX
    )
    group_consumer_max_session_timeout_ms: int = setting(
        60_000, "Longest session timeout of members of a consumer group.", 1, INT_MAX
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000, "Heartbeat interval of members of a consumer group.", 1, INT_MAX
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        5_000, "Shortest heartbeat interval of members of a consumer group.", 1, INT_MAX
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        15_000, "Longest heartbeat interval of members of a consumer group.", 1, INT_MAX
    )
    group_consumer_assignment_interval_ms: int = setting(
        1_000, "Minimum time between two assignments of a consumer group. All members that join"
        " within this time get partitions in the second one.", 0, INT_MAX,
    )  # fmt: skip
    group_consumer_min_assignment_interval_ms: int = setting(
        0, "Shortest assignment interval of a consumer group.", 0, INT_MAX
    )
    group_consumer_max_assignment_interval_ms: int = setting(
        15_000, "Longest assignment interval of a consumer group.", 0, INT_MAX
    )
    group_consumer_max_size: int = setting(
        INT_MAX, "Maximum size of a consumer group of the KIP-848 protocol.", 1, INT_MAX
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        ("uniform", "range"), "Server-side assignors; the first is the default.",
        choices=("uniform", "range"),
    )  # fmt: skip
    group_consumer_migration_policy: str = setting(
        "bidirectional", "Conversions of groups that have members. upgrade: classic groups may"
        " become consumer groups. downgrade: consumer groups may become classic groups.",
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
    )  # fmt: skip
    group_consumer_regex_refresh_interval_ms: int = setting(
        600_000, "Interval at which regular expressions of consumer groups are matched with the"
        " topics again. This also happens when topics are created or deleted.", 10_000, INT_MAX,
    )  # fmt: skip
    group_streams_session_timeout_ms: int = setting(
        45_000, "Time without a heartbeat after which a member of a streams group is removed.", 1,
        INT_MAX,
    )  # fmt: skip
    group_streams_min_session_timeout_ms: int = setting(
        45_000, "Shortest session timeout that a streams group may configure.", 1, INT_MAX
    )
    group_streams_max_session_timeout_ms: int = setting(
        60_000, "Longest session timeout that a streams group may configure.", 1, INT_MAX
    )
    group_streams_heartbeat_interval_ms: int = setting(
        5_000, "Heartbeat interval of members of a streams group.", 1, INT_MAX
    )
    group_streams_min_heartbeat_interval_ms: int = setting(
        5_000, "Shortest heartbeat interval that a streams group may configure.", 1, INT_MAX
    )
    group_streams_max_heartbeat_interval_ms: int = setting(
        15_000, "Longest heartbeat interval that a streams group may configure.", 1, INT_MAX
    )
    group_streams_assignment_interval_ms: int = setting(
        1_000, "Minimum time between two assignments of a streams group. All members that join"
        " within this time get tasks in the second one.", 0, INT_MAX,
    )  # fmt: skip
    group_streams_initial_rebalance_delay_ms: int = setting(
        3_000, "Time that the first assignment of an empty streams group waits for more members.",
        0, INT_MAX,
    )  # fmt: skip
    group_streams_num_standby_replicas: int = setting(
        0, "Number of standby tasks for each stateful task of a streams group.", 0, INT_MAX
    )
    group_streams_max_standby_replicas: int = setting(
        2, "Largest number of standby tasks that a streams group may configure.", 0, INT_MAX
    )
    group_streams_max_size: int = setting(INT_MAX, "Maximum size of a streams group.", 1, INT_MAX)
    transaction_partition_verification_enable: bool = setting(
        True, "Before the first batch of a transaction is appended to a partition, verify with the"
        " coordinator that the transaction includes the partition. The setting applies to clients"
        " that add partitions themselves. Partitions that brokers add are always verified.",
    )  # fmt: skip
    transactional_ids_max: int = setting(
        100_000, "Maximum number of transactional ids.", 1, INT_MAX
    )
    transaction_partitions_max: int = setting(
        10_000, "Maximum number of partitions and groups of a transaction.", 1, INT_MAX
    )
    transaction_max_timeout_ms: int = setting(
        900_000, "Longest `transaction.timeout.ms` that a producer may request.", 1, INT_MAX
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000, "Idle time after which a transactional id is removed.", 1, INT_MAX
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        10_000, "Interval at which timed out transactions are aborted.", 1, INT_MAX
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, "Interval at which expired transactional ids are removed.", 1, INT_MAX
    )
    offset_metadata_max_bytes: int = setting(
        4096,
        "Largest metadata text of a committed offset, in UTF-16 characters as in Kafka.",
        0,
        INT_MAX,
        unit="",
    )
    offsets_commit_timeout_ms: int = setting(
        5_000, "Timeout of an offset commit in the control plane. Set it below the session timeouts"
        " of groups, because a consumer's heartbeats wait for its commit.", 1, INT_MAX,
    )  # fmt: skip
    offsets_retention_minutes: int = setting(
        10_080, "Retention of the offsets of a group without members.", 1, INT_MAX
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, "Interval at which expired offsets are deleted.", 1, LONG_MAX
    )

    log_diskless_enable: bool = setting(
        False, "Default of diskless.enable for new topics without compaction. Existing topics do"
        " not change.",
    )  # fmt: skip
    sink_staging_directory: str = setting(
        "", "Directory for the blobs that Spark's workers stage for exactly-once sinks. Empty: the"
        " directory staging in log.dirs.",
    )  # fmt: skip
    sink_staging_max_bytes: int = setting(
        64 << 30, "Maximum size of all staged blobs. Further ones are rejected.", 0, LONG_MAX
    )
    sink_staging_principal_max_bytes: int = setting(
        16 << 30, "Maximum size of the staged blobs that one principal has uploaded.", 0, LONG_MAX
    )
    sink_staging_free_bytes: int = setting(
        1 << 30, "Free space of the disk below which staged blobs are rejected.", 0, LONG_MAX
    )
    sink_staging_blob_max_bytes: int = setting(
        1 << 30, "Largest staged blob in bytes.", 1, LONG_MAX
    )
    sink_staging_orphan_age_ms: int = setting(
        86_400_000, "Age at which a staged blob that no running commit uses is removed.",
        1000, LONG_MAX,
    )  # fmt: skip
    sink_commits_max: int = setting(
        4, "Concurrent commits of exactly-once sinks; more are queued.", 1,
        1000,
    )  # fmt: skip

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
        check_access(self)
        check_consumer_groups(self)
        check_broker_ids(self.placement_excluded_brokers)
        roles = self.broker_roles
        if not roles or {*roles} - {*ROLES} or len({*roles}) != len(roles):
            known = f"must be one or both of {', '.join(ROLES)}"
            raise InvalidSetting("broker.roles", ",".join(roles), known)
        if not self.listeners:
            raise InvalidSetting("listeners", "", "must name at least one address")


CONSOLE_SOURCES_MAX: Final = 64
"""Entries of one of the settings with the pipelines, agents and outboxes of the console."""
_PORT: Final = "must have the form http://HOST:PORT or https://HOST:PORT, without a path"


def _sources(value: object, check: Callable[[str], None]) -> tuple[str, ...]:
    """Return the entries of a list; raises ValueError if one is invalid or given twice."""
    entries = parse_list(value)
    if len(entries) > CONSOLE_SOURCES_MAX:
        raise ValueError(f"must have at most {CONSOLE_SOURCES_MAX} entries")
    for entry in entries:
        check(entry)
        if entries.count(entry) > 1:
            raise ValueError(f"has {entry} twice")
    return entries


def _check_url(entry: str) -> None:
    try:
        parts = urlsplit(entry)
        port, host = parts.port, parts.hostname
    except ValueError:
        raise ValueError(f"{entry}: {_PORT}") from None
    meant = f"{parts.scheme}://{parts.netloc}"
    if parts.scheme not in ("http", "https") or not (host and port) or "@" in parts.netloc:
        raise ValueError(f"{entry}: {_PORT}")
    if entry.removesuffix("/") != meant:
        raise ValueError(f"{entry}: {_PORT}")


def _check_agent(entry: str) -> None:
    if not entry.startswith("/"):
        _check_url(entry)


def _check_outbox(entry: str) -> None:
    topic, _, root = entry.partition("=")
    if not entry.startswith("/") and not (topic and root.startswith("/")):
        raise ValueError(f"{entry}: must have the form /PATH or TOPIC=/PATH")


AUTHORIZERS: Final = ("acls", "org.apache.kafka.metadata.authorizer.StandardAuthorizer")


def check_access(settings: BrokerSettings) -> None:
    """Raise InvalidSetting unless the authoriser is known and super users are principals."""
    name = settings.authorizer_class_name
    if name and name not in AUTHORIZERS:
        known = f"must be empty, or one of {', '.join(AUTHORIZERS)}"
        raise InvalidSetting("authorizer.class.name", name, known)
    for user in super_users_of(settings):
        kind, colon, rest = user.partition(":")
        if not (kind and colon and rest):
            raise InvalidSetting("super.users", user, "must read TYPE:NAME, as User:admin")


def super_users_of(settings: BrokerSettings) -> list[str]:
    return [user.strip() for user in settings.super_users.split(";") if user.strip()]


def check_consumer_groups(settings: BrokerSettings) -> None:
    """Raise InvalidSetting unless the settings of consumer groups are consistent."""
    times = {
        "session.timeout.ms": (
            settings.group_consumer_min_session_timeout_ms,
            settings.group_consumer_session_timeout_ms,
            settings.group_consumer_max_session_timeout_ms,
        ),
        "heartbeat.interval.ms": (
            settings.group_consumer_min_heartbeat_interval_ms,
            settings.group_consumer_heartbeat_interval_ms,
            settings.group_consumer_max_heartbeat_interval_ms,
        ),
        "assignment.interval.ms": (
            settings.group_consumer_min_assignment_interval_ms,
            settings.group_consumer_assignment_interval_ms,
            settings.group_consumer_max_assignment_interval_ms,
        ),
    }
    for name, (least, value, most) in times.items():
        if not least <= value <= most:
            raise InvalidSetting(
                f"group.consumer.{name}",
                value,
                f"must be within group.consumer.min.{name} = {least} and"
                f" group.consumer.max.{name} = {most}",
            )
    interval, timeout = (
        settings.group_consumer_heartbeat_interval_ms,
        settings.group_consumer_session_timeout_ms,
    )
    if interval >= timeout:
        raise InvalidSetting(
            "group.consumer.heartbeat.interval.ms",
            interval,
            f"must be less than group.consumer.session.timeout.ms = {timeout}",
        )
    if not settings.group_consumer_assignors:
        raise InvalidSetting("group.consumer.assignors", "", "must name at least one assignor")


def check_broker_ids(words: Sequence[str]) -> None:
    for word in words:
        if whole_number(word, INT_MAX) is None:
            raise InvalidSetting(EXCLUDED_BROKERS, word, f"must be broker ids from 0 to {INT_MAX}")
