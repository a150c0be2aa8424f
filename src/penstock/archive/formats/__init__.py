"""Persisted formats, one per module, with the layout at its top; they do not access a store."""
