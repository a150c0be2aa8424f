"""Check of stored data before an upgrade: which formats it has, and what a start changes."""
