"""Avro's binary encoding, decoded by columns: no import of Spark in here."""
