"""Metrics of the broker, under kafka_exporter's names where it has one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from penstock.base.metrics import Histogram, Metric, Sample
from penstock.broker.errors import error_name

if TYPE_CHECKING:
    from penstock.broker.connection import RequestContext
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partition_registry import PartitionRegistry

REQUESTS: Final = Metric(
    name="penstock_kafka_request_duration_seconds",
    kind="histogram",
    doc="Time from a request's frame to its response, including long polls and syncs.",
    labels=("api",),
)
ERRORS: Final = Metric(
    name="penstock_kafka_request_errors_total",
    kind="counter",
    doc="Requests, and partitions of requests, that returned an error.",
    labels=("api", "error"),
)
BYTES_IN: Final = Metric(
    name="penstock_kafka_received_bytes_total",
    kind="counter",
    doc="Bytes received from Kafka clients.",
)
BYTES_OUT: Final = Metric(
    name="penstock_kafka_sent_bytes_total", kind="counter", doc="Bytes sent to Kafka clients."
)
CONNECTIONS: Final = Metric(
    name="penstock_kafka_connections", kind="gauge", doc="Open Kafka connections."
)
CONNECTIONS_MUTED: Final = Metric(
    name="penstock_kafka_connections_muted",
    kind="gauge",
    doc="Kafka connections from which reading is paused because of quotas.",
)
CONNECTIONS_REJECTED: Final = Metric(
    name="penstock_kafka_connections_rejected_total",
    kind="counter",
    doc="Connections closed because of connection limits, invalid bytes or slowness.",
    labels=("reason",),
)
RECEIVE_BUFFER_BYTES: Final = Metric(
    name="penstock_kafka_receive_buffer_bytes",
    kind="gauge",
    doc="Bytes of large request frames that are being received or written to the log.",
)
LONG_POLLS: Final = Metric(
    name="penstock_fetch_long_polls", kind="gauge", doc="Fetch requests that wait for records."
)
FETCH_SESSIONS: Final = Metric(
    name="penstock_fetch_sessions", kind="gauge", doc="Incremental fetch sessions."
)
TRANSACTIONAL_IDS: Final = Metric(
    name="penstock_transactional_ids",
    kind="gauge",
    doc="Transactional ids that this broker coordinates, by the state of their transaction.",
    labels=("state",),
)
TRANSACTIONS_UNMARKED: Final = Metric(
    name="penstock_transactions_unmarked",
    kind="gauge",
    doc="Committed or aborted transactions whose markers are not yet written to all partitions.",
)
BROKERS: Final = Metric(name="kafka_brokers", kind="gauge", doc="Brokers in the cluster.")
TOPIC_PARTITIONS: Final = Metric(
    name="kafka_topic_partitions",
    kind="gauge",
    doc="Partitions of a topic.",
    labels=("topic",),
)
CURRENT_OFFSET: Final = Metric(
    name="kafka_topic_partition_current_offset",
    kind="gauge",
    doc="High watermark of a partition that this broker leads.",
    labels=("topic", "partition"),
)
OLDEST_OFFSET: Final = Metric(
    name="kafka_topic_partition_oldest_offset",
    kind="gauge",
    doc="Log start offset of a partition that this broker leads.",
    labels=("topic", "partition"),
)

SWITCHES_RUNNING: Final = Metric(
    name="penstock_topic_switches_running",
    kind="gauge",
    doc="Local topics that are becoming diskless on this broker.",
)
SWITCH_COPIED_BYTES: Final = Metric(
    name="penstock_topic_switch_copied_bytes_total",
    kind="counter",
    doc="Bytes of local topics copied to the object store to make the topics diskless.",
)
SWITCHES: Final = Metric(
    name="penstock_topic_switches_total",
    kind="counter",
    doc="Finished switches of local topics to diskless, by outcome.",
    labels=("outcome",),
)


class RequestMetrics:
    __slots__ = ("errors", "latency", "rejected")

    def __init__(self) -> None:
        self.latency: dict[str, Histogram] = {}
        self.errors: dict[tuple[str, int], int] = {}
        self.rejected: dict[str, int] = {}

    def answered(self, context: RequestContext, now: float) -> None:
        histogram = self.latency.get(context.api.name)
        if histogram is None:
            histogram = self.latency[context.api.name] = Histogram()
        histogram.observe(now - context.started)

    def failed(self, context: RequestContext, number: int) -> None:
        key = (context.api.name, number)
        self.errors[key] = self.errors.get(key, 0) + 1

    def rejection(self, reason: str) -> None:
        self.rejected[reason] = self.rejected.get(reason, 0) + 1

    def samples(self) -> Iterator[Sample]:
        for name, histogram in self.latency.items():
            yield Sample(REQUESTS, histogram, (name,))
        for (name, number), count in self.errors.items():
            yield Sample(ERRORS, count, (name, error_name(number)))
        for reason, count in self.rejected.items():
            yield Sample(CONNECTIONS_REJECTED, count, (reason,))


def log_samples(cluster: ClusterMetadata, partitions: PartitionRegistry) -> Iterator[Sample]:
    """Yield the samples that kafka_exporter would report for this broker."""
    image = cluster.loaded
    if image is None:
        return
    yield Sample(BROKERS, len(image.brokers))
    for name, topic in partitions.topics.items():
        yield Sample(TOPIC_PARTITIONS, len(topic.partitions), (name,))
        for index, log in enumerate(topic.partitions):
            if log is not None and log.high_watermark >= 0:
                yield Sample(CURRENT_OFFSET, log.high_watermark, (name, str(index)))
                yield Sample(OLDEST_OFFSET, log.log_start_offset, (name, str(index)))


def migration_samples(
    running: int, copied_bytes: int, outcomes: Mapping[str, int]
) -> Iterator[Sample]:
    yield Sample(SWITCHES_RUNNING, running)
    yield Sample(SWITCH_COPIED_BYTES, copied_bytes)
    for outcome, count in outcomes.items():
        yield Sample(SWITCHES, count, (outcome,))
