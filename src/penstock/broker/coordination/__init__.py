"""Coordinators: one broker coordinates each consumer group, share group and transactional id."""
