"""The schema in SQLite."""
