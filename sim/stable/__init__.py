"""Readers of committed records beside open transactions, within random orders of events."""
