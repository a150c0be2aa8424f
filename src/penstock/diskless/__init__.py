"""Diskless topics: their records are in an object store, and the control plane assigns offsets."""
