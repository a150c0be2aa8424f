"""Tests of `penstock.planner.choosing`."""
