"""Fetch: sessions, and requests that wait for records."""
