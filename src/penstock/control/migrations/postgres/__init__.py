"""The schema in PostgreSQL."""
