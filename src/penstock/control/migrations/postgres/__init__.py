"""Migrations of the schema in PostgreSQL."""
