"""Foundations of all rooms: ids, errors, settings, metrics, clock and randomness."""
