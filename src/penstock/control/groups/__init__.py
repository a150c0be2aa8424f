"""Committed and pending offsets of consumer groups."""
