"""Reads of diskless partitions: find, plan, fetch, assemble."""
