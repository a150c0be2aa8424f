"""Durable writes of a store: group commit, segments, checkpoints and recovery."""
