"""Protobuf's wire format, decoded by columns, without Spark."""
