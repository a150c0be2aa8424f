"""Diskless data: objects, extents, producers, switches; their rules and their rows."""
