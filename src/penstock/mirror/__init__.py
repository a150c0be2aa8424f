"""Mirrors: topics and groups of one cluster, copied continuously into another."""
