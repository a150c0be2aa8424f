"""Fetch requests: their sessions, and the wait for records."""
