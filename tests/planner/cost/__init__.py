"""Tests of `penstock.planner.cost`."""
