"""Diskless topics: bytes in an object store, order in the control plane, no data on brokers."""
