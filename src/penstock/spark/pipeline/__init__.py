"""Pipelines as files: from TOML to running queries."""
