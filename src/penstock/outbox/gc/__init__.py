"""Sweeper and audit of the files below an outbox's root."""
