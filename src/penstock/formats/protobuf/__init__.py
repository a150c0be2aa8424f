"""Protobuf's wire format, decoded by columns: no import of Spark in here."""
