"""Avro's binary encoding, decoded by columns, without Spark."""
