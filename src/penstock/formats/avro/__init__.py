"""Decoder of Avro's binary encoding into columns, without Spark."""
