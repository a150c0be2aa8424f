"""How operations reach a database: SQLite's thread, PostgreSQL's connections, failures, notices."""
