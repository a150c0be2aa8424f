"""Metrics of the broker's state: health checks, free disk space, partitions without replicas.

Health checks that need a probe have the result of the last probe. Each scrape starts new probes,
and does not wait for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.base.metrics import Metrics, Sample, gauge, gauges
from penstock.broker.metadata.leaders import is_diskless

if TYPE_CHECKING:
    from penstock.broker.admin.health import Readiness
    from penstock.broker.metadata import ClusterMetadata
    from penstock.control import MetadataImage


class StatusMetrics(Metrics, prefix="penstock_"):
    ready: int | None = gauge(
        "broker_ready", "1 if all health checks of the broker have passed, else 0."
    )
    failing: dict[str, int] = gauges(
        "broker_check_failing",
        "1 if a health check fails, else 0. The checks are those of `/readyz`.",
        "check",
    )
    disk_free_bytes = gauge(
        "storage_disk_free_bytes", "Free bytes of the data directory's file system."
    )
    disk_size_bytes = gauge("storage_disk_size_bytes", "Size of the data directory's file system.")
    without_leader = gauge(
        "partitions_without_leader",
        "Partitions of the cluster whose leader is not a registered broker. Every broker reports"
        " the same number.",
    )
    under_replicated = gauge(
        "partitions_under_replicated",
        "Partitions that this broker leads and that have replicas which are not in sync.",
    )


class BrokerStatus:
    """Source of `StatusMetrics`. Belongs to the event loop."""

    def __init__(self, *, node_id: int, cluster: ClusterMetadata, readiness: Readiness) -> None:
        self._node_id = node_id
        self._cluster = cluster
        self._readiness = readiness
        self._metrics = StatusMetrics()
        self._counted: MetadataImage | None = None

    def samples(self) -> Iterator[Sample]:
        metrics, readiness = self._metrics, self._readiness
        readiness.probe_soon()
        health = readiness.latest()
        metrics.ready = None if health is None else int(health.good)
        checks = () if health is None else health.checks
        metrics.failing = {check.name: int(not check.ok) for check in checks}
        metrics.disk_free_bytes, metrics.disk_size_bytes = readiness.disk_space
        self._count(self._cluster.loaded)
        yield from metrics.samples()

    def _count(self, image: MetadataImage | None) -> None:
        """Count the partitions with problems, once for each image."""
        if image is None or image is self._counted:
            return
        self._counted = image
        live = {broker.broker_id for broker in image.brokers}
        rows = [
            partition
            for topic in image.topics.values()
            if not is_diskless(topic)
            for partition in topic.partitions
        ]
        metrics = self._metrics
        metrics.without_leader = sum([row.leader not in live for row in rows])
        led = [row for row in rows if row.leader == self._node_id]
        metrics.under_replicated = sum(
            [not live.intersection(row.isr) >= {*row.replicas} for row in led]
        )
