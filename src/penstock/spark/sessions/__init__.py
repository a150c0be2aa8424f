"""Spark sessions, their Java process and workers, and the data source for them."""
