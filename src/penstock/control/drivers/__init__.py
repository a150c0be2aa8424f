"""Database drivers: SQLite's writer, PostgreSQL's connections, failures, notices."""
