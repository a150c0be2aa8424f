"""Commands for topics, records, groups, configurations, replicas and stored files."""
