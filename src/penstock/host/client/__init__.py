"""Clients of the host agent: `HostClient` for threads, `AsyncHostClient` for event loops."""
