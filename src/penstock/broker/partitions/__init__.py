"""Partitions that this broker serves, and their replicas and leaders."""
