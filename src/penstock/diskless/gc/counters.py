"""Counters of garbage collection."""

from __future__ import annotations


class CollectionCounters:
    __slots__ = (
        "dropped_bytes", "dropped_extents", "failures", "marked_object_id", "orphan_bytes",
        "orphans", "orphans_deleted", "partitions_forgotten", "producers_forgotten",
        "retention_failures", "swept_bytes", "swept_objects",
    )  # fmt: skip

    def __init__(self) -> None:
        self.swept_objects = self.swept_bytes = self.failures = 0
        self.orphans = self.orphan_bytes = self.orphans_deleted = 0
        self.dropped_extents = self.dropped_bytes = self.retention_failures = 0
        self.partitions_forgotten = self.producers_forgotten = 0
        self.marked_object_id = 0
