"""Sweeper and audit of the outbox's tree."""
