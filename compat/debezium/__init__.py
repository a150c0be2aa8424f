"""Debezium beside the source `postgresql`: its process, the compared columns, and the changes."""
