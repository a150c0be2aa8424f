"""Metrics of the broker, under kafka_exporter's names where it has one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.base.metrics import (
    Histogram,
    Metrics,
    Sample,
    counter,
    counters,
    gauge,
    gauges,
    histograms,
)
from penstock.broker.net.errors import error_name

if TYPE_CHECKING:
    from penstock.base.metrics import Exemplar
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.net.connection import RequestContext
    from penstock.broker.partitions.registry import PartitionRegistry


class RequestMetrics(Metrics, prefix="penstock_"):
    received_bytes = counter("kafka_received_bytes_total", "Bytes received from Kafka clients.")
    sent_bytes = counter("kafka_sent_bytes_total", "Bytes sent to Kafka clients.")
    connections = gauge("kafka_connections", "Open Kafka connections.")
    muted = gauge(
        "kafka_connections_muted",
        "Kafka connections from which reading is paused because of quotas.",
    )
    receive_buffer_bytes = gauge(
        "kafka_receive_buffer_bytes",
        "Bytes of large request frames that are being received or written to the log.",
    )
    long_polls = gauge("fetch_long_polls", "Fetch requests that wait for records.")
    fetch_sessions = gauge("fetch_sessions", "Incremental fetch sessions.")
    latency = histograms(
        "kafka_request_duration_seconds",
        "Time from the arrival of a request to its response, including long polls and syncs.",
        "api",
    )
    errors: dict[tuple[str, str], int] = counters(
        "kafka_request_errors_total",
        "Requests, and partitions of requests, that returned an error.",
        "api",
        "error",
    )
    rejected: dict[str, int] = counters(
        "kafka_connections_rejected_total",
        "Connections closed because of connection limits, invalid bytes or slowness.",
        "reason",
    )

    def answered(self, context: RequestContext, now: float, count: int = 1) -> None:
        """Observe the latency of a request, or of `count` that shared their arrival and append."""
        self.observe(context.api.name, now - context.started, count)

    def observe(self, api: str, seconds: float, count: int = 1) -> None:
        histogram = self.latency.get(api)
        if histogram is None:
            histogram = self.latency[api] = Histogram()
        histogram.observe(seconds, count)

    def traced(self, context: RequestContext, exemplar: Exemplar) -> None:
        self.latency.setdefault(context.api.name, Histogram()).keep(exemplar)

    def failed(self, context: RequestContext, number: int) -> None:
        self.errors[context.api.name, error_name(number)] += 1

    def rejection(self, reason: str) -> None:
        self.rejected[reason] += 1


class LogMetrics(Metrics, prefix="kafka_"):
    """Metrics of topics and brokers, under the names that kafka_exporter uses."""

    brokers = gauge("brokers", "Brokers in the cluster.")
    topic_partitions: dict[str, int] = gauges("topic_partitions", "Partitions of a topic.", "topic")
    current_offset: dict[tuple[str, str], int] = gauges(
        "topic_partition_current_offset",
        "High watermark of a partition that this broker leads.",
        "topic",
        "partition",
    )
    oldest_offset: dict[tuple[str, str], int] = gauges(
        "topic_partition_oldest_offset",
        "Log start offset of a partition that this broker leads.",
        "topic",
        "partition",
    )


def log_samples(cluster: ClusterMetadata, partitions: PartitionRegistry) -> Iterator[Sample]:
    image = cluster.loaded
    if image is None:
        return
    metrics = LogMetrics()
    metrics.brokers = len(image.brokers)
    declared = LogMetrics.metrics
    ends, starts = declared["current_offset"], declared["oldest_offset"]
    newest: list[Sample] = []
    oldest: list[Sample] = []
    for name, topic in partitions.topics.items():
        metrics.topic_partitions[name] = len(topic.partitions)
        for index, log in enumerate(topic.partitions):
            if log is not None and (end := log.high_watermark) >= 0:
                labels = (name, str(index))
                newest.append(Sample(ends, end, labels))
                oldest.append(Sample(starts, log.log_start_offset, labels))
    yield from metrics.samples()
    yield from newest
    yield from oldest
