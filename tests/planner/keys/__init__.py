"""Tests of `penstock.planner.keys`."""
