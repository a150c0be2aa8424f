"""Partitions on several brokers: who holds them, and how their copies stay alike."""
