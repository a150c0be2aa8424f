"""Commits of Spark queries that write to topics exactly once: their rules and rows."""
