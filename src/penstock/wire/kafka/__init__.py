"""Kafka's protocol: the API table, framing, and codecs made from Kafka's own schemas."""
