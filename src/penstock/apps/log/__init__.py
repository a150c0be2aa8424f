"""Commands on the log: topics, records, groups, configurations, checks."""
