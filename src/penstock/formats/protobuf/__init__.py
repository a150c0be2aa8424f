"""Decoder of Protobuf's wire format into columns, without Spark."""
