"""Sinks of an agent: null, memory, outbox and log."""
