"""Committed and pending offsets of consumer groups: operations and statements."""
