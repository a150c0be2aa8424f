"""Metadata of diskless topics: objects, extents, idempotent producers, and migrations of topics."""
