"""JSON values: their shapes, also from JSON Schema, and their readers and writer."""
