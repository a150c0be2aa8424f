"""Diskless topics: records are in an object store, and the control plane assigns their offsets."""
