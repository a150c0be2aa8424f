"""Comparison of Penstock's transforms with Kafka Connect's: records, and their form in both."""
