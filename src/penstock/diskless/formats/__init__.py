"""Persisted formats of diskless topics, one per file."""
