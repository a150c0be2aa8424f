"""Epochs of replicated partitions: who reserved the newest, and the chain of those opened."""
