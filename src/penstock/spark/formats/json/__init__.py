"""JSON values: a tree of shapes, and Spark's own column functions that check and convert it."""
