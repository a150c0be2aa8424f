"""Migrations of the schema in SQLite."""
