"""Client commands: topics, records, groups, configurations, checks."""
