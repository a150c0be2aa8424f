"""Persisted formats, one per file, each with its layout at the top and without file access."""
