"""Tests of the metrics that clients push."""
