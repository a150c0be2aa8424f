"""What clients do with the log: topics, records, groups, configurations, checks."""
