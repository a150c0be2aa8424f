"""Diskless topics as the broker serves them: partitions, migration, verification."""
