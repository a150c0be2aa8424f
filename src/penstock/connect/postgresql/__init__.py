"""PostgreSQL as a source: a snapshot of tables, then their changes from the write-ahead log."""
