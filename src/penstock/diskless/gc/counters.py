"""Metrics of garbage collection."""

from __future__ import annotations

from penstock.base.metrics import Metrics, counter, gauge


class CollectionCounters(Metrics, prefix="penstock_diskless_"):
    swept_objects = counter("swept_objects_total", "Objects deleted by the sweeper.")
    swept_bytes = counter("swept_bytes_total", "Bytes of objects deleted by the sweeper.")
    failures = counter("collection_failures_total", "Passes of all these jobs that failed.")
    orphans_deleted = counter("orphans_deleted_total", "Deleted orphans.")
    orphans = gauge("orphans", "Objects without a row, by the last comparison.")
    orphan_bytes = gauge("orphan_bytes", "Bytes of objects without a row.")
    dropped_extents = counter("retention_dropped_extents_total", "Extents that retention dropped.")
    dropped_bytes = counter("retention_dropped_bytes_total", "Bytes that retention dropped.")
    retention_failures = counter(
        "retention_failures_total", "Partitions whose retention failed in a pass."
    )
    partitions_forgotten = counter("forgotten_partitions_total", "Deleted rows of deleted topics.")
    producers_forgotten = counter("forgotten_producers_total", "Deleted idle producers.")
    marked_object_id = gauge(
        "marked_object_id", "Highest object id that this broker recorded in the store."
    )
