"""Coordinator of groups: the classic protocol, consumer groups and share groups."""
