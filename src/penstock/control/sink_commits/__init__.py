"""Commits of queries that write to the log: their rules and their rows."""
