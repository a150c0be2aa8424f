"""Tests of the evaluation of consumer lag."""
