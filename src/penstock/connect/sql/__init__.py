"""Connectors of SQL databases: tables or queries into topics, and topics into tables."""
