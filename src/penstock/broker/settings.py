"""The broker's settings, under Kafka's names wherever Kafka has one.

Listeners, limits of connections and requests, defaults of new topics, and the bounds of
consumer groups. What a topic gets by default stands in `topic_defaults.py`; what the storage
does with its files stands in `penstock.storage`. The configuration reference and the answers
of DescribeConfigs are made from these declarations.

Source: Kafka's `SocketServerConfigs`, `ServerConfigs`, `GroupCoordinatorConfig`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.base.errors import InvalidSetting
from penstock.base.settings import INT_MAX, LONG_MAX, NoEffect, setting, whole_number
from penstock.broker.topic_defaults import UNSET, TopicDefaults
from penstock.control.values import ROLES

__all__ = ["UNSET", "BrokerSettings", "TopicDefaults"]

EXCLUDED_BROKERS: Final = "placement.excluded.brokers"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(TopicDefaults):
    """Everything a broker is told; a change takes a restart unless DescribeConfigs says not."""

    node_id: int = setting(1, "Identity of this broker in the cluster.", 0, INT_MAX)
    broker_rack: str = setting(
        "", "Rack or zone of this broker, for rack-aware assignment and fetches."
    )
    broker_roles: tuple[str, ...] = setting(
        ROLES, "What this broker is for: persistence, it holds replicas of partitions, and leads"
        " them; ingestion, it leads partitions of diskless topics and coordinates groups.",
    )  # fmt: skip
    broker_session_timeout_ms: int = setting(
        9_000, "A broker that has not renewed its registration for this long counts as gone;"
        " others take over its groups.", 100, INT_MAX,
    )  # fmt: skip
    broker_heartbeat_interval_ms: int = setting(
        2_000, "How often a broker renews its registration.", 10, INT_MAX
    )
    auto_leader_rebalance_enable: bool = setting(
        True, "Have preferred replicas lead their partitions again, a few at a time."
    )
    leader_imbalance_check_interval_seconds: int = setting(
        300, "How often this broker looks for partitions that it leads for others.", 1, INT_MAX
    )
    leader_imbalance_per_broker_percentage: int = setting(
        10, "Partitions that prefer a broker go back to it while others lead more than this"
        " percentage of them.", 0, 100,
    )  # fmt: skip
    listeners: tuple[str, ...] = setting(
        ("PLAINTEXT://127.0.0.1:9092",), "Addresses to listen on, as NAME://host:port; port 0"
        " picks a free one.",
    )  # fmt: skip
    listener_security_protocol_map: tuple[str, ...] = setting(
        ("PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"),
        "The protocol of each listener, as NAME:PROTOCOL, one of PLAINTEXT, SSL, SASL_PLAINTEXT and"
        " SASL_SSL.",
    )
    advertised_listeners: tuple[str, ...] = setting(
        (), "Addresses that clients of each listener are told to connect to, by its name; one that"
        " is not named is told as it is in listeners.",
    )  # fmt: skip
    admin_listener: str = setting(
        "127.0.0.1:9644", "host:port of the admin HTTP interface; empty turns it off, port 0 picks"
        " a free one.",
    )  # fmt: skip
    admin_security_protocol: str = setting(
        "PLAINTEXT", "Whether the admin HTTP interface is encrypted. Its settings ssl.* and sasl.*"
        " may differ from those of listeners: listener.name.admin.….",
        choices=("PLAINTEXT", "SSL"),
    )  # fmt: skip
    admin_basic_loopback: bool = setting(
        False, "Take passwords (basic credentials) without TLS from this machine."
    )
    admin_loopback_trusted: bool = setting(
        False, "Whoever asks the admin interface from this machine without credentials may do"
        " everything, ACLs or not. The ready line says so.",
    )  # fmt: skip
    admin_metrics_open: bool = setting(
        False, "Answer /metrics to everybody; otherwise an authoriser wants describe on the"
        " cluster.",
    )  # fmt: skip
    admin_hosts: tuple[str, ...] = setting(
        (), "Names by which the admin interface may be asked for changes, beside addresses,"
        " localhost, the machine's name and the hosts of advertised.listeners.",
    )  # fmt: skip
    extents_direct_files_enable: str = setting(
        "auto", "Tell those who may read a topic which bytes of which files and objects hold it, so"
        " that Spark reads them without the broker: it needs rights on these, and those are rights"
        " on all topics. auto: unless there is an authoriser; then objects in S3 have signed URLs,"
        " which need none. true: all of it. false: nothing.", choices=("auto", "true", "false"),
    )  # fmt: skip
    extents_url_lifetime_ms: int = setting(
        900_000, "How long the signed URLs of extents hold, in whole seconds: whoever has one reads"
        " its bytes until then, whatever became of its rights. A task that begins later asks anew.",
        60_000, 604_800_000,
    )  # fmt: skip
    admin_request_max_bytes: int = setting(
        65_536, "Largest request body that the admin HTTP interface reads.", 0, INT_MAX
    )
    admin_max_connections: int = setting(
        128, "Requests that the admin HTTP interface handles at a time; more are answered 503. One"
        " address of another machine has three quarters of them; probes come beside.", 1, INT_MAX,
    )  # fmt: skip
    replication_listener: str = setting(
        "", "host:port where other brokers reach this one for replicated partitions; empty takes no"
        " part in any, port 0 picks a free one.",
    )  # fmt: skip
    replica_lag_time_max_ms: int = setting(
        30_000, "A replica that has not had all of its leader's log for this long is not in sync.",
        1, INT_MAX,
    )  # fmt: skip
    authorizer_class_name: str = setting(
        "", "What decides who may do what: empty, everybody may do everything; acls, or Kafka's"
        " name org.apache.kafka.metadata.authorizer.StandardAuthorizer, by ACLs.",
    )  # fmt: skip
    super_users: str = setting(
        "", "Principals that may do anything, as User:a;User:b; asked only where ACLs decide."
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False, "Where ACLs decide: everybody may do anything on resources that no ACL names."
    )
    max_connections: int = setting(
        10_000, "Kafka connections open at a time; more are closed at once.", 1, INT_MAX
    )
    max_connections_per_ip: int = setting(
        INT_MAX, "Kafka connections open at a time from one address.", 1, INT_MAX
    )
    connections_max_idle_ms: int = setting(
        600_000, "A connection without a request for this long is closed; -1 never closes it.", -1,
        LONG_MAX,
    )  # fmt: skip
    socket_request_max_bytes: int = setting(
        100 << 20, "Largest request frame; a longer one closes the connection before it is read.",
        1, INT_MAX,
    )  # fmt: skip
    socket_send_buffer_bytes: int = setting(
        -1, "SO_SNDBUF of Kafka connections; -1 leaves it to the system.", -1, INT_MAX
    )
    socket_receive_buffer_bytes: int = setting(
        -1, "SO_RCVBUF of Kafka connections; -1 leaves it to the system.", -1, INT_MAX
    )
    socket_listen_backlog_size: int = setting(
        1024, "Connections that may wait to be accepted.", 1, INT_MAX
    )
    queued_max_requests: int = setting(
        500, "Requests of one connection in the works; reading pauses until one is answered.", 1,
        INT_MAX,
    )  # fmt: skip
    queued_max_request_bytes: int = setting(
        512 << 20, "Bytes of requests in the works over all connections; reading pauses above.", 1,
        LONG_MAX,
    )  # fmt: skip
    quota_window_num: int = setting(
        11, "Windows over which the rates of quotas are measured.", 1, 10_000
    )
    quota_window_size_seconds: int = setting(1, "Seconds of each of these windows.", 1, 3_600)
    controller_quota_window_num: int = setting(
        11, "Windows whose partitions may be created and deleted at once under a"
        " controller_mutation_rate.", 1, 10_000,
    )  # fmt: skip
    controller_quota_window_size_seconds: int = setting(
        1, "Seconds of each of these windows.", 1, 3_600
    )
    telemetry_max_bytes: int = setting(
        1 << 20, "Largest push of a client's own metrics (KIP-714).", 1, INT_MAX
    )
    request_timeout_ms: int = setting(
        30_000, "Longest time that the broker works on an administrative request.", 1, INT_MAX,
        no_effect=NoEffect(why="administrative requests have no time limit of their own"),
    )  # fmt: skip
    shutdown_timeout_ms: int = setting(
        10_000,
        "Time that other brokers get to take over what this one leads when it stops, and then its"
        " open requests to finish.", 0, INT_MAX,
    )  # fmt: skip
    fetch_max_bytes: int = setting(
        55 << 20, "Largest fetch answer, whatever the consumer asks for.", 1024, INT_MAX
    )
    fetch_sessions_max: int = setting(
        1000, "Incremental fetch sessions kept; the least recently used one is evicted.", 0,
        INT_MAX, name="max.incremental.fetch.session.cache.slots",
    )  # fmt: skip
    max_request_partition_size_limit: int = setting(
        2000, "Partitions in one page of DescribeTopicPartitions.", 1, INT_MAX
    )
    auto_create_topics_enable: bool = setting(
        True, "Create a topic when a client asks for it by name and allows its creation."
    )
    delete_topic_enable: bool = setting(True, "Allow topics to be deleted.")
    num_partitions: int = setting(1, "Partitions of a topic that does not say.", 1, INT_MAX)
    default_replication_factor: int = setting(
        1, "Replicas of a topic that does not say.", 1, 32_767
    )
    placement_excluded_brokers: tuple[str, ...] = setting(
        (), "Brokers, by their numbers, that get no replicas of new topics and partitions, unless"
        " they are named by hand. penstock broker drain sets it for the cluster.",
    )  # fmt: skip
    topic_partitions_max: int = setting(
        10_000, "Most partitions that one topic may have.", 1, INT_MAX
    )
    broker_partitions_max: int = setting(200_000, "Most partitions over all topics.", 1, INT_MAX)
    group_min_session_timeout_ms: int = setting(
        6_000, "Shortest session timeout that a group member may ask for.", 1, INT_MAX
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, "Longest session timeout that a group member may ask for.", 1, INT_MAX
    )
    group_initial_rebalance_delay_ms: int = setting(
        3_000, "How long a new group waits for more members before its first rebalance.", 0, INT_MAX
    )
    group_max_size: int = setting(10_000, "Most members of one consumer group.", 1, INT_MAX)
    groups_max: int = setting(100_000, "Most consumer groups held at a time.", 1, INT_MAX)
    group_share_delivery_count_limit: int = setting(
        5, "How often a record is delivered to a share group before it is given up.", 2, 25
    )
    errors_deadletterqueue_auto_create_topics_enable: bool = setting(
        False, "Create the topic that a share group names for its dead letters, if there is none."
    )
    errors_deadletterqueue_topic_name_prefix: str = setting(
        "dlq.", "What the names of share groups' dead letter topics begin with; empty allows any."
    )
    group_share_session_timeout_ms: int = setting(
        45_000, "How long a member of a share group counts as alive that is not heard of.", 1,
        INT_MAX,
    )  # fmt: skip
    group_share_min_session_timeout_ms: int = setting(
        45_000, "Shortest session timeout that a share group may be set to.", 1, INT_MAX
    )
    group_share_max_session_timeout_ms: int = setting(
        60_000, "Longest session timeout that a share group may be set to.", 1, INT_MAX
    )
    group_share_heartbeat_interval_ms: int = setting(
        5_000, "How often members of a share group are told to heartbeat.", 1, INT_MAX
    )
    group_share_min_heartbeat_interval_ms: int = setting(
        5_000, "Shortest heartbeat interval that a share group may be set to.", 1, INT_MAX
    )
    group_share_max_heartbeat_interval_ms: int = setting(
        15_000, "Longest heartbeat interval that a share group may be set to.", 1, INT_MAX
    )
    group_share_assignment_interval_ms: int = setting(
        1_000, "Least time between two assignments of a share group: members that come within it"
        " share one.", 0, INT_MAX,
    )  # fmt: skip
    group_share_max_size: int = setting(200, "Most members of one share group.", 1, 1000)
    group_share_record_lock_duration_ms: int = setting(
        30_000, "How long a member of a share group has records that it does not acknowledge.",
        1000, 3_600_000,
    )  # fmt: skip
    group_share_min_record_lock_duration_ms: int = setting(
        15_000, "Shortest lock that a share group may be set to.", 1000, 30_000
    )
    group_share_max_record_lock_duration_ms: int = setting(
        60_000, "Longest lock that a share group may be set to.", 30_000, 3_600_000
    )
    group_share_partition_max_record_locks: int = setting(
        2_000, "Records of one partition that a share group has, or has given back, at a time.",
        100, 10_000,
    )  # fmt: skip
    group_share_max_share_sessions: int = setting(
        2_000, "Share sessions kept: members of share groups that fetch from this broker.", 1,
        INT_MAX,
    )  # fmt: skip
    group_consumer_session_timeout_ms: int = setting(
        45_000, "How long a member of a consumer group counts as alive that is not heard of.", 1,
        INT_MAX,
    )  # fmt: skip
    group_consumer_min_session_timeout_ms: int = setting(
        45_000, "Shortest session timeout of members of a consumer group.", 1, INT_MAX
    )
    group_consumer_max_session_timeout_ms: int = setting(
        60_000, "Longest session timeout of members of a consumer group.", 1, INT_MAX
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000, "How often members of a consumer group are told to heartbeat.", 1, INT_MAX
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        5_000, "Shortest heartbeat interval of members of a consumer group.", 1, INT_MAX
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        15_000, "Longest heartbeat interval of members of a consumer group.", 1, INT_MAX
    )
    group_consumer_assignment_interval_ms: int = setting(
        1_000, "Least time between two assignments of a consumer group: members that come within"
        " it share one.", 0, INT_MAX,
    )  # fmt: skip
    group_consumer_min_assignment_interval_ms: int = setting(
        0, "Shortest assignment interval of a consumer group.", 0, INT_MAX
    )
    group_consumer_max_assignment_interval_ms: int = setting(
        15_000, "Longest assignment interval of a consumer group.", 0, INT_MAX
    )
    group_consumer_max_size: int = setting(
        INT_MAX, "Most members of one consumer group of the new protocol.", 1, INT_MAX
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        ("uniform", "range"), "Assignors on the server; the first is for members that name none.",
        choices=("uniform", "range"),
    )  # fmt: skip
    group_consumer_migration_policy: str = setting(
        "bidirectional", "Into which kind groups with members are converted: upgrade, to consumer"
        " groups; downgrade, to classic ones.",
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
    )  # fmt: skip
    group_consumer_regex_refresh_interval_ms: int = setting(
        600_000, "How often topics are matched anew with the regular expressions of consumer"
        " groups, beside when topics come or go.", 10_000, INT_MAX,
    )  # fmt: skip
    transaction_partition_verification_enable: bool = setting(
        True, "Ask a transaction's coordinator before its first batch is taken, where clients add"
        " partitions themselves; those that leave it to the broker are always asked about.",
    )  # fmt: skip
    transactional_ids_max: int = setting(
        100_000, "Most transactional ids held at a time.", 1, INT_MAX
    )
    transaction_partitions_max: int = setting(
        10_000, "Most partitions and groups of one transaction.", 1, INT_MAX
    )
    transaction_max_timeout_ms: int = setting(
        900_000, "Longest `transaction.timeout.ms` that a producer may ask for.", 1, INT_MAX
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000, "How long a transactional id is kept of which nothing is heard.", 1, INT_MAX
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        10_000, "How often transactions that have timed out are aborted.", 1, INT_MAX
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, "How often transactional ids that have expired are forgotten.", 1, INT_MAX
    )
    offset_metadata_max_bytes: int = setting(
        4096, "Largest metadata text of a committed offset.", 0, INT_MAX
    )
    offsets_commit_timeout_ms: int = setting(
        5_000, "How long a commit of offsets waits for the control plane. A consumer's heartbeats"
        " wait behind its commit: less than the session timeouts of groups.", 1, INT_MAX,
    )  # fmt: skip
    offsets_retention_minutes: int = setting(
        10_080, "How long the offsets of a group without members are kept.", 1, INT_MAX
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, "How often expired offsets are looked for.", 1, LONG_MAX
    )

    log_diskless_enable: bool = setting(
        False, "Make new topics diskless that do not say; those with compaction stay on brokers. A"
        " topic keeps what it was created with.",
    )  # fmt: skip
    sink_staging_directory: str = setting(
        "", "Directory of the blobs that Spark's workers stage for an exactly-once sink; empty"
        " means the directory staging below log.dirs.",
    )  # fmt: skip
    sink_staging_max_bytes: int = setting(
        64 << 30, "Bytes of all staged blobs above which no more are taken.", 0, LONG_MAX
    )
    sink_staging_principal_max_bytes: int = setting(
        16 << 30, "Bytes that one principal may have staged by upload.", 0, LONG_MAX
    )
    sink_staging_free_bytes: int = setting(
        1 << 30, "Bytes of the disk that staged blobs leave free, for the log.", 0, LONG_MAX
    )
    sink_staging_blob_max_bytes: int = setting(1 << 30, "Largest staged blob.", 1, LONG_MAX)
    sink_staging_orphan_age_ms: int = setting(
        86_400_000, "Age at which a staged blob that no commit in the works names is removed.",
        1000, LONG_MAX,
    )  # fmt: skip
    sink_commits_max: int = setting(
        4, "Commits of exactly-once sinks in the works at a time; more wait for their turn.", 1,
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


AUTHORIZERS: Final = ("acls", "org.apache.kafka.metadata.authorizer.StandardAuthorizer")


def check_access(settings: BrokerSettings) -> None:
    """Raise InvalidSetting unless it is known what decides, and who may do anything."""
    name = settings.authorizer_class_name
    if name and name not in AUTHORIZERS:
        known = f"must be empty, or one of {', '.join(AUTHORIZERS)}"
        raise InvalidSetting("authorizer.class.name", name, known)
    for user in super_users_of(settings):
        kind, colon, rest = user.partition(":")
        if not (kind and colon and rest):
            raise InvalidSetting("super.users", user, "must read TYPE:NAME, as User:admin")


def super_users_of(settings: BrokerSettings) -> list[str]:
    """The principals that may do anything, as `User:admin`."""
    return [user.strip() for user in settings.super_users.split(";") if user.strip()]


def check_consumer_groups(settings: BrokerSettings) -> None:
    """Raise InvalidSetting unless times of consumer groups are within their own bounds."""
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
    """Raise InvalidSetting unless these are numbers of brokers that may be left out."""
    for word in words:
        if whole_number(word, INT_MAX) is None:
            raise InvalidSetting(
                EXCLUDED_BROKERS, word, f"must be numbers of brokers from 0 to {INT_MAX}"
            )
