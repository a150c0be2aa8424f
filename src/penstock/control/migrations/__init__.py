"""The schema of each database: numbered files, each of which runs in one transaction, once."""
