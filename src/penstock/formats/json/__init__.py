"""JSON values: what they must look like, as a tree of shapes, and JSON Schema read into it."""
