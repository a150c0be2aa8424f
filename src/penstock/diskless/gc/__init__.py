"""Garbage collection of diskless topics: sweeper, retention, orphans, and object-id markers."""

from penstock.diskless.gc.id_markers import ObjectIdMarkers
from penstock.diskless.gc.jobs import Collection, Job, RetentionTarget

__all__ = ["Collection", "Job", "ObjectIdMarkers", "RetentionTarget"]
