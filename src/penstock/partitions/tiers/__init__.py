"""Tiered part of a partition: archived segments below the start of its log."""
