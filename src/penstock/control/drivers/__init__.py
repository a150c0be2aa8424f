"""Database drivers: SQLite's writer, PostgreSQL's connections, failures, and change notices."""
