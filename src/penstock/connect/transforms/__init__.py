"""Transforms of rows between a source or sink and its topics, as expressions over columns."""
