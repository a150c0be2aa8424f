"""Reads of diskless partitions: look up extents, plan ranges, fetch them, assemble batches."""
