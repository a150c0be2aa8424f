"""Fetch requests: sessions, and waiting for records."""
